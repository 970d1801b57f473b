"""The administrator of a cluster: topics, consumer groups, and stored messages by key and by id."""

from ferromq.admin.admin import Admin, MessageType
from ferromq.admin.dead_letters import DeadLetter, ResentLetter

__all__ = ["Admin", "DeadLetter", "MessageType", "ResentLetter"]
