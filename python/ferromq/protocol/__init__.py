"""What servers, clients and tools of RocketMQ say to each other: codes, JSON, names, routes. Without I/O."""
