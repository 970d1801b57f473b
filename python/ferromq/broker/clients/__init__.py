"""Live clients: heartbeats, rebalance, locks, assignments, calls to clients."""
