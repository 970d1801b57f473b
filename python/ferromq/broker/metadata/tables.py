"""
The mechanism behind the tables of topics and groups: one RocketMQ file, one version, ordered changes.

`topics` and `groups` decide which entries are valid, and whom to notify of a change.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from ferromq._ferromq import blocking
from ferromq.errors import CorruptStore
from ferromq.files import atomic, json_file
from ferromq.files.table_journal import Changes, Journal
from ferromq.protocol import java_json
from ferromq.protocol.route import DataVersion

_log = logging.getLogger("ferromq.broker")

T = TypeVar("T")
R = TypeVar("R")

_SMALL = 256
"""The largest table that is written whole with each change."""
_STEPS = 256
"""The number of latest changes whose names are remembered."""

Entries = Mapping[str, T]
"""The entries by name; never modified after a table returned it."""


@dataclass(frozen=True, slots=True)
class TableFormat(Generic[T]):
    """The format of entries in a RocketMQ file."""

    what: str
    """The noun for the entries, for errors."""
    key: str
    """The field of the file that holds the entries."""
    read: Callable[[str, Mapping[str, Any]], T]
    """Raises `ValueError`, `TypeError`, `AttributeError` or `OverflowError` for an invalid entry."""
    show: Callable[[T], Mapping[str, Any]]
    others: tuple[str, ...] = ()
    """Further fields of the file, each a table of its own."""


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change that was made."""

    number: int
    """The number of the content that it made."""
    names: tuple[str, ...]
    """The names of entries that were put or removed."""


@dataclass(frozen=True, slots=True)
class TableContent(Generic[T]):
    """An immutable snapshot of a table."""

    version: DataVersion
    entries: Entries[T]
    others: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the file."""
    number: int = 0
    """Counts the snapshots since the table was opened."""
    steps: tuple[AppliedChange, ...] = ()
    """The latest changes that led to it, in order."""

    def since(self, before: "TableContent[T]") -> list[str] | None:
        """Return the names that changed since *before*, a snapshot of the same table; None if it is too old."""
        if before is self:
            return []
        if not self.steps or self.steps[0].number > before.number + 1:
            return None
        names = (name for step in self.steps if step.number > before.number for name in step.names)
        return list(dict.fromkeys(names))

    def page(self, first: int, count: int) -> dict[str, T]:
        """Return *count* entries in name order, beginning with number *first*."""
        names = sorted(self.entries)[max(first, 0) : max(first, 0) + max(count, 0)]
        return {name: self.entries[name] for name in names}


@dataclass(frozen=True, slots=True)
class TableChange(Generic[T]):
    """A change to make."""

    put: Mapping[str, T | None] = field(default_factory=dict)
    """Entries to put; None removes one."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Further fields to replace."""
    version: DataVersion | None = None
    """The version after the change; None for the next one."""

    def __bool__(self) -> bool:
        return bool(self.put or self.others or self.version)


@dataclass(slots=True)
class _Batch(Generic[T]):
    """The changes that one write covers."""

    put: dict[str, T | None] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    content: TableContent[T] | None = None
    """The table after these changes, or after those being written now; None if it is `MetadataTable.content`."""
    is_changed: bool = False
    is_done: bool = False
    failure: Exception | None = None


class MetadataTable(Generic[T]):
    """
    Entries by name in a RocketMQ file; thread-safe.

    Each change is decided on the result of the one before it; one write covers all that wait. A change is on disk
    before `content` shows it, before `push` gets it, and before the call returns; `push` gets changes in order. When a
    write fails, all changes that it covers fail, and so do those decided on top of them.

    A small table is written whole. A change of a large table goes to a journal; `merge_journal` and `close` write
    it into RocketMQ's file.

    An invalid entry of the file is logged and skipped. An entry that `push` rejects is logged too, and missing on the
    hot path. Both stay in the file. Raises `CorruptStore` if neither the file nor its `.bak` can be read.
    """

    def __init__(
        self,
        path: Path,
        form: TableFormat[T],
        now_ms: Callable[[], int],
        push: Callable[[str, T | None], None],
    ) -> None:
        self._path = path
        self._form = form
        self._now_ms = now_ms
        self._push = push
        # Lock order: from the first to the last.
        self._writing = threading.Lock()
        self._pushing = threading.Lock()
        self._lock = threading.Lock()
        # The encoded line of each entry, so that a change encodes only what it changes.
        self._lines: dict[str, str] = {}
        # The lines of invalid entries, kept until an entry of that name is put.
        self._unread: dict[str, str] = {}
        self._journal = Journal(path.parents[1] / "ferromq" / f"{path.stem}.journal")
        # Whether entries were added or removed that the file does not reflect yet.
        self._is_seeded = False
        self._content = self._load()
        self._batch: _Batch[T] = _Batch()

    @property
    def content(self) -> TableContent[T]:
        """The current snapshot."""
        return self._content

    def seed(self, entries: Entries[T], absent: frozenset[str], now: int) -> None:
        """Add missing *entries* and remove *absent* at start; the next change writes it."""
        content = self._content
        missing = {name: entry for name, entry in entries.items() if name not in content.entries}
        kept = {name: entry for name, entry in content.entries.items() if name not in absent}
        version = content.version.next(now) if missing else content.version
        self._is_seeded = bool(missing) or len(kept) < len(content.entries)
        self._content = TableContent(version, {**kept, **missing}, content.others, content.number + 1)

    def change(self, decide: Callable[[TableContent[T]], TableChange[T]]) -> tuple[TableContent[T], list[str]]:
        """
        Apply the change that *decide* returns for the current content; return the new content and the changed names.

        Entries equal to the present ones do not count; without any difference nothing is written. An exception of
        *decide* is raised. Raises `OSError` if the change cannot be written. Both change nothing.
        """
        with self._lock:
            batch = self._batch
            content = batch.content or self._content
            change = decide(content)
            put = {name: entry for name, entry in change.put.items() if entry != content.entries.get(name)}
            others = {name: value for name, value in change.others.items() if value != content.others.get(name)}
            changed = content
            if put or others or change.version not in {None, content.version}:
                entries = {**content.entries, **{name: entry for name, entry in put.items() if entry is not None}}
                for name in [name for name, entry in put.items() if entry is None]:
                    del entries[name]
                version = change.version or content.version.next(self._now_ms())
                number = content.number + 1
                steps = (*content.steps[1 - _STEPS :], AppliedChange(number, tuple(put)))
                changed = batch.content = TableContent(version, entries, {**content.others, **others}, number, steps)
                batch.put.update(put)
                batch.others.update(others)
                batch.is_changed = True
            elif batch.content is None:
                return content, []
        # Even without a change of its own, the content that it saw must be on disk.
        blocking(lambda: self._commit(batch))
        return changed, list(put)

    def _commit(self, batch: _Batch[T]) -> None:
        with self._writing:
            if not batch.is_done and batch.is_changed:
                # The first waiting thread writes for all.
                with self._lock:
                    content, self._batch = batch.content, _Batch()
                    self._batch.content = content
                assert content is not None
                self._write_batch(batch, content)
        if batch.failure is not None:
            raise batch.failure

    def _write_batch(self, batch: _Batch[T], content: TableContent[T]) -> None:
        try:
            self._write(content, batch)
        except Exception as error:  # noqa: BLE001 (each waiting thread raises it)
            with self._lock:
                later, self._batch = self._batch, _Batch()
            # The later changes were decided on top of the failed ones.
            for each in (batch, later):
                each.is_done, each.failure = True, error
            return
        with self._pushing:
            self._content = content
            for name, entry in batch.put.items():
                self._push_one(name, entry)
        with self._lock:
            if not self._batch.is_changed:
                self._batch.content = None
        batch.is_done = True

    def while_absent(self, name: str, act: Callable[[], R]) -> R | None:
        """Call *act* if no entry has this name, and prevent one from being added meanwhile."""
        with self._lock:
            found = self._batch.content or self._content
            return act() if name not in found.entries and name not in self._content.entries else None

    def add_unwritten(self, name: str, entry: T) -> None:
        """Add a missing entry in memory, on a full disk; the next change writes it."""
        # `TableContent.since` may miss the entry; only the table of topics uses that.
        with self._writing:
            with self._lock:
                waiting = self._batch.content
                if name in (waiting or self._content).entries:
                    return
                if waiting is not None:
                    self._batch.content = _with(waiting, name, entry, self._now_ms())
                content = self._content = _with(self._content, name, entry, self._now_ms())
                # The journal does not have the entry, so the next write must be of the whole table.
                self._is_seeded = True
            with self._pushing:
                self._push_one(name, content.entries[name])

    def push_again(self, name: str) -> bool:
        """Push an entry once more; returns whether it exists."""
        with self._pushing:
            entry = self._content.entries.get(name)
            return entry is not None and self._push_one(name, entry)

    def push_all(self) -> None:
        """Push every entry."""
        with self._pushing:
            for name, entry in self._content.entries.items():
                self._push_one(name, entry)

    def merge_journal(self) -> None:
        """Write the journal into RocketMQ's file. A failure is logged, and changes nothing."""
        with self._writing:
            if not self._journal.length:
                return
            try:
                self._write_whole(self._content)
            except OSError as error:
                _log.warning("journal stays, the table cannot be written file=%s: %s", self._path, error)

    def close(self) -> None:
        """Write the journal into RocketMQ's file; another broker may open the directory next."""
        self.merge_journal()
        with self._writing:
            self._journal.close()

    def _push_one(self, name: str, entry: T | None) -> bool:
        """Push an entry; returns whether it was accepted. It is on disk, so an error here would prevent every start."""
        try:
            self._push(name, entry)
        except (ValueError, OverflowError, TypeError) as error:
            _log.error("%s: entry not served name=%r: %s; create it again", self._path.name, name, error)
            self._push(name, None)
            return False
        return True

    def _load(self) -> TableContent[T]:
        form = self._form
        try:
            found, raw = json_file.read_with_content(self._path)
            table = dict((found or {}).get(form.key) or {})
            file = dict(found or {})
            changes = self._journal.read(raw if found is not None else b"", lambda changes: _holds(table, changes))
            for change in changes:
                file["dataVersion"] = change["dataVersion"]
                table.update(change["put"])
                for name in [name for name, entry in change["put"].items() if entry is None]:
                    del table[name]
            entries = {name: entry for name, entry in map(self._read, table.items()) if entry is not None}
            version = DataVersion.from_json(file.get("dataVersion"))
            others = {name: dict(file.get(name) or {}) for name in form.others}
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise CorruptStore(f"{self._path} is no table of {form.what}: {error}; restore it from its .bak") from error
        content = TableContent(version, entries, others)
        if changes:
            _log.info("journal read changes=%d file=%s", len(changes), self._path)
            self._merge_journal_at_start(content)
        elif raw is not None:
            self._journal.begin(raw)
        return content

    def _merge_journal_at_start(self, content: TableContent[T]) -> None:
        """Write the journal into the file; on a failure the journal stays, and the next change writes everything."""
        try:
            self._write_whole(content)
        except OSError as error:
            _log.warning("journal stays, the table cannot be written file=%s: %s", self._path, error)

    def _read(self, item: tuple[str, Any]) -> tuple[str, T | None]:
        name, value = item
        try:
            entry = self._form.read(name, value)
            # An entry that cannot be encoded would make every later write fail.
            self._lines[name] = self._line(name, entry)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            _log.error("%s: entry skipped name=%r: %s; create it again", self._path, name, error)
            self._unread[name] = f"\t\t{json.dumps(name)}:{json.dumps(value)}"
            return name, None
        return name, entry

    def _write(self, content: TableContent[T], batch: _Batch[T]) -> None:
        """Write a batch: a journal line for a large table, else the whole file."""
        lines = {name: self._line(name, entry) for name, entry in batch.put.items() if entry is not None}
        known = self._lines
        is_large = len(known) > _SMALL and self._journal.is_open and self._journal.length <= len(known)
        if is_large and not self._is_seeded and not batch.others:
            shown = {name: None if entry is None else self._form.show(entry) for name, entry in batch.put.items()}
            self._journal.append({"dataVersion": content.version.to_json(), "put": shown})
            self._keep(batch, lines)
        else:
            before = dict(known), dict(self._unread)
            self._keep(batch, lines)
            try:
                self._write_whole(content)
            except BaseException:
                self._lines, self._unread = before
                raise

    def _keep(self, batch: _Batch[T], lines: Mapping[str, str]) -> None:
        for name in batch.put:
            self._lines.pop(name, None)
        self._lines.update(lines)
        for name in lines:
            self._unread.pop(name, None)

    def _write_whole(self, content: TableContent[T]) -> None:
        known = self._lines
        lines = {name: known.get(name) or self._line(name, entry) for name, entry in content.entries.items()}
        fields = [f'\t"dataVersion":{_text(content.version.to_json())}']
        fields += [f'\t"{name}":{_text(value)}' for name, value in content.others.items()]
        unread = {name: line for name, line in self._unread.items() if name not in lines}
        shown = {**unread, **lines}
        entries = ",\n".join(shown[name] for name in sorted(shown))
        fields.append(f'\t"{self._form.key}":{{\n{entries}\n\t}}')
        written = ("{\n" + ",\n".join(fields) + "\n}\n").encode()
        atomic.replace_file(self._path, written)
        self._lines, self._unread = lines, unread
        self._is_seeded = False
        self._journal.begin(written)

    def _line(self, name: str, entry: T) -> str:
        return f"\t\t{_text(name)}:{_text(self._form.show(entry))}"


def _with(content: TableContent[T], name: str, entry: T, now: int) -> TableContent[T]:
    number = content.number + 1
    steps = (*content.steps[1 - _STEPS :], AppliedChange(number, (name,)))
    return TableContent(content.version.next(now), {**content.entries, name: entry}, content.others, number, steps)


def _holds(table: Mapping[str, Any], changes: Changes) -> bool:
    """Return whether a table already has the result of these changes."""
    left = {name: entry for change in changes for name, entry in change["put"].items()}
    return all(table.get(name) == entry for name, entry in left.items())


def _text(value: Any) -> str:
    return java_json.dumps(value).decode()
