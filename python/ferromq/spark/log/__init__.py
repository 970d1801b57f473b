"""Reads of commit log files without a broker."""
