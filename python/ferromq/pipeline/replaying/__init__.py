"""How a replay sends: in order, at a rate, and from where an earlier run ended."""
