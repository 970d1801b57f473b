"""Writes of DataFrames and streams to topics."""
