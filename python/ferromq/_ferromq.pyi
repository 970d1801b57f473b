"""Bindings of the Rust core. No logic lives here; `ferromq` re-exports what users need."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, final, type_check_only

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

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def body(self) -> bytes:
        """As stored: compressed where `sys_flag` has bit 1."""

    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_timestamp(self) -> int: ...
    @property
    def born_host(self) -> str: ...
    @property
    def store_timestamp(self) -> int: ...
    @property
    def store_host(self) -> str: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def prepared_transaction_offset(self) -> int: ...
    @property
    def message_id(self) -> str:
        """UNIQ_KEY where the producer set one, else RocketMQ's offset message id."""

    @property
    def offset_message_id(self) -> str: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def raw(self) -> bytes:
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
        self, topic: str, key: str, max_count: int = 32, begin_ms: int = 0, end_ms: int = ...
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

    @property
    def route(self) -> int | str:
        """Remoting request code, or the bare gRPC method name."""

    @property
    def connection(self) -> int: ...
    @property
    def peer(self) -> str:
        """`host:port` of the other side."""

    @property
    def fields(self) -> dict[str, str]:
        """Remoting extFields, or gRPC metadata with names in lower case."""

    @property
    def body(self) -> bytes: ...

Response: TypeAlias = bytes | tuple[int, str | None, dict[str, str], bytes]
"""gRPC: the encoded message. Remoting: (code, remark, extFields, body)."""

@final
class Server:
    """
    One server: remoting and gRPC listeners, hot verbs in Rust, cold requests handed to registered functions.

    Handlers run on a bounded pool of threads, one call each; an exception becomes SYSTEM_ERROR (1) or
    INTERNAL_SERVER_ERROR.
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
    def put_group(
        self, name: str, *, enabled: bool = True, max_attempts: int = 17, from_beginning: bool = True
    ) -> None: ...
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

# --- the client's messages -------------------------------------------------------------------------------------

@final
class Message:
    """
    A message to send: a body, and what finds it.

    *keys* (one or several) find it in queries, *tag* lets consumers filter, *properties* travel along. Raises
    `TypeError` and `ValueError` for what RocketMQ's records cannot hold: an empty body, a blank or barred tag, a key
    with white space, control characters.
    """

    def __new__(
        cls,
        body: bytes | bytearray | memoryview,
        *,
        keys: str | Iterable[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Message: ...
    @property
    def body(self) -> bytes: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def properties(self) -> dict[str, str]: ...

@type_check_only
class LeaseKeeper(Protocol):
    """Whoever received messages: their `ack` and `change_invisible_duration` end here."""

    def ack_later(self, message: MessageView, /) -> None: ...
    def change_invisible_duration(self, message: MessageView, duration: timedelta, /) -> Any: ...

@final
class MessageView:
    """
    A received message under a lease; attributes are made when asked for.

    It keeps the answer it came with in memory, which holds its neighbours, too: keep `body` rather than many views.
    Timestamps are milliseconds since 1970, as in `StoredMessage`.
    """

    @property
    def topic(self) -> str: ...
    @property
    def body(self) -> bytes:
        """The body as it was sent, decompressed where needed. Raises `ValueError` where that fails."""

    @property
    def tag(self) -> str | None: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def message_group(self) -> str | None: ...
    @property
    def message_id(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def delivery_attempt(self) -> int:
        """1 the first time."""

    @property
    def receipt_handle(self) -> str:
        """Names the lease; changes with its duration."""

    @property
    def born_timestamp(self) -> int: ...
    @property
    def born_host(self) -> str: ...
    @property
    def store_timestamp(self) -> int: ...
    @property
    def store_host(self) -> str: ...
    @property
    def invisible_ms(self) -> int:
        """Length of the lease it came with."""

    @property
    def endpoint(self) -> str:
        """The broker it came from, which takes the acknowledgement."""

    def ack(self) -> None:
        """
        End the message's life in the group, soon: acknowledgements travel together.

        Failures are raised by `flush` and `close` of the consumer; its `ack` does not return before the broker knows.
        """

    def change_invisible_duration(self, duration: timedelta) -> Any:
        """
        Let the lease end *duration* from now; zero gives the message back at once.

        Of a consumer of `ferromq.aio`: await it. Raises `ReceiptHandleExpired` where the lease is no longer held.
        """

    def renew(self, receipt_handle: str) -> None:
        """Replace the receipt handle by the one the broker answered."""

@final
class MessageIds:
    """The ids of one batch, made when looked at."""

    @staticmethod
    def reserve(process: bytes, seconds: int, count: int) -> MessageIds:
        """Take *count* ids nobody else in this process gets; *process*: 8 bytes, *seconds*: since 2021."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> str: ...

def batch_end(messages: list[Message | bytes], start: int, max_count: int, max_bytes: int) -> int:
    """Where the batch that begins at *start* ends: at *max_count* messages or about *max_bytes*; at least one."""

def encode_send(
    topic: str,
    messages: list[Message | bytes],
    ids: MessageIds,
    queue_id: int,
    born_timestamp: int,
    born_host: str,
    max_body: int,
) -> bytes:
    """A SendMessageRequest. Raises `MessageTooLarge`, and `TypeError` or `ValueError` naming the message."""

def decode_sent(answer: bytes) -> tuple[int, str, list[int], list[tuple[int, int, str]]]:
    """Of a SendMessageResponse: code, text, queue offsets; index, code and text of each message that failed."""

def encode_acks(group: str, topic: str, messages: Sequence[MessageView]) -> bytes:
    """An AckMessageRequest."""

def decode_acked(answer: bytes) -> tuple[int, str, list[tuple[str, int, str]]]:
    """Of an AckMessageResponse: code, text; message id, code and text of each entry that failed."""

def decode_received(
    packets: list[bytes], packed: bool, lease: LeaseKeeper, endpoint: str
) -> tuple[tuple[int, str] | None, list[MessageView]]:
    """
    Of a ReceiveMessage stream: its status (code, text), where it had one, and its messages.

    *packed*: each packet is a row of length-prefixed responses, else one. Raises `ValueError` for other bytes.
    """
