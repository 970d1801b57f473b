"""The administrator of a cluster: topics, consumer groups, their lag and offsets, stored messages, and brokers."""

from ferromq.admin.admin import Admin, MessageType
from ferromq.admin.dead_letters import DeadLetter, ResentLetter
from ferromq.admin.explanations import Explanation, InGroup
from ferromq.admin.progress import ResetTo
from ferromq.admin.results import (
    BrokerStatus,
    GroupDescription,
    GroupLag,
    Member,
    QueueLag,
    QueueRange,
    QueueReset,
    TopicDescription,
    TopicLag,
    TopicOnBroker,
    Unreachable,
)

__all__ = [
    "Admin",
    "BrokerStatus",
    "DeadLetter",
    "Explanation",
    "GroupDescription",
    "GroupLag",
    "InGroup",
    "Member",
    "MessageType",
    "QueueLag",
    "QueueRange",
    "QueueReset",
    "ResentLetter",
    "ResetTo",
    "TopicDescription",
    "TopicLag",
    "TopicOnBroker",
    "Unreachable",
]
