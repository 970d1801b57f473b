"""
The messages of RocketMQ's gRPC protocol, `apache.rocketmq.v2`.

    from ferromq._proto import messages as pb

They are for the small messages of the control plane; bodies are encoded and decoded by `ferromq._ferromq`.
"""
