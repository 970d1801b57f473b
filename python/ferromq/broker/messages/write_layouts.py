"""
Keeps the first layout of each batch of numbered messages, so that every retry sends its rows to the same queues.

The store knows only the highest row of each queue (`FERROMQ_SEQUENCE`), so a row that a retry sends to another queue
would be stored twice. A writer asks here before it sends; the first layout it names is kept for all retries. A layout
is opaque text here.
"""

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ferromq._ferromq import Request
from ferromq._proto import messages as pb
from ferromq.errors import CorruptStore, IllegalName
from ferromq.files import atomic, json_file
from ferromq.files.table_journal import Changes, Journal
from ferromq.process.clock import Clock
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import java_json, naming
from ferromq.protocol.remoting import disk_full

_log = logging.getLogger("ferromq.broker")

KEEP_WRITE_LAYOUT = "KeepWriteLayout"
MAX_LAYOUT = 1 << 16
"""The most characters of a layout."""
MAX_BYTES = 64 << 20
"""The most bytes of all layouts in memory, with their writers and topics."""
_WRITER = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
_EPOCHS = 1 << 63
_LEAST_LINES = 256
"""The journal lines below which the file is not rewritten."""
_RENEWALS = 8
"""How often an entry in use is dated again within a window."""


class TooManyLayouts(Exception):  # noqa: N818 (an answer, not a failure of ours)
    """The limit of layouts is reached; the text names it."""


def without_steps(clock: Clock, monotonic: Callable[[], float] = time.monotonic) -> Callable[[], int]:
    """Return a clock in milliseconds that ignores later steps of *clock*, so that a step does not age layouts."""
    if clock.is_manual:
        return clock.now_ms
    begin_ms, begin = clock.now_ms(), monotonic()
    return lambda: begin_ms + int((monotonic() - begin) * 1000)


class UnknownTopic(Exception):  # noqa: N818 (an answer, not a failure of ours)
    """The broker does not have the topic of a layout."""


class _LayoutEntry(NamedTuple):
    epoch: int
    layout: str
    at_ms: int
    """The approximate time of the last request for it."""


_Key = tuple[str, str]
"""Writer and topic."""


class WriteLayouts:
    """
    Keeps the first layout of the latest epoch of each writer and topic in a file; thread-safe.

    A layout is remembered for *window_ms* after its last request. New ones are accepted up to *limit*, for topics that
    *is_topic* knows, while *reserve* bytes of the disk are free. Raises `CorruptStore` if neither the file nor its
    `.bak` can be read.
    """

    def __init__(
        self,
        path: Path,
        now_ms: Callable[[], int],
        *,
        window_ms: int,
        limit: int,
        is_topic: Callable[[str], bool] = lambda _topic: True,
        reserve: int = 0,
    ) -> None:
        self._path = path
        self._is_topic = is_topic
        self._reserve = reserve
        self._now_ms = now_ms
        self._window_ms = window_ms
        self._limit = limit
        self._lock = threading.Lock()
        self._seldom = LimitedLog(_log)
        self._journal = Journal(path.with_suffix(".journal"))
        self._kept = self._load()
        self._size = _size_of_all(self._kept)

    def keep(self, writer: str, topic: str, epoch: int, layout: str | None) -> str | None:
        """
        Return the layout of an epoch, or write *layout* to disk as the first one and return it.

        An older epoch gets the latest epoch's layout. Raises `TooManyLayouts`, `UnknownTopic`, and `OSError` if the
        layout cannot be written.
        """
        key, now = (writer, topic), self._now_ms()
        with self._lock:
            known = self._kept.get(key)
            if known is not None and epoch <= known.epoch and self._is_remembered(known, now):
                if now - known.at_ms > self._window_ms // _RENEWALS:
                    self._put(key, known._replace(at_ms=now))
                return known.layout
            if layout is not None:
                kept = _LayoutEntry(epoch, layout, now)
                self._make_room(key, kept, now)
                self._put(key, kept)
            return layout

    def forget(self, topic: str) -> None:
        """Forget the layouts of a deleted topic; the rows that its batches stored are gone, too."""
        with self._lock:
            if any(known == topic for _, known in self._kept):
                self._write({"forget": topic})
                self._forget(self._kept, topic)
                self._size = _size_of_all(self._kept)

    def close(self) -> None:
        """Close the journal."""
        with self._lock:
            self._journal.close()

    def _is_remembered(self, kept: _LayoutEntry, now: int) -> bool:
        return now - kept.at_ms < self._window_ms

    def _make_room(self, key: _Key, new: _LayoutEntry, now: int) -> None:
        """Raise if a new layout cannot be kept; expired layouts are dropped before that."""
        if not self._is_topic(key[1]):
            raise UnknownTopic(f"the topic {key[1]} does not exist here; create it, or ask a broker that has it")
        self._check_disk()
        if self._is_over(self._kept, self._size, key, new) is None:
            return
        left = self._remembered(now)
        why = self._is_over(left, _size_of_all(left), key, new)
        if why is not None:
            raise TooManyLayouts(why)
        self._write_whole(left)

    def _check_disk(self) -> None:
        place = next(place for place in self._path.parents if place.exists())
        disk = os.statvfs(place)
        free = disk.f_bavail * disk.f_frsize
        if free < self._reserve:
            raise OSError(errno.ENOSPC, f"{free} bytes are free, and disk_reserve is {self._reserve}", str(place))

    def _is_over(self, kept: dict[_Key, _LayoutEntry], size: int, key: _Key, new: _LayoutEntry) -> str | None:
        """Return the limit that a new layout exceeds, beside the *kept* ones of *size* bytes."""
        known = kept.get(key)
        again = "try again when one is out of dedup_window"
        if known is None and len(kept) >= self._limit:
            allowed = f"{self._limit} are allowed (dedup_writers)"
            return f"{len(kept)} layouts of writers are kept; {allowed}; {again}, or raise the limit"
        after = size + _size(key, new) - (0 if known is None else _size(key, known))
        if after > max(size, MAX_BYTES):
            return f"the layouts of writers would have {after} bytes; {MAX_BYTES} are allowed; {again}"
        return None

    def _remembered(self, now: int) -> dict[_Key, _LayoutEntry]:
        return {key: kept for key, kept in self._kept.items() if self._is_remembered(kept, now)}

    def _put(self, key: _Key, kept: _LayoutEntry) -> None:
        self._write({"put": [*key, *kept]})
        known = self._kept.get(key)
        self._size += _size(key, kept) - (0 if known is None else _size(key, known))
        self._kept[key] = kept
        if self._journal.length > max(_LEAST_LINES, 2 * len(self._kept)):
            self._write_whole(self._remembered(self._now_ms()))

    def _write(self, change: dict[str, Any]) -> None:
        if not self._journal.is_open:
            self._write_whole(self._kept)
        self._journal.append(change)

    def _write_whole(self, kept: dict[_Key, _LayoutEntry]) -> None:
        content = java_json.dumps({"layouts": [[*key, *entry] for key, entry in sorted(kept.items())]})
        atomic.replace_file(self._path, content)
        self._journal.begin(content)
        self._kept, self._size = kept, _size_of_all(kept)

    def _load(self) -> dict[_Key, _LayoutEntry]:
        try:
            found, raw = json_file.read_with_content(self._path)
            kept = dict(map(_entry, (found or {}).get("layouts") or ()))
            changes: Changes = self._journal.read(raw if found is not None else b"", lambda _changes: True)
            for change in changes:
                if "put" in change:
                    key, entry = _entry(change["put"])
                    kept[key] = entry
                else:
                    self._forget(kept, str(change["forget"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptStore(
                f"{self._path} is not a table of write layouts: {error}; restore it from its .bak, or remove it if no "
                "exactly-once batch is unfinished"
            ) from error
        # A clock that was ahead must not keep a layout longer.
        now = self._now_ms()
        kept = {key: entry._replace(at_ms=min(entry.at_ms, now)) for key, entry in kept.items()}
        if changes or (found is not None and raw is None):
            self._write_whole(kept)
        else:
            self._journal.begin(raw or b"")
        return kept

    @staticmethod
    def _forget(kept: dict[_Key, _LayoutEntry], topic: str) -> None:
        for key in [key for key in kept if key[1] == topic]:
            del kept[key]

    def answer(self, request: Request) -> bytes:
        """Answer KeepWriteLayout, in JSON; see docs/wire-format.md."""
        try:
            layout = self.keep(*_decode_request(request.body))
        except (ValueError, TypeError, KeyError, IllegalName) as error:
            return _answer(pb.Code.BAD_REQUEST, f"not a request for a write layout: {error}")
        except UnknownTopic as error:
            return _answer(pb.Code.TOPIC_NOT_FOUND, str(error))
        except TooManyLayouts as error:
            return _answer(pb.Code.FORBIDDEN, str(error))
        except OSError as error:
            self._seldom.log(logging.WARNING, "write layout not kept peer=%s: %s", request.peer, error)
            return _answer(pb.Code.INTERNAL_SERVER_ERROR, disk_full(error) or f"the layout cannot be written: {error}")
        return _answer(pb.Code.OK, "OK", layout)


def _size_of_all(kept: dict[_Key, _LayoutEntry]) -> int:
    return sum(_size(*each) for each in kept.items())


def _size(key: _Key, kept: _LayoutEntry) -> int:
    """Return the bytes of the texts; a single non-ASCII character may make each character take four."""
    return sum(len(text) if text.isascii() else 4 * len(text) for text in (*key, kept.layout))


def _entry(value: Any) -> tuple[_Key, _LayoutEntry]:
    writer, topic, epoch, layout, at_ms = value
    return (str(writer), str(topic)), _LayoutEntry(int(epoch), str(layout), int(at_ms))


def _decode_request(body: bytes) -> tuple[str, str, int, str | None]:
    """Decode a request. Raises `ValueError`, `TypeError`, `KeyError` or `IllegalName`."""
    content = java_json.loads_object(body)
    writer, topic, epoch, layout = content["writer"], content["topic"], content["epoch"], content.get("layout")
    naming.check_topic(topic)
    if not isinstance(writer, str) or not _WRITER.match(writer):
        raise ValueError(f"writer is {writer!r}; allowed: at most 128 letters, digits and _ . : -")
    if type(epoch) is not int or not 0 <= epoch < _EPOCHS:
        raise ValueError(f"epoch is {epoch!r}; allowed: a whole number from 0")
    if layout is not None and (not isinstance(layout, str) or len(layout) > MAX_LAYOUT):
        raise ValueError(f"layout is too long, or not a text; allowed: {MAX_LAYOUT} characters")
    return writer, topic, epoch, layout


def _answer(code: int, message: str, layout: str | None = None) -> bytes:
    return java_json.dumps({"code": code, "message": message, "layout": layout})
