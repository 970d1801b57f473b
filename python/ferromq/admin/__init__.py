"""The administrator of a cluster: topics, consumer groups, and stored messages by key and by id."""

from ferromq.admin.admin import Admin, MessageType

__all__ = ["Admin", "MessageType"]
