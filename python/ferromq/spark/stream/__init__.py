"""Streaming reads: batches are planned from offsets, options and the current queues."""
