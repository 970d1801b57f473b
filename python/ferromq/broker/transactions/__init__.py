"""Transactions: half messages, how they end, and check-back of open ones."""
