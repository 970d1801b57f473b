"""
A name server and a broker inside the calling process, on free ports of 127.0.0.1.

They are the same as in the commands; nothing is special to tests or demos.
"""

import atexit
import contextlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Unpack

from ferromq import _ferromq
from ferromq._ferromq import ExpiredFile
from ferromq.admin import Admin
from ferromq.broker.controller import BrokerController
from ferromq.client.makes_clients import Host
from ferromq.client.options import AdminOptions
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.config.options import BrokerOptions, StoreChanges
from ferromq.connecting import Connection
from ferromq.errors import ConfigError, StoreLocked
from ferromq.namesrv.server import NamesrvController
from ferromq.process import logs, temporary_store
from ferromq.process.clock import Clock
from ferromq.process.fork import Owner

__all__ = ["Embedded", "embedded"]

SMALL_FILES = {"commit_log_file_size": 64 << 20, "index_slots": 100_000, "index_entries": 400_000}
"""Sizes of new files for small stores, so that a temporary directory has no empty gigabytes."""
_FREE_PORT = "127.0.0.1:0"
_open = set[tuple[int, str]]()
"""Process and directory of each embedded broker that runs; a fork copies those of its parent."""


class _Running:
    """A running broker and its name server, which end with the process at the latest."""

    def __init__(self, started: contextlib.ExitStack, owner: Owner) -> None:
        self._started = started
        self._owner = owner
        self._is_closed = False
        # So that no temporary directory and no unclean store stay behind.
        atexit.register(self.close)

    @property
    def is_left(self) -> bool:
        """Whether it runs in this process."""
        return not self._is_closed and self._owner.is_here

    def close(self) -> None:
        """Stop them; not in a child of their process."""
        if self._owner.is_here:
            self._is_closed = True
            atexit.unregister(self.close)
            self._started.close()


class Embedded(Connection):
    """
    A connection to its own name server and broker, started by `embedded`. Use it in a `with`, or call `close`.

    It makes clients as any `Connection` does; its producers count delays from its clock.

    A forked child cannot use its parent's: methods raise `ForkedProcess`, and `close` does nothing.
    """

    _what = "embedded broker"
    _again = "start a new one with ferromq.embedded()"

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        clock: Clock,
        archive: Callable[[ExpiredFile], object] | str | None,
        options: Mapping[str, Any],
    ) -> None:
        self._owner = Owner("embedded broker")
        self._clock = clock
        with contextlib.ExitStack() as started:
            started.enter_context(logs.warnings_passed())
            if directory is None:
                directory = temporary_store.make()
                started.callback(shutil.rmtree, directory, ignore_errors=True)
            name_server = NamesrvController(NameServerConfig(listen=_FREE_PORT), clock=clock)
            started.callback(name_server.close)
            addresses = {"namesrv": (name_server.address,), "listen": _FREE_PORT, "grpc_listen": _FREE_PORT}
            config = BrokerConfig.from_options({"store": directory, **addresses, **SMALL_FILES, **options})
            place = os.getpid(), os.path.realpath(directory)
            try:
                self._broker = BrokerController(config, clock=clock, archive=archive)
            except StoreLocked:
                if place not in _open:
                    raise
                raise StoreLocked(
                    f"{directory} is the store of an embedded broker of this process; close that one, or use another "
                    "directory"
                ) from None
            _open.add(place)
            started.callback(_open.discard, place)
            started.callback(self._broker.close)
            self._name_server = name_server
            self._running = _Running(started.pop_all(), self._owner)
        # Clients go where the broker says it is.
        is_advertised = bool(self._broker.config.advertise or self._broker.config.grpc_advertise)
        servers = {} if is_advertised else {self._broker.endpoint: self._broker.server}
        super().__init__(self._broker.endpoint, {}, Host(clock, servers, self._owner))

    def _check(self) -> None:
        self._owner.check()
        super()._check()

    @property
    def remoting(self) -> str:
        """`host:port` of the broker for clients of RocketMQ 4."""
        return self._broker.address

    @property
    def namesrv(self) -> str:
        """`host:port` of the name server."""
        return self._name_server.address

    @property
    def clock(self) -> Clock:
        """The clock of store and servers; `mq.clock.advance(days=3)` starts all work that becomes due."""
        return self._clock

    @property
    def store(self) -> _ferromq.Store:
        """The broker's store, for reading. Use a producer to write."""
        self._owner.check()
        return self._broker.store

    @property
    def broker(self) -> BrokerController:
        """The broker."""
        self._owner.check()
        return self._broker

    @property
    def name_server(self) -> NamesrvController:
        """The name server."""
        self._owner.check()
        return self._name_server

    def _make_admin(self, options: AdminOptions) -> Admin:
        return Admin(self.namesrv, **options)

    def configure(self, **options: Unpack[StoreChanges]) -> None:
        """
        Change flush and retention: `flush`, `flush_every`, and the options that begin with `retention_`.

        None turns an option of retention off. Raises `ConfigError`.
        """
        self.broker.configure(**options)

    def close(self, timeout: timedelta | float = 5.0) -> None:
        """
        Close the clients that it made, then stop the broker and the name server. Idempotent.

        The clients have *timeout* (float: seconds), as in `Connection.close`. The broker then stops in its own time: it
        brings its log to the disk. A temporary directory is removed.
        """
        if self._owner.is_here:
            try:
                super().close(timeout)
            finally:
                self._running.close()

    def __del__(self) -> None:
        # Clients that it made may be in use: it runs on.
        if hasattr(self, "_running") and self._running.is_left and not sys.is_finalizing():
            text = f"{self!r} was never closed, and runs on: use it in a with statement, or call close()"
            warnings.warn(text, ResourceWarning, source=self, stacklevel=1)

    @property
    def _state(self) -> str:
        return super()._state if self._owner.is_here else "forked"

    def _facts(self) -> Iterator[tuple[str, object]]:
        yield from super()._facts()
        yield "remoting", self.remoting
        yield "namesrv", self.namesrv
        yield "store", self._broker.config.store


def embedded(
    directory: str | os.PathLike[str] | None = None,
    *,
    clock: Clock | _ferromq.Clock | None = None,
    archive: Callable[[ExpiredFile], object] | str | None = None,
    **options: Unpack[BrokerOptions],
) -> Embedded:
    """
    Start a name server and a broker in this process, and return when they are ready.

    *directory* is a new or existing store directory. By default it is a temporary one, which `close` removes. If a
    signal ends the process, a later start removes it; `embedded` installs no signal handler.

    Options are the fields of `BrokerConfig` and of its `StoreConfig`. For example, with `flush="group"` a send is
    answered once it is on disk. *archive*, a function or its name as `module:function`, is called with each file of the
    commit log before the file is deleted; an exception keeps the file.

    Raises `StoreLocked` if another broker has the directory open, and `ConfigError` for a wrong option.

        with ferromq.embedded() as mq, mq.producer() as producer:
            producer.send("orders", b"hello")
    """
    given: Mapping[str, object] = options
    if "store" in given:
        raise ConfigError(f"store is {given['store']!r}; embedded takes the directory as its first argument")
    if not isinstance(clock, Clock):
        clock = Clock(clock)
    return Embedded(directory, clock, archive, given)
