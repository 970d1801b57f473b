"""
Starts and stops the embedded brokers of tests.

`Running` is one of them. `RunningBehindProxies` has proxies on its ports, and can be killed and started again.
"""

import contextlib
import shutil
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from ferromq._ferromq import Store
from ferromq.broker.cluster.addresses import reserved
from ferromq.embedding import Embedded, embedded
from ferromq.errors import ConfigError, StoreClosed
from ferromq.process.clock import Clock
from ferromq.testing import captured
from ferromq.testing.clock import VirtualClock
from ferromq.testing.crash_image import copy_image
from ferromq.testing.fault_proxy import FaultProxy
from ferromq.testing.waiting import until

_PATIENCE = 5.0
# A step of days ends no client's registration: its heartbeats come in real time. Nor does it delete messages.
_OF_A_VIRTUAL_CLOCK: Mapping[str, Any] = {"client_lease": timedelta(days=36_500), "retention_age": timedelta.max}
_ANY_PORT = "127.0.0.1:0"
_OURS = ("listen", "fast_listen", "grpc_listen", "advertise", "grpc_advertise")


class Running:
    """An embedded broker, and its addresses."""

    def __init__(self, options: Mapping[str, Any], clock: VirtualClock | None = None) -> None:
        """Start it. Raises `ConfigError` for a wrong option."""
        if "clock" in options:
            raise ConfigError("clock is no option of a test's broker; request the fixture ferromq_clock instead")
        self.clock: Clock = clock or Clock.system()
        """The clock of the broker, also while it is down."""
        self._options = {**(_OF_A_VIRTUAL_CLOCK if clock is not None else {}), **options}
        self._closing = contextlib.ExitStack()
        if clock is not None:
            self._closing.enter_context(clock.settles(self))
        self._mq: Embedded | None = None
        try:
            self._mq = self._open()
        except BaseException:
            self._closing.close()
            raise

    @property
    def mq(self) -> Embedded:
        """The embedded broker. Raises `RuntimeError` while it is down."""
        if self._mq is None:
            raise RuntimeError("the broker is down; ferromq_faults.restart() starts it again")
        return self._mq

    @property
    def is_up(self) -> bool:
        """Whether the broker runs."""
        return self._mq is not None

    @property
    def store(self) -> Store:
        """The broker's store. Raises `RuntimeError` while it is down."""
        return self.mq.store

    @property
    def endpoint(self) -> str:
        """`host:port` for gRPC clients."""
        return self.mq.endpoint

    @property
    def remoting(self) -> str:
        """`host:port` for clients of RocketMQ 4."""
        return self.mq.remoting

    @property
    def namesrv(self) -> str:
        """`host:port` of the name server."""
        return self.mq.namesrv

    def settle_before(self) -> None:
        """Wait until what was sent so far waits for its time. Raises `TimeoutError`."""
        if self._mq is not None:
            store = self._mq.store
            captured.wait_for_dispatch(store)
            until(lambda: captured.has_entered(store), _PATIENCE)

    def settle_after(self) -> None:
        """Wait until every message is delivered whose time has come."""
        if self._mq is not None:
            store, clock = self._mq.store, self.clock
            until(lambda: not captured.is_due(store, clock.now_ms(), captured.FROM_THE_START), _PATIENCE)

    def close(self) -> None:
        """Stop the broker. Idempotent."""
        mq, self._mq = self._mq, None
        if mq is not None:
            self._close_broker(mq)
        self._closing.close()

    def _close_broker(self, mq: Embedded) -> None:
        mq.close()

    def _open(self) -> Embedded:
        return embedded(clock=self.clock, **self._options)


class RunningBehindProxies(Running):
    """A broker whose clients reach it through proxies, on ports that stay the same over restarts."""

    def __init__(self, options: Mapping[str, Any], directory: Path, clock: VirtualClock | None = None) -> None:
        """Start it with a store in *directory*, which it removes at the end. Raises `ConfigError`."""
        for name in _OURS:
            if name in options:
                raise ConfigError(f"{name} is no option of a broker with faults, whose clients connect to a proxy")
        self._directory = directory / "store"
        self._kept: dict[str, Any] = {}
        with contextlib.ExitStack() as started:
            started.callback(shutil.rmtree, directory, ignore_errors=True)
            self._grpc, self._remoting, self._namesrv = (started.enter_context(FaultProxy()) for _ in range(3))
            # What the broker listens on is kept, too: the addresses that it advertises do not name its own ports.
            self._remoting.target = started.enter_context(reserved("listen", _ANY_PORT))
            self._grpc.target = started.enter_context(reserved("grpc_listen", _ANY_PORT))
            super().__init__(options, clock)
            self._closing.push(started.pop_all())

    @property
    def endpoint(self) -> str:
        """`host:port` for gRPC clients."""
        return self._grpc.address

    @property
    def remoting(self) -> str:
        """`host:port` for clients of RocketMQ 4."""
        return self._remoting.address

    @property
    def namesrv(self) -> str:
        """`host:port` of the name server."""
        return self._namesrv.address

    @property
    def clients_proxies(self) -> tuple[FaultProxy, FaultProxy]:
        """The proxies between clients and the broker: gRPC, remoting."""
        return self._grpc, self._remoting

    @property
    def directory(self) -> Path:
        """The directory of the store."""
        return self._directory

    def configure(self, **options: Any) -> None:
        """Change options that change while the broker runs, and keep them over restarts. Raises `ConfigError`."""
        self.mq.configure(**options)
        self._kept |= options

    def stop(self) -> None:
        """Stop the broker as SIGTERM does; then its ports refuse connections."""
        self._end(self.mq)

    def crash(self) -> None:
        """End the broker as SIGKILL does: its clients' connections are reset, its store is left as it is."""
        mq, image = self.mq, self._directory.with_name("crashed")
        self._refuse()
        copy_image(self._directory, image)
        self._end(mq)
        shutil.rmtree(self._directory)
        image.rename(self._directory)

    def restart(self) -> None:
        """Start the broker again with the same store, ports, clock and options; one that runs is stopped first."""
        if self._mq is not None:
            self.stop()
        self._mq = self._open()

    def fail_flush(self) -> None:
        """Let the next flush of the log fail."""
        self.store.fail_next_flush()
        self._fails_flush = True

    def _end(self, mq: Embedded) -> None:
        self._mq = None
        self._close_broker(mq)
        self._refuse()

    def _close_broker(self, mq: Embedded) -> None:
        try:
            mq.close()
        except StoreClosed:
            # A store that stopped writing cannot be closed in order.
            if not self._fails_flush:
                raise

    def _refuse(self) -> None:
        for proxy in (self._grpc, self._remoting, self._namesrv):
            proxy.refuse()

    def _open(self) -> Embedded:
        addresses = {
            "listen": self._remoting.target,
            "grpc_listen": self._grpc.target,
            "fast_listen": "off",
            "advertise": self._remoting.address,
            "grpc_advertise": self._grpc.address,
        }
        self._fails_flush = False
        mq = embedded(self._directory, clock=self.clock, **{**self._options, **addresses, **self._kept})
        self._namesrv.target = mq.namesrv
        for proxy in (self._grpc, self._remoting, self._namesrv):
            proxy.resume()
        return mq
