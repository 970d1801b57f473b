"""Metrics and reports: consume progress, statistics, runtime information."""
