"""Tables of topics, consumer groups and request modes, in RocketMQ's files."""
