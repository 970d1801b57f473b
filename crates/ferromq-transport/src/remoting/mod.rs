//! RocketMQ's remoting protocol.
