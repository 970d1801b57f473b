"""
What producers and consumers are besides sending and receiving: a name, a session, a life that ends.

Shared by the synchronous client and `ferromq.aio`.
"""

import atexit
import logging
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from ferromq._proto import messages as pb
from ferromq.client.connection import Cancel, Channels
from ferromq.client.reachability import connects
from ferromq.client.runner import Runner
from ferromq.client.session import Session
from ferromq.client.tls import Tls, TlsFile, check_tls, read_tls
from ferromq.core.arguments import whole_number
from ferromq.core.credentials import credentials_of
from ferromq.core.plans import ATTEMPT, Common, no_answer
from ferromq.core.requests import Identity, Plan, T, duration, seconds
from ferromq.core.retry import Retry
from ferromq.core.routes import Routes
from ferromq.core.watch import check_telemetry
from ferromq.errors import ClientClosed, ConnectionFailed
from ferromq.process.clock import Clock, clock_of_clients
from ferromq.process.fork import Owner
from ferromq.protocol import naming
from ferromq.protocol.endpoints import parse_address

if TYPE_CHECKING:
    from ferromq.client.links import Links
    from ferromq.client.remoting_session import RemotingSession
    from ferromq.core.request_plans import Requests

_log = logging.getLogger("ferromq.client")

_AT_EXIT = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """What every client is made with."""

    endpoint: str
    """Addresses of brokers, or after `namesrv://` of name servers."""
    timeout: timedelta | float
    attempts: int
    tls: bool | TlsFile | Tls = False
    clock: Clock | None = None
    """From which delays count; None: the system's, and in a test with `ferromq_clock` that one."""
    attempt_timeout: float = ATTEMPT
    """Seconds that one attempt may take, at most."""
    namespace: str = ""
    """In which its topics and groups are."""
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    """With which requests are signed; None: those of the environment."""


def check_shared(timeout: timedelta | float, attempts: int, tls: bool | TlsFile | Tls, telemetry: object) -> None:
    """Check what the clients of a connection are made with. Raises what they would raise."""
    seconds(timeout)
    whole_number("attempts", attempts, 1)
    check_tls(tls)
    check_telemetry(telemetry)


class Client:
    """A name, a session and the means to run plans; thread-safe."""

    def __init__(self, what: str, options: Options, subscription: pb.Subscription | None = None) -> None:
        whole_number("attempts", options.attempts, 1)
        if not isinstance(options.clock, Clock | None):
            raise TypeError(f"clock must be a ferromq.Clock, not {options.clock!r}")
        naming.check_namespace(options.namespace)
        self._owner = Owner(what)
        self._what = what
        identity = Identity(credentials_of(options.access_key, options.secret_key))
        endpoints, are_name_servers = parse_address(options.endpoint)
        self.common = Common(identity, endpoints, seconds(options.timeout), options.attempts, Routes())
        self.common.has_name_servers = are_name_servers
        self.common.attempt_timeout = options.attempt_timeout
        self.common.namespace = options.namespace
        clock = options.clock or clock_of_clients()
        if clock is not None:
            self.common.wall = clock.now_ms
        kind = pb.ClientType.PRODUCER if subscription is None else pb.ClientType.SIMPLE_CONSUMER
        settings = pb.Settings(
            client_type=kind,
            request_timeout=duration(self.common.timeout),
            backoff_policy=pb.RetryPolicy(max_attempts=options.attempts),
            user_agent=identity.user_agent(),
        )
        if subscription is None:
            settings.publishing.SetInParent()
        else:
            settings.subscription.CopyFrom(subscription)
            self.common.is_anonymous = not subscription.group.name
        self.tls = read_tls(options.tls)
        self._requests: tuple[Requests, Links] | None = None
        self._tls_options = options.tls
        self.channels = Channels(identity, self.tls)
        self.common.takes_records = self.channels.takes_records
        self.common.routes.on_avoided, self.common.routes.on_trusted = self.channels.avoid, self.channels.trust
        self.common.routes.on_changed = self.channels.drop_routes
        self.common.connects = connects
        self.settings = settings
        """What the servers said last; until then what this client says."""
        self._retry = settings, Retry.of(settings)
        self.remoting: RemotingSession | None = self._remoting_session() if are_name_servers else None
        """Answers calls of brokers behind name servers; None for those with an endpoint."""
        self.session: Session | RemotingSession = self.remoting or self._grpc_session(settings)
        self._runner = Runner(self.channels, self._join, self.remoting)
        self._closing = threading.Lock()
        self.is_closed = False
        self._at_exit: list[weakref.WeakMethod[Callable[[float], None]]] = []
        # A program that ends without `close`: clients made after an embedded broker end before it.
        atexit.register(self._close_at_exit)

    def _grpc_session(self, settings: pb.Settings) -> Session:
        session, common = Session(self.channels, settings, self._on_settings), self.common
        common.takes_compression = self.channels.takes_compression
        common.takes_batches = self.channels.takes_batches
        session.is_wanted = lambda endpoint: endpoint in common.endpoints or common.routes.has(endpoint)
        session.on_change = common.routes.distrust_all
        self.channels.use.is_needed = lambda endpoint: session.is_wanted(endpoint) or session.has(endpoint)
        return session

    def _remoting_session(self) -> "RemotingSession":
        from ferromq.client.remoting_session import RemotingSession  # noqa: PLC0415 (asyncio and ssl, as below)

        return RemotingSession(self.common, self._tls_options, lambda: self.settings, self._on_settings)

    def check(self) -> None:
        """
        Raise unless the client may be used: `ForkedProcess` in a child, `ClientClosed` after `close`.

        A producer that was never used begins in the child: servers fork after they have loaded the program.
        """
        if not self._owner.is_here:
            if self._is_unused:
                self.common.identity.take_name()
                self._owner.take_over()
                self.channels.here.clear()
            self._owner.check()
        if self.is_closed:
            raise ClientClosed(f"this {self._what} is closed; make a new one")

    @property
    def _is_unused(self) -> bool:
        """Says whether it is a producer without threads and connections."""
        is_producer = self.settings.HasField("publishing")
        return is_producer and self.session.on_orphan is None and not self._is_begun

    @property
    def _is_begun(self) -> bool:
        """Says whether it has connections."""
        return self.channels.is_begun or (self.remoting is not None and self.remoting.is_begun)

    @property
    def is_here(self) -> bool:
        """Says whether this is the process that made the client."""
        return self._owner.is_here

    @property
    def state(self) -> str:
        """Whether it may be used: `open`, `closed`, or `forked` in a child that must make its own."""
        if self.is_closed:
            return "closed"
        return "open" if self.is_here or self._is_unused else "forked"

    def facts(self) -> Iterator[tuple[str, object]]:
        """Yield what `repr` and notebooks show of every client."""
        yield "endpoint", self.common.address
        if self.common.namespace:
            yield "namespace", self.common.namespace

    def run(self, plan: Plan[T], cancel: Cancel | None = None) -> T:
        """Run a plan in this thread. Raises `Cancelled` where *cancel* ended it."""
        return self._runner.run(plan, cancel)

    @property
    def retry(self) -> Retry:
        """The retry policy of the settings; read once for each that come, for workers ask for it with each message."""
        settings, retry = self._retry
        if settings is not self.settings:
            settings = self.settings
            retry = Retry.of(settings)
            self._retry = settings, retry
        return retry

    @property
    def requests(self) -> "Requests":
        """Its requests and replies; the first use makes them."""
        with self._closing:
            if self.is_closed:
                raise ClientClosed(f"this {self._what} is closed; make a new one")
            if self._requests is None:
                from ferromq.client.links import make_requests  # noqa: PLC0415 (asyncio and ssl, which few clients need)

                is_requester = self.settings.HasField("publishing")
                self._requests = make_requests(self.common.identity, self._tls_options, is_requester=is_requester)
            return self._requests[0]

    def _join(self, endpoint: str, timeout: float, topic: str | None) -> None:
        assert isinstance(self.session, Session)
        if topic is not None:
            self.session.publish(self.common.whole(topic))
        if self.session.is_known(endpoint):
            return
        try:
            self.session.join(endpoint).result(timeout)
        except FutureTimeout:
            raise no_answer(f"waiting for the settings of {endpoint}", timeout) from None

    def _on_settings(self, settings: pb.Settings) -> None:
        self.settings = settings
        self.common.max_attempts = settings.backoff_policy.max_attempts
        if settings.publishing.max_body_size > 0:
            self.common.max_body = settings.publishing.max_body_size

    def before_exit(self, finish: Callable[[float], None]) -> None:
        """Have a method called with a time (monotonic) before the client is closed at exit; weakly held."""
        with self._closing:
            self._at_exit.append(weakref.WeakMethod(finish))

    def forget(self, finish: Callable[[float], None]) -> None:
        """Have what `before_exit` was told not called."""
        with self._closing:
            self._at_exit = [each for each in self._at_exit if each() not in {None, finish}]

    def warn_unclosed(self, client: object) -> None:
        """
        Warn that nothing refers to a *client* any more which was not closed, as of files; it goes on until the exit.

        It is not closed here: a loop, a message or a transaction of it may still be in use. The garbage collector calls
        this in any thread, so it takes no lock.
        """
        if self.is_closed or not self.is_here or not self._is_begun or sys.is_finalizing():
            return
        text = f"{client!r} was never closed: use it in a with statement, or call close()"
        warnings.warn(text, ResourceWarning, source=client, stacklevel=2)

    def _close_at_exit(self) -> None:
        until = time.monotonic() + _AT_EXIT
        if self._owner.is_here and not self.is_closed:
            for reference in self._at_exit:
                finish = reference()
                try:
                    if finish is not None:
                        finish(until)
                except Exception:  # noqa: BLE001 (the others end, too)
                    _log.exception("this %s did not end what it had begun before the program ended", self._what)
        self.close(until)

    def close(self, until: float) -> bool:
        """End everything before *until* (monotonic); says whether it was this call that did. Not in a child."""
        with self._closing:
            if self.is_closed or not self._owner.is_here:
                return False
            self.is_closed = True
        atexit.unregister(self._close_at_exit)
        if self._requests is not None:
            requests, links = self._requests
            requests.waiting.fail(ConnectionFailed(f"the {self._what} was closed while a request waited for its reply"))
            links.close(until)
        self.session.close(until)
        self._runner.close()
        return True
