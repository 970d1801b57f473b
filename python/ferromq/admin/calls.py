"""Requests of the administrator to name servers and brokers: who is asked, for how long, and what a refusal raises."""

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from ferromq._ferromq import RemotingClient
from ferromq.core.requests import seconds
from ferromq.errors import (
    ClientClosed,
    ConnectionFailed,
    FerromqError,
    Forbidden,
    IllegalName,
    OutcomeUnknown,
    RequestError,
    RequestTimeout,
    ServerError,
    StoreFull,
    TopicNotFound,
    Unsupported,
)
from ferromq.process.fork import Owner
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.endpoints import parse_endpoints

_ERRORS: Mapping[int, type[RequestError]] = {
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.SYSTEM_ERROR: ServerError,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Unsupported,
    ResponseCode.NO_PERMISSION: Forbidden,
}
_ABOUT_NAME = re.compile(r"\b(topic|group)\b.*\b(name|illegal|characters?|blank|long|length|reserved)\b", re.IGNORECASE)


class _Deadline(threading.local):
    """The deadline of this thread's call."""

    at: float | None = None
    """Monotonic seconds."""


class Calls:
    """Asks servers within the deadline of the current call. Thread-safe."""

    def __init__(self, namesrv: str, timeout: timedelta | float) -> None:
        self.name_servers = parse_endpoints(namesrv)
        self._owner = Owner("administrator")
        self._answered: str | None = None
        """The name server that answered last."""
        self._timeout = seconds(timeout)
        self._client = RemotingClient()
        self._is_closed = False
        self._deadline = _Deadline()

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Give all requests inside one deadline together; nested uses share the outer one's."""
        before = self._deadline.at
        if before is None:
            self._deadline.at = time.monotonic() + self._timeout
        try:
            yield
        finally:
            self._deadline.at = before

    def ask_name_servers(self, code: RequestCode, fields: Mapping[str, str] | None = None) -> bytes:
        """Ask the name servers in turn, until one answers, and return the body of its answer."""
        failure: FerromqError | None = None
        for address in self.in_turn():
            try:
                body = self.ask(address, code, fields or {})
            except OutcomeUnknown as error:
                failure = error
                if isinstance(error, ConnectionFailed) and "lost" in str(error):
                    failure = ConnectionFailed(f"{error}; is this a name server's port (9876)?")
            except RequestError:  # the server answered
                self._answered = address
                raise
            else:
                self._answered = address
                return body
        assert failure is not None
        raise failure

    def in_turn(self) -> list[str]:
        """Return the name servers, the one that answered last first. A hanging one then delays only one call."""
        return sorted(self.name_servers, key=lambda address: address != self._answered)

    def ask(
        self, address: str, code: RequestCode, fields: Mapping[str, str], also: int = 0, *, body: bytes = b""
    ) -> bytes:
        """Ask one server and return the body of its answer. The code *also* counts as success without a body."""
        self._owner.check()
        if self._is_closed:
            raise ClientClosed("this administrator is closed; create a new one")
        answer, remark, _, content = self._client.call(address, code, fields, body, timeout=self._limit(address, code))
        if answer == ResponseCode.SUCCESS:
            return content
        if answer == also:
            return b""
        text = f"{address} refused {code.name}: {remark or f'code {answer}, without a remark'}"
        if answer == ResponseCode.SERVICE_NOT_AVAILABLE and (remark or "").startswith("disk full"):
            raise StoreFull(text)
        # RocketMQ has one code for all wrong parameters. Names are checked before sending, but its rules may differ.
        about_name = answer == ResponseCode.INVALID_PARAMETER and _ABOUT_NAME.search(remark or "")
        raise (IllegalName if about_name else _ERRORS.get(answer, RequestError))(text, answer, remark or "")

    def _limit(self, address: str, code: RequestCode) -> float:
        """Return the seconds that a request may take. A request to a name server leaves time to ask the others."""
        left = self._timeout if self._deadline.at is None else self._deadline.at - time.monotonic()
        if left <= 0:
            raise RequestTimeout(
                f"the call did not end within {self._timeout:g} s; {address} was not asked ({code.name}): "
                "call it again, or give Admin a longer timeout"
            )
        return left / len(self.name_servers) if address in self.name_servers else left

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._owner.is_here:
            self._is_closed = True
            self._client.close()
