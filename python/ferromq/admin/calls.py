"""Requests of the administrator to name servers and brokers: how long each may take, and what a refusal raises."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from ferromq._ferromq import RemotingClient
from ferromq.client.tls import Tls, TlsFile, remoting_options
from ferromq.core.credentials import Credentials
from ferromq.core.requests import refusal, seconds
from ferromq.errors import ClientClosed, ConnectionFailed, RequestTimeout, ServerError, Unsupported
from ferromq.process.fork import Owner
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode, ResponseCode

T = TypeVar("T")


def decoded(address: str, what: str, read: Callable[[], T]) -> T:
    """Return what *read* makes of the answer of a server. Raises `ServerError` for one in another form."""
    try:
        return read()
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ServerError(f"{what} at {address} are malformed: {error!r:.200}") from error


class _Deadline(threading.local):
    """The deadline of this thread's call."""

    at: float | None = None
    """Monotonic seconds."""


class Calls:
    """Asks servers within the deadline of the current call. Thread-safe."""

    def __init__(
        self,
        timeout: timedelta | float,
        *,
        tls: bool | TlsFile | Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        self._owner = Owner("administrator")
        self._timeout = seconds(timeout)
        self._speaks_tls = tls is not False
        self.credentials = credentials
        """What requests are signed with."""
        pair = None if credentials is None else credentials.pair()
        self._client = RemotingClient(**remoting_options(tls), credentials=pair)
        self._deadline = _Deadline()
        self._before_5: set[str] = set()
        """Addresses of brokers of RocketMQ 4."""
        self._changed = threading.Condition()
        self._running = 0
        """Calls under way, on any thread."""
        self._takes_calls = True
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more calls."""
        return not self._takes_calls

    @property
    def state(self) -> str:
        """Whether it may be used: `open`, `closed`, or `forked` in a child of its process."""
        if self.is_closed:
            return "closed"
        return "open" if self._owner.is_here else "forked"

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Give all requests inside one deadline together; nested uses share the outer one's."""
        if self._deadline.at is not None:
            yield
            return
        self._owner.check()
        with self._changed:
            if not self._takes_calls:
                raise ClientClosed("this administrator is closed; create a new one")
            self._running += 1
        self._deadline.at = time.monotonic() + self._timeout
        try:
            yield
        finally:
            self._deadline.at = None
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def ask(
        self,
        address: str,
        code: RequestCode,
        fields: Mapping[str, str],
        also: int = 0,
        *,
        body: bytes = b"",
        share: int = 1,
    ) -> bytes:
        """
        Ask one server and return the body of its answer. The code *also* counts as success without a body.

        With a *share* of 3 it may take a third of the time left.
        """
        answer, _, content = self.exchange(address, code, fields, (also,), body=body, share=share)
        return content if answer == ResponseCode.SUCCESS else b""

    def exchange(
        self,
        address: str,
        code: RequestCode,
        fields: Mapping[str, str],
        also: Collection[int] = (),
        *,
        body: bytes = b"",
        share: int = 1,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Ask one server and return code, fields and body of its answer; the codes *also* count as success."""
        if self._is_closed:
            raise ClientClosed("this administrator was closed during the call; create a new one")
        left = self.left(address, code.name) / share
        try:
            answer, remark, answered, content = self._client.call(address, code, fields, body, timeout=left)
        except ConnectionFailed as error:
            if self._speaks_tls and "tls" in str(error):
                error.add_note("this administrator speaks TLS over remoting, too; tls=False speaks plaintext")
            raise
        if answer == ResponseCode.SUCCESS or answer in also:
            return answer, answered, content
        raise refusal(address, code.name, answer, remark)

    def topic(self, address: str, name: str, share: int = 1) -> Mapping[str, Any] | None:
        """Return one broker's settings of a topic, in RocketMQ's fields; None if it has no such topic."""
        try:
            body = self.ask(
                address, RequestCode.GET_TOPIC_CONFIG, {"topic": name}, ResponseCode.TOPIC_NOT_EXIST, share=share
            )
        except Unsupported:
            self._before_5.add(address)
            return self.topics(address, share).get(name)
        self._before_5.discard(address)  # it may have been upgraded
        return decoded(address, "the settings of a topic", lambda: java_json.loads_object(body)) if body else None

    def topics(self, address: str, share: int = 1) -> Mapping[str, Mapping[str, Any]]:
        """Return one broker's settings of all topics by name, in RocketMQ's fields."""
        body = self.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, {}, share=share)

        def read() -> dict[str, Mapping[str, Any]]:
            table = java_json.loads_object(body).get("topicConfigTable") or {}
            return {str(name): dict(topic) for name, topic in table.items()}

        return decoded(address, "topics", read)

    def keeps_types(self, address: str) -> bool:
        """Return whether topics have a type of messages on a broker that was asked for a topic."""
        return address not in self._before_5

    def check_types(self, addresses: Iterable[str]) -> None:
        """Raise `Unsupported` unless topics have a type of messages on these brokers, which were asked for a topic."""
        for address in addresses:
            if not self.keeps_types(address):
                raise Unsupported(
                    f"the broker at {address} is of RocketMQ 4, whose topics have no message type: give none"
                )

    def left(self, address: str, request: str) -> float:
        """Return the seconds that are left of the current call. Raises `RequestTimeout` if none are."""
        left = self._timeout if self._deadline.at is None else self._deadline.at - time.monotonic()
        if left <= 0:
            raise RequestTimeout(
                f"the call did not end within {self._timeout:g} s; {address} was not asked ({request}): "
                "call it again, or give Admin a longer timeout"
            )
        return left

    def close(self, timeout: timedelta | float) -> None:
        """Take no more calls, wait up to *timeout* for those under way, and close the connections. Idempotent."""
        limit = min(seconds(timeout), threading.TIMEOUT_MAX / 2)
        if not self._owner.is_here:
            return
        with self._changed:
            self._takes_calls = False
            self._changed.wait_for(lambda: not self._running, limit)
        self._is_closed = True
        self._client.close()
