"""The name server: its routes, its key-value table, and its handlers of requests."""
