"""Two brokers that are restarted one after the other."""

import contextlib
import threading
from pathlib import Path
from typing import Any

from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController

FREE = "127.0.0.1:0"
PATIENCE = 60.0


class RollingBrokers:
    """A name server and the brokers `a` and `b`, each of which can be drained, stopped and started anew."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack, **options: Any) -> None:
        self._directory, self._stack, self._options = directory, stack, options
        self.name_server = stack.enter_context(contextlib.closing(NamesrvController(NameServerConfig(listen=FREE))))
        self._ended = {"a": threading.Event(), "b": threading.Event()}
        self.brokers = {name: self._start(name, FREE, FREE) for name in self._ended}

    def _start(self, name: str, listen: str, grpc_listen: str) -> BrokerController:
        options = {"fast_listen": "off", "commit_log_file_size": "4MiB", **self._options}
        options |= {"listen": listen, "grpc_listen": grpc_listen, "namesrv": self.name_server.address}
        given = {"store": self._directory / name, "name": name, **options}
        self._ended[name].clear()
        broker = BrokerController(BrokerConfig.from_options(given), on_stop=self._ended[name].set)
        self._stack.callback(broker.close)
        return broker

    def restart(self, name: str) -> None:
        """Drain a broker as its options say, stop it, and start it at the same addresses."""
        broker = self.brokers[name]
        broker.drain()
        assert self._ended[name].wait(broker.config.membership.drain.total_seconds() + PATIENCE)
        broker.close()
        self.brokers[name] = self._start(name, broker.address, broker.endpoint)
