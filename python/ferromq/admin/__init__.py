"""The administrator of a cluster: topics, consumer groups, their lag and offsets, stored messages, and brokers."""

from ferromq.admin.admin import Admin, MessageType
from ferromq.admin.dead_letters import DeadLetter, ResentLetter
from ferromq.admin.explanations import Explanation, InGroup
from ferromq.admin.metadata import Metadata
from ferromq.admin.progress import ResetTo
from ferromq.admin.results import (
    BrokerStatus,
    Change,
    GroupDescription,
    GroupLag,
    Import,
    Member,
    PolicyEntry,
    QueueLag,
    QueueRange,
    QueueReset,
    ReloadedConfig,
    Retirement,
    TopicDescription,
    TopicLag,
    TopicOnBroker,
    Unreachable,
    Unread,
    User,
)
from ferromq.admin.traces import (
    MessageTrace,
    TracedConsumption,
    TracedRecall,
    TracedSend,
    TracedTransactionEnd,
)
from ferromq.admin.waiting import DelayedMessages, HalfMessage, WaitingTransactions

__all__ = [
    "Admin",
    "BrokerStatus",
    "Change",
    "DeadLetter",
    "DelayedMessages",
    "Explanation",
    "GroupDescription",
    "GroupLag",
    "HalfMessage",
    "Import",
    "InGroup",
    "Member",
    "MessageTrace",
    "MessageType",
    "Metadata",
    "PolicyEntry",
    "QueueLag",
    "QueueRange",
    "QueueReset",
    "ReloadedConfig",
    "ResentLetter",
    "ResetTo",
    "Retirement",
    "TopicDescription",
    "TopicLag",
    "TopicOnBroker",
    "TracedConsumption",
    "TracedRecall",
    "TracedSend",
    "TracedTransactionEnd",
    "Unreachable",
    "Unread",
    "User",
    "WaitingTransactions",
]
