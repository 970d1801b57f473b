"""
Compares two store directories, such as a store and its backup.

Topics, queues and messages are compared as a reader sees them, so it does not matter where a message lies in the log.
Then tables of `config/` and users, without secret keys. Memory holds the tables, and one message of each store.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ferromq._ferromq import StoredMessage, StoreDump, inspect_store
from ferromq.errors import CorruptStore
from ferromq.files import atomic
from ferromq.files.table_journal import Journal
from ferromq.protocol.java_json import loads_object
from ferromq.store_tools.verification import StorePath

_TABLES = (
    ("topic", "topics.json", "topicConfigTable"),
    ("group", "subscriptionGroup.json", "subscriptionGroupTable"),
    ("offset", "consumerOffset.json", "offsetTable"),
    ("delay", "delayOffset.json", "offsetTable"),
)
_Row: TypeAlias = tuple[int, object]
"""Queue offset, and what is compared of its message."""
_States: TypeAlias = tuple[str, str]
"""How a message is in each store: `present`, `damaged`, `lost` or `missing`."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that differs between two stores."""

    kind: str
    """`messages`, `queue`, `topic`, `group`, `offset`, `delay` or `user`."""
    name: str
    """A topic, a group, `TOPIC@GROUP`, `LEVEL` or a user; of a queue `TOPIC/QUEUE`."""
    first: Any
    """What the first store has; None if it lacks it. Of `messages`: first and last queue offset, and their state."""
    second: Any


def diff(first: StorePath, second: StorePath) -> Iterator[Difference]:
    """
    Yield what differs between two store directories, each with its log in `DIR/commitlog`.

    Only reads, and takes no lock; in an open store, what is written meanwhile may differ. Raises `StoreError` if one is
    no store directory, and `CorruptStore` if a table of it cannot be read.
    """
    ours, theirs = Path(first), Path(second)
    queues = _queues(ours), _queues(theirs)
    for queue in sorted({*queues[0], *queues[1]}):
        yield from _queue_differences((ours, theirs), queue, queues[0].get(queue), queues[1].get(queue))
    tables = _tables(ours), _tables(theirs)
    for kind in tables[0]:
        one, other = tables[0][kind], tables[1][kind]
        for name in sorted({*one, *other}):
            left, right = one.get(name), other.get(name)
            if left != right:
                yield Difference(kind, name, _without_secret(left, right), _without_secret(right, left))


# --- messages ----------------------------------------------------------------------------------------------------


def _queues(directory: Path) -> dict[tuple[str, int], tuple[int, int]]:
    """Return min and max offset of each queue."""
    topics = inspect_store(str(directory))["topics"]
    return {
        (topic, queue["queue_id"]): (queue["min_offset"], queue["max_offset"])
        for topic, queues in topics.items()
        for queue in queues
    }


def _queue_differences(
    directories: tuple[Path, Path],
    name: tuple[str, int],
    one: tuple[int, int] | None,
    other: tuple[int, int] | None,
) -> Iterator[Difference]:
    shown = f"{name[0]}/{name[1]}"
    if one != other:
        yield Difference("queue", shown, one and list(one), other and list(other))
    if one is None or other is None:
        return
    begin, end = max(one[0], other[0]), min(one[1], other[1])
    if begin >= end:
        return
    pairs = _pairs(_rows(directories[0], name, begin, end), _rows(directories[1], name, begin, end))
    differing = ((offset, _states(ours, theirs)) for offset, ours, theirs in pairs if ours != theirs)
    for start, end, (ours, theirs) in _runs(differing):
        yield Difference("messages", shown, [start, end, ours], [start, end, theirs])


def _runs(differing: Iterator[tuple[int, _States]]) -> Iterator[tuple[int, int, _States]]:
    """Join neighbours that differ in the same way: first and last offset, and the states."""
    run: tuple[int, int, _States] | None = None
    for offset, states in differing:
        if run is not None and run[1:] == (offset - 1, states):
            run = run[0], offset, states
            continue
        if run is not None:
            yield run
        run = offset, offset, states
    if run is not None:
        yield run


def _rows(directory: Path, name: tuple[str, int], begin: int, end: int) -> Iterator[_Row]:
    for row in StoreDump(str(directory), name[0], queue_id=name[1], from_offset=begin, to_offset=end):
        match row:
            case (StoredMessage() as message, bool(is_sound)):
                yield message.queue_offset, _compared(message) if is_sound else "damaged"
            case (int(), int(offset), str()):
                yield offset, "lost"


def _compared(message: StoredMessage) -> tuple[object, ...]:
    return (
        *(message.body, message.properties, message.flag, message.sys_flag, message.reconsume_times),
        *(message.born_timestamp, message.born_host, message.store_timestamp, message.store_host),
    )


def _pairs(ours: Iterator[_Row], theirs: Iterator[_Row]) -> Iterator[tuple[int, object, object]]:
    """Join two queues by offset; None for a missing message."""
    one, other = next(ours, None), next(theirs, None)
    while one is not None or other is not None:
        offset = min(row[0] for row in (one, other) if row is not None)
        left = right = None
        if one is not None and one[0] == offset:
            left, one = one[1], next(ours, None)
        if other is not None and other[0] == offset:
            right, other = other[1], next(theirs, None)
        yield offset, left, right


def _states(ours: object, theirs: object) -> _States:
    return _state(ours), _state(theirs)


def _state(found: object) -> str:
    return found if isinstance(found, str) else "missing" if found is None else "present"


# --- tables ------------------------------------------------------------------------------------------------------


def _tables(directory: Path) -> dict[str, dict[str, Any]]:
    tables = {kind: _table(directory, file, key) for kind, file, key in _TABLES}
    tables["user"] = _users(directory)
    return tables


def _read(*paths: Path) -> tuple[dict[str, Any], bytes]:
    """Return the object in the first of some files that has one, and its bytes; writes nothing."""
    failure: ValueError | None = None
    for candidate in paths:
        try:
            content = candidate.read_bytes()
            return loads_object(content), content
        except FileNotFoundError:
            continue
        except ValueError as error:
            failure = failure or error
    if failure is not None:
        raise CorruptStore(f"{paths[0]} is not a JSON object: {failure}; take it from a backup of the store")
    return {}, b""


def _table(directory: Path, file: str, key: str) -> dict[str, Any]:
    path = directory / "config" / file
    found, raw = _read(path, atomic.backup_of(path))
    table = found.get(key) or {}
    if not isinstance(table, dict):
        raise CorruptStore(f"{path} has no table {key}")
    journal = Journal(directory / "ferromq" / f"{Path(file).stem}.journal")
    for change in journal.read(raw, lambda _changes: True):
        table.update(change["put"])
    return {str(name): entry for name, entry in table.items() if entry is not None}


def _users(directory: Path) -> dict[str, Any]:
    path = directory / "ferromq" / "access.json"
    # Its backup lacks the last change, which may have revoked a right.
    users = _read(path)[0].get("users") or []
    if not isinstance(users, list) or not all(isinstance(user, dict) for user in users):
        raise CorruptStore(f"{path} has no list of users")
    return {str(user.get("username")): user for user in users}


def _without_secret(entry: Any, other: Any) -> Any:
    """Return an entry to show: whether its secret key differs from the other's, but not the key."""
    if not isinstance(entry, dict) or "password" not in entry:
        return entry
    is_same = isinstance(other, dict) and other.get("password") == entry["password"]
    return {**entry, "password": "same" if is_same else "differs"}
