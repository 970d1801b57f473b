"""What servers, clients and tools of RocketMQ exchange: codes, JSON, names, routes. Without I/O."""
