"""What administrators change: topics, groups, offsets, settings."""
