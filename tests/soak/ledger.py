"""
A soak's record of each message: sends, decisions, deliveries and acknowledgements.

Pure except its lock: the threads that send, receive and kill report to it. A broken promise is noted when it is seen;
`verdict` checks the messages that must have come in the end.
"""

import threading
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto

MAX_NOTED = 20


class Fate(Enum):
    """A producer's state of a message."""

    UNKNOWN = auto()
    """No answer came: it may be stored."""
    SENT = auto()
    """It must come."""
    HIDDEN = auto()
    """Of a transaction that was rolled back: it must never come."""


@dataclass
class Entry:
    """One message."""

    topic: str
    fate: Fate = Fate.UNKNOWN
    due_ms: int = 0
    group: str = ""
    number: int = 0
    is_poison: bool = False
    """It is never acknowledged."""
    kills_before: int = 0
    deliveries: int = 0
    attempts: int = 0
    """Highest number of an attempt seen."""
    is_acknowledged: bool = False
    """An acknowledgement has begun."""
    is_dead: bool = False
    """It came as a dead letter."""


@dataclass
class Ledger:
    """All messages of a soak."""

    max_attempts: int
    entries: dict[str, Entry] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    """Ids of each message group, in the order they were first sent."""
    reached: Counter[str] = field(default_factory=Counter)
    """The next number of each message group: one more than its last acknowledged one."""
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def sending(self, name: str, entry: Entry) -> None:
        """Take note before a message is sent."""
        with self.lock:
            entry.kills_before = self.kills
            self.entries[name] = entry
            self.counts["sending"] += 1
            if entry.group:
                line = self.groups.setdefault(entry.group, [])
                entry.number = len(line)
                line.append(name)

    def decided(self, name: str, fate: Fate) -> None:
        """Take note of its outcome."""
        with self.lock:
            self.entries[name].fate = fate
            self.counts[fate.name.lower()] += 1

    def delivered(self, name: str, attempt: int, now_ms: int) -> None:
        """Take note of a delivery, and of the promises it breaks."""
        with self.lock:
            entry = self.entries.get(name)
            if entry is None:
                self._violated(f"{name} was never sent")
                return
            entry.deliveries += 1
            entry.attempts = max(entry.attempts, attempt)
            self.counts["delivered"] += 1
            if entry.fate is Fate.HIDDEN:
                self._violated(f"{name} came though its transaction was rolled back")
            if now_ms < entry.due_ms:
                self._violated(f"{name} came {entry.due_ms - now_ms} ms before its time")

    def its_turn(self, name: str) -> None:
        """Take note that all earlier messages of its message group must be finished."""
        with self.lock:
            entry = self.entries.get(name)
            if entry is not None and entry.group:
                self._check_order(name, entry)

    def acknowledging(self, name: str) -> None:
        """Take note before it is acknowledged."""
        with self.lock:
            entry = self.entries[name]
            entry.is_acknowledged = True
            self.counts["acknowledging"] += 1
            if entry.group:
                self.reached[entry.group] = max(self.reached[entry.group], entry.number + 1)

    def died(self, name: str) -> None:
        """Take note that it came as a dead letter."""
        with self.lock:
            self.counts["died"] += 1
            if name in self.entries:
                self.entries[name].is_dead = True

    def waiting(self, group: str) -> int:
        """Return how many of a message group come after the last one acknowledged."""
        with self.lock:
            return len(self.groups.get(group, [])) - self.reached[group]

    def killed(self) -> None:
        """Take note of a kill."""
        with self.lock:
            self.kills += 1

    def is_finished(self) -> bool:
        """
        Return whether all expected messages are finished, as far as receivers can know.

        A last delivery is no end: the message becomes a dead letter after the lease of it.
        """
        with self.lock:
            return all(
                entry.is_dead or (entry.is_acknowledged and not entry.is_poison)
                for entry in self.entries.values()
                if entry.fate is Fate.SENT
            )

    def verdict(self, dead: Counter[str], deals: Counter[str]) -> list[str]:
        """
        Return every broken promise.

        *dead*: how often each message is among the dead letters. *deals*: how often each message of a transaction is in
        its queues.
        """
        with self.lock:
            missing = [f"{name} is lost: {self.entries[name]}" for name in self._missing(dead)]
            causeless = [
                f"{name} is dead without a cause: {self.entries.get(name)}"
                for name in dead
                if not self._may_be_dead(name)
            ]
            twice = [f"{name} was committed {count} times" for name, count in deals.items() if count > 1]
            hidden = [
                f"{name} was committed though rolled back"
                for name in deals
                if name not in self.entries or self.entries[name].fate is Fate.HIDDEN
            ]
            return [
                *self.violations,
                *(found for kind in (missing, causeless, twice, hidden) for found in kind[:MAX_NOTED]),
            ]

    def _missing(self, dead: Counter[str]) -> list[str]:
        return [
            name
            for name, entry in self.entries.items()
            if entry.fate is Fate.SENT and not (entry.is_acknowledged or name in dead)
        ]

    def _may_be_dead(self, name: str) -> bool:
        entry = self.entries.get(name)
        if entry is None or entry.fate is Fate.HIDDEN:
            return False
        # An answer with a delivery is lost where the broker is killed before it arrives.
        return entry.is_poison or entry.attempts + self.kills - entry.kills_before >= self.max_attempts

    def _check_order(self, name: str, entry: Entry) -> None:
        for earlier_name in reversed(self.groups[entry.group][: entry.number]):
            earlier = self.entries[earlier_name]
            if earlier.is_acknowledged:
                return
            if earlier.fate is Fate.SENT and not (earlier.deliveries and self._may_be_dead(earlier_name)):
                self._violated(f"{name} of {entry.group} came before {earlier_name} was done with")
                return

    def _violated(self, what: str) -> None:
        if len(self.violations) < MAX_NOTED:
            self.violations.append(what)
        self.counts["violations"] += 1
