"""
A simple model of a message's life as ferromq promises it; the model test compares a broker with it.

Pure: time is an argument, and nothing here knows a socket. A message of a topic and a group is in one of the states of
`State`; a crash makes some knowledge doubtful, which is kept as a range of attempts and as `MAYBE`.
"""

from dataclasses import dataclass, field
from enum import Enum, auto


class State(Enum):
    """The state of a message."""

    OPEN = auto()
    """An open half message."""
    WAITING = auto()
    """It waits for its delivery time."""
    READY = auto()
    """The next receive gets it."""
    LEASED = auto()
    """A consumer has it under a lease."""
    DONE = auto()
    """Acknowledged, rolled back, or recalled: it is never delivered again."""
    DEAD = auto()
    """Among the dead letters."""


@dataclass
class Life:
    """One message."""

    body: str
    state: State = State.READY
    due_ms: int = 0
    lease_end_ms: int = 0
    handle: str = ""
    may_be_dead: bool = False
    """It was among the dead letters before a crash, which may have brought it back besides."""
    attempts: tuple[int, int] = (0, 0)
    """Fewest and most deliveries so far: equal, unless a crash left a doubt."""
    may_return: bool = False
    """A crash may have forgotten that it ended, or that it was delivered."""


@dataclass
class Queue:
    """The messages of a topic for one group, in the order sent."""

    max_attempts: int
    is_ordered: bool = False
    lives: dict[str, Life] = field(default_factory=dict)

    def ready(self, now: int) -> list[Life]:
        """Return the messages a receive gets, in order."""
        found = [life for life in self.lives.values() if self._is_ready(life, now)]
        if not self.is_ordered:
            return found
        # One receiver at a time: while a message is out, nothing follows it.
        is_out = any(life.state is State.LEASED and life.lease_end_ms > now for life in self.lives.values())
        return [] if is_out else found

    def may_come(self, now: int) -> list[Life]:
        """Return the messages that a receive may get, but need not."""
        doubtful = [life for life in self.lives.values() if life.may_return]
        return doubtful + [life for life in self.lives.values() if self._may_be_dying(life, now)]

    def dying(self, now: int) -> list[Life]:
        """Return the messages whose last delivery failed: the next receive sends them to the dead letters."""
        return [
            life for life in self.lives.values() if self.has_ended(life, now) and life.attempts[0] >= self.max_attempts
        ]

    def receive(self, life: Life, attempt: int, handle: str, lease_end_ms: int) -> None:
        """Take note of a delivery."""
        life.state, life.handle, life.lease_end_ms = State.LEASED, handle, lease_end_ms
        # There may be two of a message that was delivered to its queue again.
        is_two = life.may_return and life.due_ms > 0
        life.attempts = (0, max(attempt, life.attempts[1])) if is_two else (attempt, attempt)
        life.may_return = is_two

    def settle(self, now: int) -> None:
        """Make due messages ready."""
        for life in self.lives.values():
            if life.state is State.WAITING and life.due_ms <= now:
                life.state = State.READY

    def crash(self, now: int) -> None:
        """
        Take note that the broker was killed.

        Leases and acknowledgements of the last moment may be forgotten, and what was delivered to its queue lately may
        be delivered there again. Nothing else.
        """
        for life in self.lives.values():
            life.may_be_dead = life.may_be_dead or life.state is State.DEAD
            if life.state in {State.DONE, State.DEAD} and life.attempts[1] > 0:
                life.may_return = True
            if life.due_ms and life.state not in {State.OPEN, State.WAITING} and life.due_ms <= now:
                life.may_return = True
            if life.attempts[1] > 0:
                life.attempts = (0, life.attempts[1])
            life.lease_end_ms = min(life.lease_end_ms, now)

    def _is_ready(self, life: Life, now: int) -> bool:
        if life.state is State.READY:
            return True
        return self.has_ended(life, now) and life.attempts[1] < self.max_attempts

    def _may_be_dying(self, life: Life, now: int) -> bool:
        low, high = life.attempts
        return self.has_ended(life, now) and low < self.max_attempts <= high

    def has_ended(self, life: Life, now: int) -> bool:
        """Return whether the lease of a message has ended."""
        return life.state is State.LEASED and life.lease_end_ms <= now
