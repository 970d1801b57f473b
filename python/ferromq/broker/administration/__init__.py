"""Requests of administrators: topics, groups, offsets, and the broker's options."""
