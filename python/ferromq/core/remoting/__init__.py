"""
The verbs of RocketMQ's gRPC protocol by requests of its remoting protocol, for brokers behind name servers; no I/O.

RocketMQ's proxy does the same in a process of its own.
"""
