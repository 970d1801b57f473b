"""Messages: a search by id, key, place or time, and one of them with what became of it."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from ferromq._ferromq import StoredMessage
from ferromq.admin import InGroup, MessageTrace, Unreachable
from ferromq.aio import Admin
from ferromq.dashboard.bodies import Body, preview, shown
from ferromq.dashboard.cluster import Busy
from ferromq.dashboard.forms import Fields, WrongInput
from ferromq.dashboard.problems import NotFound
from ferromq.dashboard.view import Page, View, Visit
from ferromq.errors import FerromqError, OutcomeUnknown, TopicNotFound

_MOST = 50
PART = 4
"""Messages whose bodies are held at a time."""
_MOST_PROPERTIES = 500
_MOST_TRACED = 100
"""Records of each kind of event."""
T = TypeVar("T")
STATES = {
    "dead": "dead letter",
    "retrying": "waits for its next delivery",
    "leased": "a consumer has it, or gave it back; no other delivery",
    "ready": "not acknowledged, and not leased; a consumer that pulls may have it",
    "acknowledged": "acknowledged, or left out by a filter; an earlier message is not",
    "behind": "behind the group: acknowledged, left out by a filter, or skipped",
    "pending": "not acknowledged; whether it is handed out now, its broker does not tell",
    "unread": "the group has committed no offset of this queue",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A message in a list, without its body: many of the largest bodies would not fit into memory."""

    message_id: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    store_host: str
    tag: str | None
    keys: tuple[str, ...]
    preview: str
    real_topic: str | None

    @classmethod
    def of(cls, message: StoredMessage) -> "Row":
        """Take what a list shows of a message."""
        return cls(
            message.message_id,
            message.queue_id,
            message.queue_offset,
            message.store_timestamp,
            message.store_host,
            message.tag,
            tuple(message.keys),
            preview(message),
            message.properties.get("REAL_TOPIC"),
        )


@dataclass(frozen=True, slots=True)
class _Whole:
    """A message with what its page shows of its body."""

    message_id: str
    queue_id: int
    queue_offset: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    tag: str | None
    keys: tuple[str, ...]
    reconsume_times: int
    body: Body
    properties: Mapping[str, str]

    @classmethod
    def of(cls, message: StoredMessage) -> "_Whole":
        """Take what the page shows of a message."""
        return cls(
            message.message_id,
            message.queue_id,
            message.queue_offset,
            message.born_timestamp,
            message.born_host,
            message.store_timestamp,
            message.store_host,
            message.tag,
            tuple(message.keys),
            message.reconsume_times,
            shown(message),
            dict(itertools.islice(sorted(message.properties.items()), _MOST_PROPERTIES)),
        )


async def _messages(visit: Visit) -> View:
    query = visit.query
    topic = query.text("topic")
    unreachable: list[Unreachable] = []
    found = await _search(visit, topic, query, unreachable) if topic else []
    names = ("topic", "id", "key", "queue", "offset", "broker", "since")
    given = {name: query.text(name) for name in names}
    context = {"given": given, "rows": found, "is_search": bool(topic), "most": _MOST, "unreachable": unreachable}
    return View({**context, "is_narrow": any(given[name] for name in names if name != "topic")})


async def _search(visit: Visit, topic: str, query: Fields, unreachable: list[Unreachable]) -> list[Row]:
    """Return what the first filled field finds; without one the newest messages."""
    identity, key, queue = query.text("id"), query.text("key"), query.number("queue")
    if queue is None and (query.text("offset") or query.text("broker")):
        raise WrongInput("an offset and a broker belong to a queue; fill in the queue, too")
    if identity:
        one = await visit.cluster.read(lambda admin: _by_id(admin, topic, identity, Row.of, unreachable))
        return [] if one is None else [one]
    if key:
        return await visit.cluster.read(lambda admin: _by_key(admin, topic, key, unreachable))
    if queue is not None:
        offset, broker = query.number("offset") or 0, query.text("broker") or None
        return await visit.cluster.read(lambda admin: _by_place(admin, topic, queue, offset, broker))
    since = query.time("since")
    return await visit.cluster.read(lambda admin: first(admin, topic, Row.of, _MOST, unreachable, since=since))


async def _by_id(
    admin: Admin,
    topic: str,
    identity: str,
    made: Callable[[StoredMessage], T],
    unreachable: list[Unreachable],
) -> T | None:
    found = await admin.query_by_id(topic, identity, unreachable=unreachable)
    return None if found is None else made(found)


async def _by_key(admin: Admin, topic: str, key: str, unreachable: list[Unreachable]) -> list[Row]:
    return [Row.of(each) for each in await admin.query_by_key(topic, key, _MOST, unreachable=unreachable)]


async def _by_place(admin: Admin, topic: str, queue: int, offset: int, broker: str | None) -> list[Row]:
    """Return rows of a queue; a few messages are read at a time, as bodies may be large."""
    rows: list[Row] = []
    while len(rows) < _MOST:
        count = min(PART, _MOST - len(rows))
        found = await admin.query_by_offset(topic, queue, offset, count, broker=broker)
        if not found:
            break
        rows += map(Row.of, found)
        offset = found[-1].queue_offset + 1
    return rows


async def first(
    admin: Admin,
    topic: str,
    row: Callable[[StoredMessage], T],
    most: int,
    unreachable: list[Unreachable],
    *,
    since: datetime | None = None,
) -> list[T]:
    """Return a row of each of the first messages since a time, or else of the newest ones; bodies go as they come."""
    found = []
    async for message in admin.browse(topic, since=since, newest_first=since is None, unreachable=unreachable):
        found.append(row(message))
        if len(found) == most:
            break
    return found


async def _message(visit: Visit) -> View:
    topic, queue = visit.query.needed("topic"), visit.query.number("queue")
    ends = visit.cluster.ends()
    unreachable: list[Unreachable] = []
    found: _Whole | None
    if queue is not None:
        found = await _at_place(visit, topic, queue, ends)
    else:
        wanted = visit.query.needed("id")
        found = await visit.cluster.read(lambda admin: _by_id(admin, topic, wanted, _Whole.of, unreachable))
    if found is None:
        raise NotFound(f"{topic:.100} has no such message; it may be deleted, or not be indexed yet")
    groups, failure = await _explained(visit, topic, found.message_id, ends, unreachable)
    context = {"topic": topic, "message": found, "groups": groups, "groups_error": failure, "states": STATES}
    context["unreachable"] = list({each.address: each for each in unreachable}.values())
    trace: MessageTrace | None = None
    # A server that did not answer would most likely keep the place of a read again.
    if not isinstance(failure, Busy | OutcomeUnknown):
        trace, failure = await _traced(visit, found.message_id, ends)
    return View({**context, "trace": trace, "trace_error": failure, "most_traced": _MOST_TRACED})


async def _at_place(visit: Visit, topic: str, queue: int, ends: float) -> _Whole | None:
    """
    Return the message at an offset of a queue.

    Its broker may be registered by another address than the one that it stored with the message, so a link has the id,
    too, by which the message is known at any broker.
    """
    offset, broker = visit.query.needed_number("offset"), visit.query.text("broker") or None
    identity = visit.query.text("id")

    async def read(admin: Admin, address: str | None) -> _Whole | None:
        found = await admin.query_by_offset(topic, queue, offset, 1, broker=address)
        is_it = bool(found) and found[0].queue_offset == offset and identity in {"", found[0].message_id}
        return _Whole.of(found[0]) if is_it else None

    async def at(address: str | None) -> _Whole | None:
        return await visit.cluster.read(lambda admin: read(admin, address), ends)

    if not broker or not identity:
        return await at(broker)
    failure: FerromqError | None = None
    known = await visit.cluster.ask(lambda admin: admin.cluster(figures=False))
    for address in sorted((each.address for each in known), key=lambda address: address != broker):
        try:
            if (message := await at(address)) is not None:
                return message
        except (TopicNotFound, OutcomeUnknown) as error:
            failure = error
    if failure is not None:
        raise failure
    return None


async def _explained(
    visit: Visit, topic: str, identity: str, ends: float, unreachable: list[Unreachable]
) -> tuple[tuple[InGroup, ...] | None, FerromqError | None]:
    """Return what became of a message in each group, or why this is not known; neither if it is not indexed."""

    async def groups(admin: Admin) -> tuple[InGroup, ...] | None:
        found = await admin.explain(topic, identity, unreachable=unreachable)
        return None if found is None else found.groups

    try:
        return await visit.cluster.read(groups, ends), None
    except FerromqError as error:
        return None, error


async def _traced(visit: Visit, identity: str, ends: float) -> tuple[MessageTrace | None, FerromqError | None]:
    """Return what clients traced of a message, or why this is not known; neither where no client traces."""
    try:
        return await visit.cluster.read(lambda admin: admin.trace(identity), ends), None
    except TopicNotFound:
        return None, None
    except FerromqError as error:
        return None, error


PAGES = (
    Page("/messages", "messages.html", _messages, is_live=False),
    Page("/message", "message.html", _message, is_live=False),
)
