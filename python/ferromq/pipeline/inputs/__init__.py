"""Where pipelines take their rows, files and offsets from."""
