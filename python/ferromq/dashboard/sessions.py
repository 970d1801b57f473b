"""
Who is signed in, and how often strangers may try to.

A session lies in memory: it ends with the process, after a time without requests, and after a longest time. A visitor
is known by a random cookie; a form carries a token that only this process can make of it.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from ferromq.dashboard.cluster import Cluster

IDLE_SECONDS = 30 * 60
LONGEST_SECONDS = 12 * 3600
MOST_SESSIONS = 64
_ATTEMPTS, _ATTEMPTS_OF_ALL = 10, 100
_WINDOW_SECONDS = 60.0
_ID_BYTES = 32

Now = Callable[[], float]
"""Returns seconds of a clock that never goes back."""


@dataclass(slots=True, eq=False)
class Session:
    """One user who signed in."""

    user: str
    cluster: Cluster
    begun: float
    used: float
    is_open: bool = True


class Sessions:
    """The sessions by the ids in cookies, and the tokens of forms."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._sessions: dict[str, Session] = {}
        self._secret = secrets.token_bytes(_ID_BYTES)

    def begin(self, user: str, cluster: Cluster) -> str:
        """Begin a session and return its id. The one that was idle for longest ends if there are too many."""
        self._expire()
        if len(self._sessions) >= MOST_SESSIONS:
            self.end(min(self._sessions, key=lambda each: self._sessions[each].used))
        identity = new_id()
        self._sessions[identity] = Session(user, cluster, self._now(), self._now())
        return identity

    def find(self, identity: str, *, is_use: bool = True) -> Session | None:
        """Return an open session; *is_use*: it was used now."""
        self._expire()
        session = self._sessions.get(identity)
        if session is not None and is_use:
            session.used = self._now()
        return session

    def end(self, identity: str) -> None:
        """End a session, if it is open."""
        session = self._sessions.pop(identity, None)
        if session is not None:
            session.is_open = False
            session.cluster.close()

    def end_all(self) -> None:
        """End all sessions."""
        for identity in list(self._sessions):
            self.end(identity)

    def token(self, identity: str) -> str:
        """Return the token of the forms of a visitor."""
        return hmac.digest(self._secret, identity.encode(), hashlib.sha256).hex()

    def is_token(self, identity: str, token: str) -> bool:
        """Whether a form came from a page for this visitor."""
        return hmac.compare_digest(self.token(identity).encode(), token.encode())

    def _expire(self) -> None:
        now = self._now()
        for identity, session in list(self._sessions.items()):
            if now - session.used > IDLE_SECONDS or now - session.begun > LONGEST_SECONDS:
                self.end(identity)


def new_id() -> str:
    """Return a random id for a cookie."""
    return secrets.token_urlsafe(_ID_BYTES)


class Attempts:
    """Limits attempts to sign in: ten a minute of an address, a hundred of all."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._recent: list[tuple[float, str]] = []
        """Time and address of each attempt of the last minute; a hundred at most."""

    def take(self, address: str) -> bool:
        """Count an attempt and return True, or False if there were too many."""
        now = self._now()
        self._recent = [entry for entry in self._recent if now - entry[0] < _WINDOW_SECONDS]
        of_address = sum(other == address for _, other in self._recent)
        if of_address >= _ATTEMPTS or len(self._recent) >= _ATTEMPTS_OF_ALL:
            return False
        self._recent.append((now, address))
        return True
