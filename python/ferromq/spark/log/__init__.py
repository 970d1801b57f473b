"""Reads commit-log files without a broker."""
