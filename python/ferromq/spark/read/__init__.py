"""Reads of topics through brokers: plans, pulls, pushed-down filters."""
