"""Streaming reads: offsets, plans, and the watch on routes."""
