"""A name server and two brokers on one clock, for tests that take brokers out of service."""

import contextlib
from datetime import datetime
from pathlib import Path
from typing import Any

from ports import kept_port

import ferromq
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock

FREE = "127.0.0.1:0"


class TwoBrokers:
    """A name server and two brokers on one clock, which only the test moves."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack, now: datetime | int) -> None:
        self.directory, self.stack = directory, stack
        self.clock = Clock.manual(now)
        config = NameServerConfig(listen=stack.enter_context(kept_port()))
        self.name_server = stack.enter_context(contextlib.closing(NamesrvController(config, clock=self.clock)))
        self.stopped: list[str] = []
        self.a, self.b = self.start("a"), self.start("b")
        self.admin = stack.enter_context(ferromq.Admin(self.name_server.address))
        self.admin.create_topic("orders", queues=2)
        self.admin.create_topic("accounts", queues=2, message_type="FIFO")

    def start(self, name: str, **more: Any) -> BrokerController:
        """Start a broker; `stopped` says that it asked to be stopped."""
        options = {"listen": FREE, "grpc_listen": FREE, "fast_listen": "off", "commit_log_file_size": "1MiB", **more}
        given = {"store": self.directory / name, "namesrv": self.name_server.address, "name": name, **options}
        broker = BrokerController(
            BrokerConfig.from_options(given), clock=self.clock, on_stop=lambda: self.stopped.append(name)
        )
        self.stack.callback(broker.close)
        return broker
