"""What the pages have in common: a visit, a view, a page, an action."""

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from ferromq.dashboard.cluster import Cluster
from ferromq.dashboard.forms import Fields
from ferromq.dashboard.sessions import Session

T = TypeVar("T")
Counts = Mapping[Hashable, int]
"""A counter by its parts, such as the brokers of a topic. A rate is that of the parts that two samples have."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request, and who makes it."""

    url: str
    """Path and query."""
    query: Fields
    cluster: Cluster
    session: Session | None
    token: str
    """What forms carry."""
    may_change: bool
    may_change_name_servers: bool
    """Name servers have no access control, so no sign-in is enough."""
    theme: str
    said: str
    """What the last action did, told once."""


@dataclass(frozen=True, slots=True)
class View:
    """What a page shows now."""

    context: Mapping[str, Any]
    figures: Mapping[str, float] = field(default_factory=dict)
    """What charts draw, by name."""
    counters: Mapping[str, Counts] = field(default_factory=dict)
    """What charts draw the rate of, per second."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its path, its template, and what it loads."""

    path: str
    template: str
    load: Callable[[Visit], Awaitable[View]]
    is_live: bool = True


@dataclass(frozen=True, slots=True)
class Done:
    """An action is done: what to tell, and where to go on."""

    said: str
    location: str


@dataclass(frozen=True, slots=True)
class Action:
    """A change: the page that asks for it, and what does it."""

    path: str
    template: str
    ask: Callable[[Visit, Fields], Awaitable[View]]
    do: Callable[[Visit, Fields], Awaitable[Done]]


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """A page of a long list, after the filter."""

    items: Sequence[T]
    number: int
    """The page, from 1."""
    pages: int
    total: int
    """Of all pages."""
    words: str
    """The filter."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The cluster that a page is about."""

    name: str | None
    """None: the only one that the servers know."""
    names: Sequence[str] = ()
    """All clusters, if there are several."""


async def cluster_names(visit: Visit) -> list[str]:
    """Return the names of all clusters that the servers know, sorted."""
    brokers = await visit.cluster.ask(lambda admin: admin.cluster(figures=False))
    return sorted({broker.cluster for broker in brokers})


async def chosen_cluster(visit: Visit, fields: Fields) -> Choice:
    """Return the cluster that *fields* name, or else the first one of several."""
    names, wanted = await cluster_names(visit), fields.text("cluster") or None
    return Choice(wanted or names[0], names) if len(names) > 1 else Choice(wanted)


def counted(parts: Iterable[tuple[Hashable, int]]) -> Counts:
    """Return the sum of each part."""
    sums: Counter[Hashable] = Counter()
    for part, number in parts:
        sums[part] += number
    return sums


def sliced(names: Sequence[str], query: Fields, size: int) -> Slice[str]:
    """Return the page of the list that the query asks for, of the names that have all words of its filter."""
    words = query.text("filter")
    parts = words.lower().split()
    found = [name for name in names if all(part in name.lower() for part in parts)] if parts else names
    pages = max(1, -(-len(found) // size))
    number = min(query.number("page", least=1) or 1, pages)
    return Slice(found[(number - 1) * size : number * size], number, pages, len(found), words)


def link(path: str, **fields: object) -> str:
    """Return a path with a query of the fields that have a value."""
    given = {name.rstrip("_"): value for name, value in fields.items() if value not in {None, ""}}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path
