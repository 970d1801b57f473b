"""Output for people on a terminal: progress bars, sizes, tables."""
