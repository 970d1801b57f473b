"""The steps of an audit: scan the files of a store, then join what they say."""
