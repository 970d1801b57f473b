"""
A slave follows its master: it takes over topics, groups and request modes.

Messages are not replicated yet, so the master's offsets, delay levels and timer state do not fit the slave's log. They
are only kept apart, in `ferromq/master`. `master_answers` checks what a master answers; `role` decides whom to follow.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from ferromq import _ferromq
from ferromq.broker.cluster import master_answers
from ferromq.broker.cluster.master_answers import Groups, Topics
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.request_modes import RequestModes
from ferromq.broker.metadata.topics import TopicTable
from ferromq.errors import FerromqError, OutcomeUnknown
from ferromq.files import json_file
from ferromq.process.clock import Clock, Timer
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.route import DataVersion

_log = logging.getLogger("ferromq.broker")

FIRST = timedelta(seconds=3)
"""The delay of the first synchronization after the start, or after a new master."""
_TIMEOUT = 10.0
_PAGE = 2_000
_RESTARTS = 3

Page = TypeVar("Page", Topics, Groups)
Answer = tuple[dict[str, str], bytes]


class Refused(Exception):  # noqa: N818 (carried to one log line, never to a user)
    """A master answered with an error."""

    def __init__(self, code: RequestCode, answer: int, remark: str | None) -> None:
        super().__init__(f"{code.name} was answered with code {answer}: {remark}")
        self.is_unknown = answer == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@dataclass(frozen=True, slots=True)
class Replica:
    """The parts of a slave that take over the master's state."""

    directory: Path
    """The store directory."""
    store: _ferromq.Store
    topics: TopicTable
    groups: GroupTable
    modes: RequestModes

    def topics_held(self) -> set[str]:
        """Return the topics with messages in this log, which the master's table may lack."""
        store = self.store
        return {
            topic
            for topic, queues in store.queues().items()
            if any(store.max_offset(topic, queue) > store.min_offset(topic, queue) for queue in queues)
        }


class SlaveSync:
    """
    Synchronizes with the master in every period; thread-safe.

    A failure is logged as a warning once until the master answers again. A part of its answers that cannot be used
    leaves the tables unchanged. After `stop` nothing is taken over any more.
    """

    def __init__(
        self,
        replica: Replica,
        own_address: str,
        clock: Clock,
        period: timedelta,
        *,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        self._replica = replica
        self._own_address = own_address
        self._client = _ferromq.RemotingClient(credentials=credentials)
        self._master: str | None = None
        self._failures: dict[str, str] = {}
        self._taking = threading.Lock()
        self._is_stopped = False
        self._written: dict[str, object] = {}
        self._timer = Timer("ferromq-slave", clock, period, self._sync)
        self._steps: Mapping[str, Callable[[str], None]] = {
            "topics": self._sync_topics,
            "offsets": self._sync_offsets,
            "delays": self._sync_delays,
            "groups": self._sync_groups,
            "modes": self._sync_modes,
            "timer": self._sync_timer,
            "timer metrics": self._sync_timer_metrics,
        }

    def follow(self, master: str | None) -> None:
        """Follow *master* from now on, beginning soon; None follows no master."""
        if master == self._master:
            return
        _log.info("master changed address=%s", master)
        self._master = master
        self._failures.clear()
        if master is not None:
            self._timer.within(FIRST)

    def start(self) -> None:
        """Begin; the first synchronization comes after `FIRST`."""
        self._timer.within(FIRST)
        self._timer.start()

    def stop(self) -> None:
        """Stop, and cancel a running call."""
        with self._taking:
            self._is_stopped = True
        self._client.close()
        self._timer.stop()

    def _sync(self, _now: int) -> None:
        master = self._master
        # Two brokers may share an address by mistake, or this one may just have been the master.
        if master is None or master == self._own_address:
            return
        for name, step in self._steps.items():
            try:
                step(master)
            except OutcomeUnknown as error:
                self._note_failure("master", f"the master does not answer, retrying: {error}", master)
                return
            except Refused as error:
                if not error.is_unknown:
                    self._note_failure(name, str(error), master)
            except (FerromqError, OSError, ValueError) as error:
                self._note_failure(name, f"the answer cannot be used: {error}", master)
            else:
                self._failures.pop(name, None)
            if self._is_stopped:
                return
        if self._failures.pop("master", None):
            _log.warning("master is back address=%s", master)

    def _note_failure(self, what: str, text: str, master: str) -> None:
        if self._is_stopped:
            return
        level = logging.DEBUG if self._failures.get(what) else logging.WARNING
        self._failures[what] = text
        _log.log(level, "slave sync failed part=%s address=%s: %s", what, master, text)

    def _take(self, change: Callable[[], object]) -> None:
        with self._taking:
            if not self._is_stopped:
                change()

    def _sync_topics(self, master: str) -> None:
        topics = self._replica.topics
        found = self._pages(
            master, RequestCode.GET_ALL_TOPIC_CONFIG, "Topic", master_answers.topics, topics.content.version
        )
        if found:
            entries = {name: topic for page in found for name, topic in page.entries.items()}
            held = self._replica.topics_held()
            self._take(lambda: topics.adopt(entries, found[0].version, master, held=held))

    def _sync_groups(self, master: str) -> None:
        groups = self._replica.groups
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        found = self._pages(master, code, "Group", master_answers.groups, groups.content.version)
        if found:
            entries = {name: group for page in found for name, group in page.entries.items()}
            forbidden = {name: topics for page in found for name, topics in page.forbidden.items()}
            held = {name.rpartition("@")[2] for name in self._replica.store.committed_offsets()}
            self._take(lambda: groups.adopt(entries, forbidden, found[0].version, master, held=held))

    def _sync_offsets(self, master: str) -> None:
        _, body = self._call(master, RequestCode.GET_ALL_CONSUMER_OFFSET)
        offsets = master_answers.consumer_offsets(body)
        self._keep("consumerOffset.json", {"offsetTable": offsets}, master)

    def _sync_delays(self, master: str) -> None:
        _, body = self._call(master, RequestCode.GET_ALL_DELAY_OFFSET)
        self._keep("delayOffset.json", master_answers.delay_offsets(body), master)

    def _sync_modes(self, master: str) -> None:
        _, body = self._call(master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        modes = master_answers.request_modes(body)
        self._take(lambda: self._replica.modes.replace(modes))

    def _sync_timer(self, master: str) -> None:
        _, body = self._call(master, RequestCode.GET_TIMER_CHECK_POINT)
        checkpoint = master_answers.timer_checkpoint(body)
        value = {
            "dataVersion": checkpoint.version.to_json(),
            "queueOffset": checkpoint.queue_offset,
            "readMs": checkpoint.read_ms,
        }
        self._keep("timercheck.json", value, master)

    def _sync_timer_metrics(self, master: str) -> None:
        _, body = self._call(master, RequestCode.GET_TIMER_METRICS)
        self._keep("timermetrics.json", master_answers.timer_metrics(body), master)

    def _keep(self, name: str, value: Mapping[str, Any], master: str) -> None:
        """Write the master's state to a file, with the master's address, if it changed."""
        content = {"master": master, **value}
        if self._written.get(name) != content:
            path = self._replica.directory / "ferromq" / "master" / name
            self._take(lambda: json_file.write(path, content))
            self._written[name] = content

    def _pages(
        self,
        master: str,
        code: RequestCode,
        what: str,
        decode: Callable[[bytes], Page],
        own: DataVersion,
    ) -> list[Page]:
        """Read a whole table page by page; empty if it has the version *own*. Old masters send one page."""
        for _ in range(_RESTARTS):
            found: list[Page] = []
            names: set[str] = set()
            while True:
                seen = java_json.dumps(found[0].version.to_json()).decode() if found else ""
                fields = {f"{what.lower()}Seq": str(len(names)), f"max{what}Num": str(_PAGE), "dataVersion": seen}
                header, body = self._call(master, code, fields)
                page = decode(body)
                if page.version == own:
                    return []
                if found and page.version != found[0].version:
                    # It changed meanwhile, so start again.
                    break
                total = int(header.get(f"total{what}Num") or 0)
                is_new = not names.issuperset(page.entries)
                found.append(page)
                names.update(page.entries)
                if len(names) >= total:
                    return found
                if not is_new:
                    raise ValueError(f"{code.name} announces {total} entries, and {len(names)} came")
        raise ValueError(f"{code.name}: the table changes faster than it is read")

    def _call(self, master: str, code: RequestCode, fields: Mapping[str, str] | None = None) -> Answer:
        answer, remark, header, body = self._client.call(master, code, fields, timeout=_TIMEOUT)
        if answer != ResponseCode.SUCCESS:
            raise Refused(code, answer, remark)
        return header, body
