"""
RocketMQ's rules for the names of topics and consumer groups.

Whether a name exists, and may be created, is decided by `broker.topics`.
"""

import re

from ferromq.errors import IllegalName

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
AUTO_CREATE_TOPIC = "TBW102"
"""The topic whose permission says that others may be created on first use."""
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where half messages go whose producers were asked too often."""
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
SYSTEM_PREFIX = "rmq_sys_"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        OP_TOPIC,
        DISCARD_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        "CHECKPOINT_TOPIC",
    }
)
# What RocketMQ's clients and tools write themselves: benchmarks, traces, marks of when something was.
_WRITTEN_BY_CLIENTS = frozenset({BENCHMARK_TOPIC, TRACE_TOPIC, "CHECKPOINT_TOPIC"})
# Of the names with the prefix, those that clients write: their traces, a topic for each region.
TRACE_PREFIX = f"{SYSTEM_PREFIX}TRACE_DATA_"

TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group RocketMQ's tools read with."""
SYSTEM_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
"""The consumer groups every RocketMQ broker has."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]*\Z")
_TOPIC_LIMIT = 127
_RETRY_OR_DLQ_LIMIT = 255
# A group's name becomes part of its retry and dead-letter topics.
_GROUP_LIMIT = 120


def check_topic(name: str) -> None:
    """Raise `IllegalName`, with the rule that is broken, unless *name* may be the name of a topic."""
    _check_text("topic", name)
    derived = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    _check("topic", name, _RETRY_OR_DLQ_LIMIT if derived else _TOPIC_LIMIT)


def check_group(name: str) -> None:
    """Raise `IllegalName`, with the rule that is broken, unless *name* may be the name of a consumer group."""
    _check("consumer group", name, _GROUP_LIMIT)


def is_system_topic(name: str) -> bool:
    """Say whether *name* belongs to RocketMQ itself; users may not create it."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)


def is_internal_topic(name: str) -> bool:
    """Say whether only brokers themselves write to the topic; clients may read it."""
    return is_system_topic(name) and name not in _WRITTEN_BY_CLIENTS and not name.startswith(TRACE_PREFIX)


def _check_text(kind: str, name: object) -> None:
    if not isinstance(name, str):
        raise IllegalName(f"the {kind} name is {name!r}; a text is expected")


def _check(kind: str, name: str, limit: int) -> None:
    _check_text(kind, name)
    if not name.strip():
        raise IllegalName(f"the {kind} name is empty; give it 1 to {limit} letters, digits, or _ - % |")
    if len(name) > limit:
        raise IllegalName(
            f"the {kind} name {name[:40]!r}… has {len(name)} characters, the limit is {limit}; shorten it"
        )
    if not _LEGAL.match(name):
        wrong = next(character for character in name if not _LEGAL.match(character))
        raise IllegalName(
            f"the {kind} name {name!r} has the character {wrong!r}; allowed are letters a-z A-Z, digits and _ - % |"
        )
