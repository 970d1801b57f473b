"""Live clients: heartbeats, rebalance, queue locks, assignments, calls to clients."""
