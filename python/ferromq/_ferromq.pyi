"""Bindings of the Rust core. No logic lives here; `ferromq` re-exports what users need."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

@final
class Clock:
    """Wall milliseconds that never go back, real or moved by hand; one object for store, server and policy."""

    @staticmethod
    def system() -> Clock: ...
    @staticmethod
    def manual(start_ms: int) -> Clock: ...
    @property
    def is_manual(self) -> bool: ...
    def now_ms(self) -> int: ...
    def advance(self, ms: int) -> None: ...

@final
class StoredMessage:
    """A record of the commit log, decoded; attributes are made when asked for."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    message_id: str
    """UNIQ_KEY where the producer set one, else RocketMQ's offset message id."""
    offset_message_id: str
    tag: str | None
    keys: tuple[str, ...]
    raw: bytes
    """The record as it lies on disk."""

@final
class Store:
    """
    The message store of one directory.

    Raises `StoreLocked`, `CorruptStore`, `StoreFull`, `StoreClosed`, `MessageTooLarge` (from `ferromq.errors`).
    Options are the fields of the Rust `StoreConfig`; defaults live there.
    """

    def __new__(
        cls,
        directory: str,
        clock: Clock,
        *,
        commit_log_file_size: int | None = None,
        consume_queue_file_entries: int | None = None,
        index_slots: int | None = None,
        index_entries: int | None = None,
        sync_flush: bool = False,
        flush_interval_ms: int | None = None,
        max_message_size: int | None = None,
        disk_reserve: int | None = None,
        progress_interval_ms: int | None = None,
        store_host: str | None = None,
    ) -> Store: ...
    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: Mapping[str, str] | None = None,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int | None = None,
        born_host: str | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> tuple[int, int]:
        """Store one message, wait until it is durable as the flush mode promises; (queue offset, physical offset)."""

    def get(
        self, topic: str, queue_id: int, offset: int, max_count: int = 32, tags: str = "*"
    ) -> tuple[str, list[StoredMessage], int]:
        """Status name (`FOUND`, `NO_MATCHED_MESSAGE`, …), messages, next offset."""

    def message_at(self, physical_offset: int) -> StoredMessage | None: ...
    def query_by_key(
        self, topic: str, key: str, max_count: int = 32, begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> list[StoredMessage]: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int: ...
    def committed_offset(self, group: str, topic: str, queue_id: int) -> int | None: ...
    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None: ...
    def queues(self) -> dict[str, list[int]]: ...
    def stats(self) -> dict[str, int]: ...
    def close(self) -> None: ...

@final
class Request:
    """A cold request."""

    route: int | str
    """Remoting request code, or the bare gRPC method name."""
    connection: int
    peer: str
    """`host:port` of the other side."""
    fields: dict[str, str]
    """Remoting extFields, or gRPC metadata with names in lower case."""
    body: bytes

Response = bytes | tuple[int, str | None, dict[str, str], bytes]
"""gRPC: the encoded message. Remoting: (code, remark, extFields, body)."""

@final
class Server:
    """
    One server: remoting and gRPC listeners, hot verbs in Rust, cold requests handed to registered functions.

    Handlers run on a bounded pool of threads, one call each; an exception becomes SYSTEM_ERROR (1) or INTERNAL_SERVER_ERROR.
    """

    def __new__(
        cls, clock: Clock, *, store: Store | None = None, broker_name: str = "", handler_threads: int = 8
    ) -> Server: ...
    def register(self, route: int | str, handler: Callable[[Request], Response | None]) -> None:
        """Answer *route* with *handler* (None: no answer). Raises ValueError where *route* is a hot verb."""

    def on_missing(self, handler: Callable[[str, str, str], bool]) -> None:
        """*handler*(kind, name, peer), kind `topic` or `group`: create it where allowed, push its entry, return whether it is there now."""

    def on_telemetry(self, handler: Callable[[int, int, str, dict[str, str], bytes | None], None]) -> None:
        """*handler*(stream, connection, peer, metadata, message); message None: the stream ended. Calls of one stream come in order."""

    def on_close(self, handler: Callable[[int], None]) -> None:
        """*handler*(connection) after a connection is gone."""

    def listen_grpc(self, address: str) -> int:
        """Serve gRPC on `host:port` (port 0: any) and return the port. Raises OSError naming the address."""

    def listen_remoting(self, address: str) -> int: ...
    def put_topic(
        self, name: str, *, read_queues: int, write_queues: int, permission: int, message_type: str = "NORMAL"
    ) -> None:
        """permission: RocketMQ's bits, 4 read, 2 write. message_type: NORMAL, FIFO, DELAY, TRANSACTION, UNSPECIFIED (any)."""

    def remove_topic(self, name: str) -> None: ...
    def put_group(self, name: str, *, enabled: bool = True, max_attempts: int = 17, from_beginning: bool = True) -> None: ...
    def remove_group(self, name: str) -> None: ...
    def send_telemetry(self, stream: int, message: bytes) -> bool:
        """Send an encoded TelemetryCommand to a client; False where the stream is gone."""

    def close_connection(self, connection: int) -> None: ...
    def stats(self) -> dict[str, int]:
        """Counters: connections, sent, received, acked, parked, cold_calls, demoted, …"""

    def stop(self, timeout: float = 5.0) -> None:
        """Stop listening, let requests under way end, close connections. Idempotent."""

@final
class RemotingClient:
    """Outgoing remoting calls over kept connections, one a peer. Thread-safe; releases the interpreter lock."""

    def __new__(cls) -> RemotingClient: ...
    def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout: float = 3.0,
    ) -> tuple[int, str | None, dict[str, str], bytes]:
        """(code, remark, extFields, body). Raises `ConnectionFailed` or `RequestTimeout`."""

    def close(self) -> None: ...

def encode_register_body(topics_json: bytes) -> bytes: ...
def crc32(data: bytes) -> int: ...
def decode_records(data: bytes) -> list[StoredMessage]:
    """Decode records laid one after the other, as QUERY_MESSAGE and PULL_MESSAGE answer. Raises `ValueError` for bytes that are not records."""

def pull_columns(parts: Sequence[bytes], packed: bool, until: int) -> dict[str, Any]:
    """
    Decode the messages of one PullMessage stream into the buffers of Arrow columns.

    *packed*: each part is a sequence of length-prefixed responses (`x-ferromq-packed`), else one response. Rows at
    and after queue offset *until* are left out. Returns `rows`, `status` ((code, message) or None), `next_offset` (or
    None) and `columns`: name → (null count, validity or None, buffers in Arrow's order, children's after their
    parents'). Raises `ValueError` for bytes that are no responses.
    """

def init_logging(filter: str) -> None:
    """Print Rust logs to stderr, filtered as `info,ferromq_store=debug`."""

def forked_child() -> None: ...
