"""The namespaces of a name server's key-value table that brokers, clients and tools share."""

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Topic → its order configuration; see `protocol.order_configuration`."""
GRPC_NAMESPACE = "FERROMQ_GRPC"
"""Broker name → `host:port` of its gRPC listener. RocketMQ's registration has no field for it."""
