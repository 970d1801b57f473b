"""The Parquet files of an archive: written, checked, and put in place."""
