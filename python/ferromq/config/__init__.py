"""Options: how they are read from files, environment and flags, and which there are."""
