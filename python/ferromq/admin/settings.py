"""The settings of topics and consumer groups in RocketMQ's fields, and how given ones differ from present ones."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, get_args

from ferromq.core.arguments import flag, whole_number
from ferromq.core.requests import seconds
from ferromq.errors import AlreadyExists
from ferromq.protocol import retry_policy
from ferromq.protocol.route import Permission

MessageType = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"]
"""The message type of a topic. A MIXED topic takes all types, if the broker's options allow such topics."""

MESSAGE_TYPE = "message.type"
_READ_WRITE = int(Permission.READ | Permission.WRITE)
TOPIC_FIELDS = ("readQueueNums", "writeQueueNums", "perm", "topicFilterType", "topicSysFlag", "order")
"""The fields of a topic that a request to create it has under the same name."""


def new_topic(name: str, queues: int) -> Mapping[str, Any]:
    """Return RocketMQ's fields of a new topic."""
    return {
        "topicName": name,
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": _READ_WRITE,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }


PERMISSIONS = {
    "rw": int(Permission.READ | Permission.WRITE),
    "r": int(Permission.READ),
    "w": int(Permission.WRITE),
    "none": int(Permission.NONE),
}
"""The permissions of a topic: read and write, one of them, or none."""


def permission_bits(text: str) -> int:
    """Return RocketMQ's bits of a permission. Raises `ValueError` for an unknown one."""
    if text not in PERMISSIONS:
        raise ValueError(f"permission is {text!r}; it may be {', '.join(PERMISSIONS)}")
    return PERMISSIONS[text]


def permission_text(bits: int) -> str:
    """Return a permission as text, without RocketMQ's mark of a template."""
    known = bits & int(Permission.READ | Permission.WRITE)
    return next(text for text, value in PERMISSIONS.items() if value == known)


def java_text(value: Any) -> str:
    """Return a value as Java writes it in a header field."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_queues(queues: int | None) -> None:
    """Raise `ConfigError` for a topic without queues, and `TypeError` for no whole number."""
    if queues is not None:
        whole_number("queues", queues, 1)


def checked_type(message_type: str | None) -> str | None:
    """Return the type in the brokers' form. Raises `ValueError` for an unknown type."""
    if message_type is None or (isinstance(message_type, str) and message_type.upper() in get_args(MessageType)):
        return None if message_type is None else message_type.upper()
    raise ValueError(f"message_type is {message_type!r}; it may be {', '.join(get_args(MessageType))}")


def type_of(topic: Mapping[str, Any]) -> str | None:
    """Return the message type of a topic, if it has one."""
    found: str | None = (topic.get("attributes") or {}).get(MESSAGE_TYPE)
    return found


def shown_topic(topic: Mapping[str, Any]) -> dict[str, Any]:
    """Return a topic's settings by the names that `create_topic` has for them."""
    reads, writes = topic.get("readQueueNums"), topic.get("writeQueueNums")
    queues = writes if reads == writes else f"{reads} to read and {writes} to write"
    return {"queues": queues, "message_type": type_of(topic)}


def policy(delays: Sequence[timedelta | float] | None) -> retry_policy.RetryPolicy | None:
    """Return the retry policy of the given delays."""
    return None if delays is None else retry_policy.parse(_retry_fields(delays))


def _retry_fields(delays: Sequence[timedelta | float]) -> dict[str, Any]:
    given: object = delays
    if not isinstance(given, Iterable):
        raise TypeError(f"retry_delays must be a sequence of durations, not {given!r}")
    delays_ms = [round(seconds(delay) * 1000) for delay in delays]
    if not delays_ms:
        raise ValueError("retry_delays is empty; give at least one delay or omit it")
    return {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": delays_ms}}


def check_group(fifo: bool | None, retries: int | None) -> None:
    """Raise `TypeError` for settings of a group of another type, and `ConfigError` for retries below 0."""
    if fifo is not None:
        flag("fifo", fifo)
    if retries is not None:
        whole_number("retries", retries, 0)


def group_fields(
    name: str, *, fifo: bool | None, retries: int | None, delays: Sequence[timedelta | float] | None
) -> dict[str, Any]:
    """Return RocketMQ's fields of the given settings."""
    check_group(fifo, retries)
    fields = {
        "groupName": name,
        "consumeMessageOrderly": fifo,
        "retryMaxTimes": retries,
        "groupRetryPolicy": None if delays is None else _retry_fields(delays),
    }
    return {field: value for field, value in fields.items() if value is not None}


def shown_group(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's settings by the names that `create_group` has for them."""
    return {
        "fifo": group.get("consumeMessageOrderly", False),
        "retries": group.get("retryMaxTimes", 16),
        "retry_delays": retry_policy.parse(group.get("groupRetryPolicy") or {}),
    }


def compare(what: str, name: str, address: str, *, present: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise `AlreadyExists` if a given setting differs from the present one. An unset one does not differ."""
    other = [
        f"{field} is {_readable(present[field])}, not {_readable(value)}"
        for field, value in given.items()
        if value is not None and present[field] is not None and value != present[field]
    ]
    if other:
        call = "alter_topic" if what == "topic" else "alter_group"
        raise AlreadyExists(f"the {what} {name} exists on {address}: {'; '.join(other)}; {call} changes it")


def _readable(value: Any) -> str:
    if isinstance(value, retry_policy.Customized):
        return str([delay / 1000 for delay in value.delays_ms])
    return str(value)
