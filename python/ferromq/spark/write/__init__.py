"""Writes: plans, rows, requests."""
