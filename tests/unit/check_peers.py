"""A broker's parts for transactions, over a real store, and producers that answer checks."""

import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferromq._ferromq import Clock, Store, StoredMessage
from ferromq._proto import messages as pb
from ferromq.broker.clients.client import Client
from ferromq.broker.clients.table import ClientTable
from ferromq.broker.transactions.check_back import CheckReport, TransactionChecker
from ferromq.broker.transactions.check_requests import CheckSender
from ferromq.broker.transactions.end_transaction import Decision, EndRequest, TransactionEnder
from ferromq.broker.transactions.half_message_index import HalfMessageIndex
from ferromq.broker.transactions.half_records import GROUP
from ferromq.config.transactions import TransactionConfig
from ferromq.protocol.codes import RequestCode

HALF, OP, DISCARDED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
NOW = 1_700_000_000_000
ROUND = 30_000


def allow_all(*_request: object) -> bool:
    """Let every user send to every topic."""
    return True


class Producers:
    """Stands for the server: records the checks of producers."""

    def __init__(self) -> None:
        self.remoting: list[tuple[int, Mapping[str, str], bytes]] = []
        self.telemetry: list[tuple[int, pb.TelemetryCommand]] = []
        self.gone: set[int] = set()
        self.strangers: set[str | None] = set()
        # Requests that need neither a signature nor a policy.
        self.open: set[int | str] = set()
        # The length of its queue, and how many it reads during a wait.
        self.room: int | None = None
        self.reads = 0
        self.pauses = 0

    def push(self, connection: int, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> bool:
        """Take a check."""
        assert code == RequestCode.CHECK_TRANSACTION_STATE
        if connection in self.gone or not self._has_room():
            return False
        self.remoting.append((connection, fields or {}, body))
        return True

    def allows(self, user: str | None, peer: str, topic: str, action: str) -> bool:
        """Allow all users but strangers to send."""
        assert (bool(peer), topic, action) == (True, "orders", "Pub")
        return user not in self.strangers

    def send_telemetry(self, stream: int, message: bytes) -> bool:
        """Take a command."""
        if not self._has_room():
            return False
        self.telemetry.append((stream, pb.TelemetryCommand.FromString(message)))
        return True

    def pause(self, _seconds: float) -> bool:
        """Read the queue, if this client reads at all."""
        self.pauses += 1
        if self.room is not None:
            self.room += self.reads
        return False

    def _has_room(self) -> bool:
        if self.room is None:
            return True
        self.room -= 1
        if self.room < 0:
            self.room = 0
            return False
        return True


class Broker:
    """A broker's parts for transactions, over a real store; `kill` restarts from the stored state."""

    def __init__(self, directory: Path, *, is_indexed: bool = True) -> None:
        self.clock = Clock.manual(NOW)
        self.config = TransactionConfig()
        self.directory = directory
        self.is_indexed = is_indexed
        self.producers = Producers()
        self.table = ClientTable(120_000, lambda _change: None)
        self.open()

    def open(self) -> None:
        """Open the store and its tables."""
        self.store = Store(
            str(self.directory),
            self.clock,
            commit_log_file_size=1 << 20,
            index_slots=100,
            index_entries=400,
            index_enabled=self.is_indexed,
            retention_age=timedelta(hours=72),
        )
        self.begin()

    def begin(self) -> None:
        """Find the open ones again."""
        self.settle()
        halves = HalfMessageIndex(self.store)
        self.ends = TransactionEnder(self.store, halves, allows=allow_all)
        self.checks = TransactionChecker(
            self.store,
            halves,
            CheckSender(self.producers, "broker-a", self.table, lambda route: route in self.producers.open),
            config=lambda: self.config,
            is_slave=lambda: False,
            now_ms=self.clock.now_ms,
            pause=self.producers.pause,
            allows=allow_all,
        )

    def settle(self) -> None:
        """Wait until readers see what was stored: they are a moment behind."""
        for _ in range(60_000):
            stats = self.store.stats()
            if stats["dispatched_offset"] == stats["max_physical_offset"]:
                return
            threading.Event().wait(0.001)
        pytest.fail(f"readers never saw it: {self.store.stats()}")

    def half(self, body: bytes = b"paid", **properties: str) -> EndRequest:
        """Store a half message as the send path does, and return its commit."""
        given = {"PGROUP": "payers", "TRAN_MSG": "true", "REAL_TOPIC": "orders", "REAL_QID": "3", "UNIQ_KEY": "K"}
        queue_offset, physical_offset = self.store.append(
            HALF,
            0,
            body,
            {**given, **properties},
            born_timestamp=self.clock.now_ms(),
            born_host="10.0.0.9:1234",
        )
        return EndRequest("payers", physical_offset, queue_offset, Decision.COMMIT)

    def round(self, after: int = ROUND) -> CheckReport:
        """Let time pass, and run the checks."""
        self.settle()
        self.clock.advance(after)
        return self.checks.round(self.clock.now_ms())

    def seen(self, topic: str = "orders", queue_id: int = 3) -> list[StoredMessage]:
        """Return all messages of a queue."""
        self.settle()
        return self.store.get(topic, queue_id, 0, 10_000)[1]

    def committed(self) -> tuple[int | None, int | None]:
        """Return the committed offsets of half and op messages."""
        return self.store.committed_offset(GROUP, HALF, 0), self.store.committed_offset(GROUP, OP, 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Yield one with a producer over remoting."""
    made = Broker(tmp_path)
    made.table.produce("payers", Client("p", 7, "10.0.0.9:1234", "JAVA", 513), NOW)
    yield made
    made.store.close()


def answer(broker: Broker, decision: Decision = Decision.COMMIT, number: int = -1) -> EndRequest:
    """Return what the producer answers to a check."""
    _, fields, _ = broker.producers.remoting[number]
    return EndRequest(
        "payers", int(fields["commitLogOffset"]), int(fields["tranStateTableOffset"]), decision, is_checked=True
    )


def resume(broker: Broker, message_id: str) -> tuple[int, str | None]:
    """Request another check of a transaction (323); return code and remark."""
    request: Any = SimpleNamespace(fields={"topic": DISCARDED, "msgId": message_id}, peer="10.0.0.7:1")
    return broker.checks.resume(request)[:2]
