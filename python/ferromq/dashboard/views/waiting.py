"""Messages that wait: transactions for their end, delayed messages for their time."""

import time
from dataclasses import dataclass

from ferromq._ferromq import StoredMessage
from ferromq.admin import Unreachable
from ferromq.dashboard.bodies import preview
from ferromq.dashboard.view import Page, View, Visit
from ferromq.dashboard.views.messages import Row, first
from ferromq.errors import FerromqError, TopicNotFound
from ferromq.protocol import naming

_MOST_HALVES, _MOST_TIMED, _ROWS = 200, 500, 100
_SPANS = (("within a minute", 60), ("within an hour", 3600), ("within a day", 86_400), ("later", None))
_DUE = "TIMER_OUT_MS"
_DELETED = "TIMER_DEL_UNIQKEY"


async def _transactions(visit: Visit) -> View:
    found = await visit.cluster.read(lambda admin: admin.waiting_transactions(_MOST_HALVES))
    rows = [(half, preview(half.message)) for half in found.messages]
    return View({"found": found, "rows": rows, "most": _MOST_HALVES, "half_topic": naming.HALF_TOPIC})


async def _delayed(visit: Visit) -> View:
    counts = await visit.cluster.ask(lambda admin: admin.delayed_messages())
    unlisted: list[Unreachable] = []
    due, is_part = await _due(visit, unlisted) if counts.topics else ([], False)
    unlisted = [each for each in unlisted if each.address not in {known.address for known in counts.unreachable}]
    now = time.time() * 1000
    spans = []
    begin = 0.0
    for title, seconds in _SPANS:
        end = float("inf") if seconds is None else now + seconds * 1000
        spans.append((title, sum(begin <= at < end for at, _ in due)))
        begin = end
    context = {
        "counts": counts,
        "rows": due[:_ROWS],
        "spans": spans,
        "is_part": is_part,
        "unlisted": unlisted,
        "newest": _MOST_TIMED,
    }
    return View({**context, "levels": await _levels(visit) if counts.levels else [], "topic": naming.TIMER_TOPIC})


@dataclass(frozen=True, slots=True)
class _Timed:
    """A record of the timer."""

    row: Row
    due: int | None
    """Milliseconds since 1970; None: it is no message that waits."""
    recalled: str | None
    """The id of the message that it calls back."""

    @classmethod
    def of(cls, message: StoredMessage) -> "_Timed":
        text, recalled = message.properties.get(_DUE, ""), message.properties.get(_DELETED)
        is_due = recalled is None and text.isascii() and text.isdecimal() and len(text) < 20  # noqa: PLR2004
        return cls(Row.of(message), int(text) if is_due else None, recalled and recalled.rpartition("+")[2])


async def _due(visit: Visit, unreachable: list[Unreachable]) -> tuple[list[tuple[int, Row]], bool]:
    """Return the messages of the timer's newest records that are not due yet, the next one first."""
    try:
        found = await visit.cluster.read(
            lambda admin: first(admin, naming.TIMER_TOPIC, _Timed.of, _MOST_TIMED, unreachable)
        )
    except TopicNotFound:
        return [], False
    recalled = {each.recalled for each in found}
    now = time.time() * 1000
    due: dict[str, tuple[int, Row]] = {}
    for each in found:
        if each.due is not None and each.due > now and each.row.message_id not in recalled:
            due.setdefault(each.row.message_id, (each.due, each.row))
    return sorted(due.values(), key=lambda pair: pair[0]), len(found) == _MOST_TIMED


async def _levels(visit: Visit) -> list[str]:
    """Return the delay of each level, as a broker tells them; none if it does not."""
    try:
        brokers = await visit.cluster.ask(lambda admin: admin.cluster())
        address = next((each.address for each in brokers if each.error is None), None)
        if address is None:
            return []
        options = await visit.cluster.ask(lambda admin: admin.broker_config(address))
    except FerromqError:
        return []
    return options.get("messageDelayLevel", "").split()


PAGES = (
    Page("/transactions", "transactions.html", _transactions),
    Page("/delayed", "delayed.html", _delayed),
)
