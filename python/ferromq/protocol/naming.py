"""RocketMQ's rules for the names of topics and consumer groups, and the names that belong to RocketMQ itself."""

import re

from ferromq.errors import IllegalName

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
AUTO_CREATE_TOPIC = "TBW102"
"""The template of topics that are created on first use."""
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Takes the half messages that were given up after the last check-back."""
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
SYSTEM_PREFIX = "rmq_sys_"
MEMBER_TOPIC_PREFIX = f"{SYSTEM_PREFIX}SYNC_BROKER_MEMBER_"
"""Topics through which the brokers of one name find each other."""

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
        CHECKPOINT_TOPIC,
    }
)
# The system topics that RocketMQ's clients and tools write.
_WRITTEN_BY_CLIENTS = frozenset({BENCHMARK_TOPIC, TRACE_TOPIC, CHECKPOINT_TOPIC})
TRACE_PREFIX = f"{SYSTEM_PREFIX}TRACE_DATA_"
"""Topics with the traces of one region, which clients write."""

TOOLS_GROUP = "TOOLS_CONSUMER"
"""The consumer group of RocketMQ's tools."""
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""The consumer group whose offsets show which half messages have ended."""
SYSTEM_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
"""The consumer groups of every RocketMQ broker."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]*\Z")
_TOPIC_LIMIT = 127
_RETRY_OR_DLQ_LIMIT = 255
# A group's name is part of the names of its retry and dead-letter topics.
_GROUP_LIMIT = 120
_SEPARATOR = "%"
"""Between a namespace and a name."""
# With the separator there is room for a name.
_NAMESPACE_LIMIT = _GROUP_LIMIT - 2
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


def check_topic(name: str, namespace: str = "") -> None:
    """Raise `IllegalName` with the broken rule if *name* cannot be the name of a topic in *namespace*."""
    _check_text("topic", name)
    check_namespace(namespace)
    whole = in_namespace(namespace, name)
    derived = whole.startswith((RETRY_PREFIX, DLQ_PREFIX))
    _check("topic", whole, _RETRY_OR_DLQ_LIMIT if derived else _TOPIC_LIMIT)


def check_group(name: str, namespace: str = "") -> None:
    """Raise `IllegalName` with the broken rule if *name* cannot be the name of a consumer group in *namespace*."""
    _check_text("consumer group", name)
    check_namespace(namespace)
    _check("consumer group", in_namespace(namespace, name), _GROUP_LIMIT)


def check_namespace(name: str) -> None:
    """Raise `IllegalName` with the broken rule if *name* cannot be a namespace. An empty name means no namespace."""
    _check_text("namespace", name)
    if not name:
        return
    if _SEPARATOR in name:
        raise IllegalName(f"the namespace name {name!r} has the character '%', which ends a namespace; leave it out")
    if name.startswith((SYSTEM_PREFIX, _SYSTEM_GROUP_PREFIX)):
        prefix = SYSTEM_PREFIX if name.startswith(SYSTEM_PREFIX) else _SYSTEM_GROUP_PREFIX
        raise IllegalName(f"the namespace name {name!r} begins with {prefix}, as RocketMQ's own names; choose another")
    _check("namespace", name, _NAMESPACE_LIMIT)


def in_namespace(namespace: str, name: str) -> str:
    """
    Return the whole name of a topic or group, as brokers know it: `NAMESPACE%NAME`, `%RETRY%NAMESPACE%NAME`.

    RocketMQ's own names are in no namespace. A name that has the namespace already is returned as it is.
    """
    if not namespace or not name or _is_system_name(name):
        return name
    prefix, rest = _split(name)
    return name if rest.startswith(namespace + _SEPARATOR) else f"{prefix}{namespace}{_SEPARATOR}{rest}"


def without_namespace(namespace: str, whole: str) -> str:
    """Return the name of a topic or group in *namespace*; a name that is in another one or in none, as it is."""
    prefix, rest = _split(whole)
    has_namespace = namespace and rest.startswith(namespace + _SEPARATOR)
    return prefix + rest[len(namespace) + 1 :] if has_namespace else whole


def _split(name: str) -> tuple[str, str]:
    """Return the prefix of a retry or dead-letter topic, or none, and the rest."""
    prefix = next((each for each in (RETRY_PREFIX, DLQ_PREFIX) if name.startswith(each)), "")
    return prefix, name[len(prefix) :]


def _is_system_name(name: str) -> bool:
    return is_system_topic(name) or name.startswith(_SYSTEM_GROUP_PREFIX)


def is_system_topic(name: str) -> bool:
    """Whether the topic belongs to RocketMQ itself. Users cannot create it."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)


def is_system_group(name: str) -> bool:
    """Whether the consumer group belongs to RocketMQ itself, by its name in any case, as RocketMQ's metrics see it."""
    return name in SYSTEM_GROUPS or name.upper().startswith(_SYSTEM_GROUP_PREFIX)


def is_internal_topic(name: str) -> bool:
    """Whether only brokers write to the topic. Clients can read it."""
    return is_system_topic(name) and name not in _WRITTEN_BY_CLIENTS and not name.startswith(TRACE_PREFIX)


def _check_text(kind: str, name: object) -> None:
    if not isinstance(name, str):
        raise IllegalName(f"the {kind} name is {name!r}; expected a string")


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
