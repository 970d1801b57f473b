"""The options of servers, and how they are read from files, environment and flags."""
