"""
What the tables of topics and of groups share: one file of RocketMQ, one version, changes one after the other.

Which entries there may be, and what has to be told to others, is decided by `topics` and `groups`.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from ferromq import _json
from ferromq.errors import CorruptStore
from ferromq.route import DataVersion

_log = logging.getLogger("ferromq.broker")

T = TypeVar("T")
R = TypeVar("R")

Entries = Mapping[str, T]
"""The entries by name. A table never changes one it gave away."""


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How entries lie in a file of RocketMQ."""

    what: str
    """What the entries are, for errors."""
    key: str
    """The field of the file that holds them."""
    read: Callable[[str, Mapping[str, Any]], T]
    """Raises `ValueError`, `TypeError`, `AttributeError` or `OverflowError` for what is no entry."""
    show: Callable[[T], Mapping[str, Any]]
    others: tuple[str, ...] = ()
    """Further fields of the file, each a table of its own."""


@dataclass(frozen=True, slots=True)
class Content(Generic[T]):
    """What a table holds at one moment."""

    version: DataVersion
    entries: Entries[T]
    others: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the file."""

    def page(self, first: int, count: int) -> dict[str, T]:
        """Return *count* entries in the order of their names, from number *first* on."""
        names = sorted(self.entries)[max(first, 0) : max(first, 0) + max(count, 0)]
        return {name: self.entries[name] for name in names}


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What becomes of a table."""

    put: Mapping[str, T | None] = field(default_factory=dict)
    """Entries to put; None removes one."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Further fields to replace."""
    version: DataVersion | None = None
    """The version after it; None: the next one."""

    def __bool__(self) -> bool:
        return bool(self.put or self.others or self.version)


class MetadataTable(Generic[T]):
    """
    Entries by name, and RocketMQ's file of them; thread-safe.

    A change is decided and written under one lock, so two of them never overwrite each other; it is on disk before
    `push` hears of it, and `push` hears of changes in their order. An entry of the file that may not be is logged and
    left out; so is one `push` refuses, which the hot path does not have then. Both stay in the file. Raises
    `CorruptStore` where the file is there and neither it nor its `.bak` can be read.
    """

    def __init__(
        self,
        path: Path,
        form: Form[T],
        now_ms: Callable[[], int],
        push: Callable[[str, T | None], None],
    ) -> None:
        self._path = path
        self._form = form
        self._now_ms = now_ms
        self._push = push
        self._lock = threading.Lock()
        # Each entry as it lies in the file: a change encodes what it changes, not the whole table.
        self._lines: dict[str, str] = {}
        # What lies in the file and may not be: kept, until an entry of that name is put.
        self._unread: dict[str, str] = {}
        self._content = self._load()

    @property
    def content(self) -> Content[T]:
        """What the table holds now."""
        return self._content

    def seed(self, entries: Entries[T], absent: frozenset[str], now: int) -> None:
        """Add what is missing of *entries*, take *absent* away; at the start, and written with the next change."""
        content = self._content
        missing = {name: entry for name, entry in entries.items() if name not in content.entries}
        kept = {name: entry for name, entry in content.entries.items() if name not in absent}
        version = content.version.next(now) if missing else content.version
        self._content = Content(version, {**kept, **missing}, content.others)

    def change(self, decide: Callable[[Content[T]], Change[T]]) -> tuple[Content[T], list[str]]:
        """
        Do what *decide* says of the present content; return the content after it, and the names that changed.

        Entries that would be as they are do not count; where nothing is left, nothing is written. What *decide* raises
        is raised, and nothing is changed.
        """
        with self._lock:
            content = self._content
            change = decide(content)
            put = {name: entry for name, entry in change.put.items() if entry != content.entries.get(name)}
            others = {name: value for name, value in change.others.items() if value != content.others.get(name)}
            if not put and not others and change.version in {None, content.version}:
                return content, []
            entries = {**content.entries, **{name: entry for name, entry in put.items() if entry is not None}}
            for name in [name for name, entry in put.items() if entry is None]:
                del entries[name]
            version = change.version or content.version.next(self._now_ms())
            changed = Content(version, entries, {**content.others, **others})
            self._write(changed, put)
            self._content = changed
            for name, entry in put.items():
                self._push_one(name, entry)
        return changed, list(put)

    def while_absent(self, name: str, act: Callable[[], R]) -> R | None:
        """Call *act* where there is no entry of this name, and let none come while it runs."""
        with self._lock:
            return act() if name not in self._content.entries else None

    def push_again(self, name: str) -> bool:
        """Push an entry for somebody who met it missing a moment ago; say whether there is one."""
        with self._lock:
            entry = self._content.entries.get(name)
            return entry is not None and self._push_one(name, entry)

    def push_all(self) -> None:
        """Push every entry."""
        with self._lock:
            for name, entry in self._content.entries.items():
                self._push_one(name, entry)

    def _push_one(self, name: str, entry: T | None) -> bool:
        """Push an entry, and say whether it was taken. It is on disk: refusing to go on would refuse every start."""
        try:
            self._push(name, entry)
        except (ValueError, OverflowError, TypeError) as error:
            _log.error("%s: entry not served name=%r: %s; put it anew", self._path.name, name, error)
            self._push(name, None)
            return False
        return True

    def _load(self) -> Content[T]:
        form = self._form
        try:
            found = _json.read_file(self._path) or {}
            table = found.get(form.key) or {}
            entries = {name: entry for name, entry in map(self._read, table.items()) if entry is not None}
            version = DataVersion.from_json(found.get("dataVersion"))
            others = {name: dict(found.get(name) or {}) for name in form.others}
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptStore(f"{self._path} is no table of {form.what}: {error}; restore it from its .bak") from error
        return Content(version, entries, others)

    def _read(self, item: tuple[str, Any]) -> tuple[str, T | None]:
        name, value = item
        try:
            entry = self._form.read(name, value)
            # What could not be written again would keep every later change from the disk.
            self._lines[name] = self._line(name, entry)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            _log.error("%s: entry left out name=%r: %s; put it anew", self._path, name, error)
            self._unread[name] = f"\t\t{json.dumps(name)}:{json.dumps(value)}"
            return name, None
        return name, entry

    def _write(self, content: Content[T], put: Mapping[str, T | None]) -> None:
        known = {name: line for name, line in self._lines.items() if name not in put}
        lines = {name: known.get(name) or self._line(name, entry) for name, entry in content.entries.items()}
        fields = [f'\t"dataVersion":{_text(content.version.to_json())}']
        fields += [f'\t"{name}":{_text(value)}' for name, value in content.others.items()]
        unread = {name: line for name, line in self._unread.items() if name not in lines}
        shown = {**unread, **lines}
        entries = ",\n".join(shown[name] for name in sorted(shown))
        fields.append(f'\t"{self._form.key}":{{\n{entries}\n\t}}')
        _json.replace_file(self._path, ("{\n" + ",\n".join(fields) + "\n}\n").encode())
        self._lines, self._unread = lines, unread

    def _line(self, name: str, entry: T) -> str:
        return f"\t\t{_text(name)}:{_text(self._form.show(entry))}"


def _text(value: Any) -> str:
    return _json.dumps(value).decode()
