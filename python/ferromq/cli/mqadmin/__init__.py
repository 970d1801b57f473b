"""`ferromq mqadmin`: the commands of RocketMQ's `mqadmin`, with its options and what it prints."""
