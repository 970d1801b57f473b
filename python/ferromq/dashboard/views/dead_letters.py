"""Dead letters of groups, and sending them again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ferromq.admin import DeadLetter
from ferromq.aio import Admin
from ferromq.dashboard.forms import Fields, WrongInput
from ferromq.dashboard.problems import NotFound
from ferromq.dashboard.view import Action, Done, Page, View, Visit, link, sliced
from ferromq.dashboard.views.messages import PART, Row
from ferromq.errors import FerromqError
from ferromq.protocol import naming

_ROWS, _LETTERS = 25, 100
_PARTS = 3
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Row:
    """A dead letter in a list, without its body."""

    message: Row
    topic: str | None
    attempts: int
    reason: str | None
    exception: str | None
    name: str
    """By which a form chooses it."""

    @classmethod
    def of(cls, letter: DeadLetter) -> "_Row":
        """Take what a list shows of a letter."""
        message = letter.message
        name = f"{letter.broker}|{message.queue_id}|{message.queue_offset}"
        return cls(Row.of(message), letter.topic, letter.attempts, letter.reason, letter.exception, name)


async def _index(visit: Visit) -> View:
    names = await visit.cluster.ask(lambda admin: admin.topics())
    groups = [name.removeprefix(naming.DLQ_PREFIX) for name in names if name.startswith(naming.DLQ_PREFIX)]
    rows = sliced(groups, visit.query, _ROWS)
    found = await visit.cluster.ask_each(rows.items, lambda admin, name: admin.describe_topic(naming.DLQ_PREFIX + name))
    counts = [None if isinstance(each, FerromqError) else each.messages for each in found]
    return View({"rows": rows, "groups": list(zip(rows.items, counts, strict=True))})


async def _letters(visit: Visit) -> View:
    group = visit.query.needed("group")
    rows = await visit.cluster.read(lambda admin: _newest(admin, group))
    return View({"group": group, "rows": rows, "most": _LETTERS})


async def _newest(admin: Admin, group: str) -> list[_Row]:
    found = []
    async for letter in admin.dead_letters(group):
        found.append(_Row.of(letter))
        if len(found) == _LETTERS:
            break
    return found


def _chosen(fields: Fields) -> list[tuple[str, int, int]]:
    """Return the places of the letters that a form names. Raises `WrongInput` without one."""
    names = list(dict.fromkeys(fields.all("letter")))
    if not 1 <= len(names) <= _LETTERS:
        raise WrongInput(f"choose 1 to {_LETTERS} dead letters")
    return [_place(name) for name in names]


def _place(name: str) -> tuple[str, int, int]:
    parts = name.split("|")
    if len(parts) != _PARTS or not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts[1:]):  # noqa: PLR2004
        raise WrongInput(f"{name!r:.60} names no dead letter; load the page again")
    return parts[0], int(parts[1]), int(parts[2])


async def _read(
    admin: Admin, group: str, places: list[tuple[str, int, int]], made: Callable[[DeadLetter], T]
) -> list[T]:
    """Return what is made of each letter. Raises `NotFound` for one that is gone."""
    topic = naming.DLQ_PREFIX + group
    letters = []
    for broker, queue_id, offset in places:
        found = await admin.query_by_offset(topic, queue_id, offset, 1, broker=broker)
        if not found or found[0].queue_offset != offset:
            raise NotFound(f"the dead letter at offset {offset} of queue {queue_id} is gone; load the page again")
        whole = found[0].topic.removeprefix(naming.DLQ_PREFIX)
        letters.append(made(DeadLetter(group, found[0], broker, whole.removesuffix(group).removesuffix("%"))))
    return letters


async def _ask_resend(visit: Visit, fields: Fields) -> View:
    group, places = fields.needed("group"), _chosen(fields)
    return View({"group": group, "rows": await visit.cluster.read(lambda admin: _read(admin, group, places, _Row.of))})


async def _resend(visit: Visit, form: Fields) -> Done:
    group, places, topic = form.needed("group"), _chosen(form), form.text("topic") or None

    async def send(admin: Admin) -> list[FerromqError]:
        await _read(admin, group, places, lambda _letter: None)  # if one is gone, none is sent
        failures: list[FerromqError] = []
        for begin in range(0, len(places), PART):
            try:
                letters = await _read(admin, group, places[begin : begin + PART], lambda letter: letter)
            except FerromqError as error:
                return failures + [error] * (len(places) - begin)
            results = await admin.resend_dead_letters(letters, topic=topic)
            failures += (each.error for each in results if each.error is not None)
            if any(each.is_unanswered for each in results):
                return failures + failures[-1:] * (len(places) - begin - len(letters))
        return failures

    failures = await visit.cluster.read(send)
    said = f"sent {len(places) - len(failures)} of {len(places)} dead letters again"
    if failures:
        said += f"; the first failure: {failures[0]}"
    return Done(said, link("/dead-letters/group", group=group))


PAGES = (
    Page("/dead-letters", "dead_letters.html", _index, is_live=False),
    Page("/dead-letters/group", "dead_letters_group.html", _letters, is_live=False),
)
ACTIONS = (Action("/dead-letters/resend", "dead_letters_resend.html", _ask_resend, _resend),)
