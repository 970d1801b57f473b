"""
Server-sent events: a page that is looked at, again and again, and the figures of its charts.

All streams of one page share its samples. A sample that takes long makes the next one come later, so a large or slow
cluster is not asked without a pause. Each event `sample` is a JSON object: `html` if the page changed, `time` in
seconds since 1970, `figures`; the first one has `history`, the samples before.
"""

import asyncio
import json
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ferromq.dashboard.view import Counts

TICK_SECONDS = 2.0
MOST_STREAMS = 32
_PAUSES, _LONGEST_PAUSE = 5, 10.0
"""Of a sample that took a second the next one comes so many seconds later, up to the second number."""
_LONGEST_STREAM = 600.0
_GRACE = 30.0
"""Seconds after which a stream ends whose reader takes nothing."""
_MOST_FEEDS = 64
_OF_FIGURE = 100
"""Bytes of a figure in memory."""
_MOST_BYTES = 16 << 20
"""Of the pages and figures of all feeds. Beyond it feeds that are not looked at are dropped, and histories are cut."""
_HISTORY = 450
"""Samples that are kept of a page: a quarter of an hour at one in 2 seconds, 75 minutes at one in 10."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What one look at a page gave."""

    html: str
    figures: Mapping[str, float]
    counters: Mapping[str, Counts]


@dataclass(frozen=True, slots=True)
class _Sample:
    html: str
    at: float
    """Seconds since 1970."""
    figures: Mapping[str, float]


class Feed:
    """The samples of one page, which its streams share."""

    def __init__(self, load: Callable[[], Awaitable[Rendered]], sampled: Callable[[], None] = lambda: None) -> None:
        self._load = load
        self._sampled = sampled
        self._lock = asyncio.Lock()
        self._loaded = 0.0
        self._pause = TICK_SECONDS
        self._counters: tuple[float, Mapping[str, Counts]] = (0.0, {})
        self._last: _Sample | None = None
        self.history: deque[tuple[float, Mapping[str, float]]] = deque()
        self.of_history = 0
        """About how many bytes the history has."""

    @property
    def size(self) -> int:
        """About how many bytes it keeps."""
        return self.of_history + (0 if self._last is None else len(self._last.html))

    def cut(self) -> int:
        """Forget the older half of the history, and return its size."""
        before = self.of_history
        self._keep(len(self.history) // 2)
        return before - self.of_history

    def _keep(self, most: int) -> None:
        while len(self.history) > most:
            _, figures = self.history.popleft()
            self.of_history -= _OF_FIGURE * len(figures)

    async def sample(self) -> _Sample:
        """Return a sample of now, or the last one if its pause is not over."""
        async with self._lock:
            begun = time.monotonic()
            if self._last is None or begun - self._loaded >= self._pause * 0.9:
                found = await self._load()
                self._loaded = time.monotonic()
                self._pause = min(max(TICK_SECONDS, _PAUSES * (self._loaded - begun)), _LONGEST_PAUSE)
                figures = {**found.figures, **self._rates(found.counters)}
                self._last = _Sample(found.html, time.time(), figures)
                if figures:
                    self.history.append((self._last.at, figures))
                    self.of_history += _OF_FIGURE * len(figures)
                    self._keep(_HISTORY)
                self._sampled()
            return self._last

    def _rates(self, counters: Mapping[str, Counts]) -> dict[str, float]:
        before, old = self._counters
        now = time.monotonic()
        self._counters = now, counters
        return {
            name: sum(max(0, count - old[name][part]) for part, count in parts.items() if part in old[name])
            / (now - before)
            for name, parts in counters.items()
            if name in old
        }


class Feeds:
    """The feeds by visitor and page; those not used for longest are dropped. Counts the open streams."""

    def __init__(self) -> None:
        self._feeds: OrderedDict[tuple[int, str], Feed] = OrderedDict()
        self._all: weakref.WeakSet[Feed] = weakref.WeakSet()
        """Those that were dropped, too, while they have streams."""
        self.streams = 0
        self.stopping = asyncio.Event()

    def find(self, visitor: int, url: str, load: Callable[[], Awaitable[Rendered]]) -> Feed:
        """Return the feed of a page for a visitor."""
        feed = self._feeds.setdefault((visitor, url), Feed(load, self._bound))
        self._all.add(feed)
        self._feeds.move_to_end((visitor, url))
        size = sum(each.size for each in self._feeds.values())
        while len(self._feeds) > 1 and (len(self._feeds) > _MOST_FEEDS or size > _MOST_BYTES):
            _, oldest = self._feeds.popitem(last=False)
            size -= oldest.size
        return feed

    def _bound(self) -> None:
        """Cut the longest histories while all feeds keep too much."""
        feeds = list(self._all)
        size = sum(feed.size for feed in feeds)
        while size > _MOST_BYTES:
            largest = max(feeds, key=lambda feed: feed.of_history)
            if not largest.history:
                return
            size -= largest.cut()


class Stream(StreamingResponse):
    """The events of one feed, until the visitor leaves, *is_open* says no, or ten minutes are over."""

    def __init__(self, feeds: Feeds, feed: Feed, is_open: Callable[[], bool]) -> None:
        self._feeds = feeds
        super().__init__(_events(feeds, feed, is_open), media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        self._feeds.streams += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_STREAM + _GRACE):
                    await super().__call__(scope, receive, send)
        finally:
            self._feeds.streams -= 1


async def _events(feeds: Feeds, feed: Feed, is_open: Callable[[], bool]) -> AsyncIterator[str]:
    ends = time.monotonic() + _LONGEST_STREAM
    shown = None
    while is_open() and time.monotonic() < ends and not feeds.stopping.is_set():
        sample = await feed.sample()
        event: dict[str, object] = {"time": sample.at, "figures": sample.figures}
        if shown is None:
            event["history"] = list(feed.history)[:-1] if sample.figures else list(feed.history)
        if sample.html != shown:
            shown = event["html"] = sample.html
        yield f"event: sample\ndata: {json.dumps(event)}\n\n"
        with suppress(TimeoutError):
            await asyncio.wait_for(feeds.stopping.wait(), TICK_SECONDS)
