"""Bindings of the Rust core. `ferromq` re-exports the public ones."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    NotRequired,
    Protocol,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    final,
    type_check_only,
)

if TYPE_CHECKING:  # noqa: PYI002 (the documentation runs this file before the package is there)
    from threading import RLock

    from ferromq.message import SendReceipt

_T = TypeVar("_T")

__version__: str

@final
class Clock:
    """Wall-clock milliseconds that never go back. Store, server and policy share one clock."""

    @staticmethod
    def system() -> Clock: ...
    @staticmethod
    def manual(start_ms: int) -> Clock: ...
    @property
    def is_manual(self) -> bool:
        """Whether time moves only by `advance`."""

    def now_ms(self) -> int: ...
    def advance(self, ms: int) -> None: ...

@final
class StoredMessage:
    """A decoded record of the commit log. Attributes are built when they are read."""

    @property
    def topic(self) -> str:
        """The topic, with its namespace."""

    @property
    def queue_id(self) -> int:
        """The number of its queue in the topic, from 0."""

    @property
    def queue_offset(self) -> int:
        """The position in its queue, from 0."""

    @property
    def physical_offset(self) -> int:
        """The position of the record in the commit log, in bytes."""

    @property
    def body(self) -> bytes:
        """The stored body: compressed if `sys_flag` has bit 1."""

    @property
    def plain_body(self) -> bytes:
        """
        The body as it was sent, decompressed if needed.

        Raises `CorruptMessage`, a `ValueError`, if it is marked as compressed but cannot be decompressed, or would be larger
        than 64 MiB.
        """

    @property
    def properties(self) -> dict[str, str]:
        """All properties of the record, RocketMQ's own among them."""

    @property
    def flag(self) -> int:
        """A number that RocketMQ's producers may give; brokers ignore it."""

    @property
    def sys_flag(self) -> int:
        """RocketMQ's bits: compression, kind of transaction, kind of addresses."""

    @property
    def born_timestamp(self) -> int:
        """When it was sent, by the producer's clock: milliseconds since 1970."""

    @property
    def born_host(self) -> str:
        """The producer's `host:port`."""

    @property
    def store_timestamp(self) -> int:
        """When it was stored, by the broker's clock: milliseconds since 1970."""

    @property
    def store_host(self) -> str:
        """The `host:port` of the broker that stored it."""

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered before: 0 for a message that was not redelivered."""

    @property
    def prepared_transaction_offset(self) -> int:
        """Of a message of a transaction: the physical offset of its half message, in bytes; 0 for others."""

    @property
    def message_id(self) -> str:
        """The producer's UNIQ_KEY, or else RocketMQ's offset message id."""

    @property
    def offset_message_id(self) -> str:
        """RocketMQ's offset message id: the broker's address and the physical offset in upper-case hex."""

    @property
    def tag(self) -> str | None:
        """The tag; None without one."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, by which queries find the message."""

    @property
    def raw(self) -> bytes:
        """The bytes of the record."""

    def grpc_message(self, *, stored_digest: bool = False) -> bytes:
        """
        The encoded protobuf `Message` for gRPC clients, with the body as stored.

        Its digest is an MD5 of the body, or with *stored_digest* the record's own checksum, with which clients of ferromq
        notice that the record was damaged before.
        """

@final
class ExpiredFile:
    """A file of the commit log that is about to be deleted. It stays unchanged until the hook returns."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def begin(self) -> int:
        """Its first physical offset, in bytes."""

    @property
    def end(self) -> int:
        """Its last physical offset + 1, in bytes."""

    @property
    def oldest_ms(self) -> int:
        """The store time of its first message, milliseconds since 1970."""

    @property
    def newest_ms(self) -> int:
        """The store time of its last message, milliseconds since 1970."""

@type_check_only
class StoreOptions(TypedDict, total=False):
    """
    The fields of Rust's `StoreConfig`, which has the defaults and limits.

    None means the default. In `configure` it clears an optional one.
    """

    commit_log_file_size: int | None
    commit_log_paths: Sequence[str] | None
    consume_queue_file_entries: int | None
    dedup_window: timedelta | None
    dedup_writers: int | None
    delay_levels: str | None
    """The delay of each level, level 1 first: `1s 5s 10s 30s 1m 2h`."""
    disk_reserve: int | None
    fast_boot: bool | None
    flush: str | None
    """`group`, `each`, `every 1000`, `interval`, `interval 200ms`."""
    flush_every: Mapping[str, int] | None
    """Topic → most acknowledged messages that are not flushed."""
    index_enabled: bool | None
    index_entries: int | None
    index_slots: int | None
    mapped_bytes: int | None
    max_message_size: int | None
    open_files: int | None
    progress_interval: timedelta | None
    property_crc: bool | None
    read_only_commit_log_paths: Sequence[str] | None
    retention_age: timedelta | None
    """`timedelta.max`: files never expire by age."""
    retention_age_by_topic: Mapping[str, timedelta] | None
    retention_disk_usage: tuple[float, float, float] | None
    retention_hours: Sequence[int] | None
    retention_on_expiry: str | None
    """`discard`, `archive`."""
    retention_total_bytes: int | None
    store_host: str | None
    timer_enabled: bool | None
    timer_log_file_size: int | None
    timer_max_delay: timedelta | None
    timer_precision: timedelta | None
    timer_roll_window: int | None
    timer_wheel_slots: int | None

@type_check_only
class StoreStats(TypedDict):
    """Counters and positions of a store. Failures and misses are absent until the first one."""

    min_physical_offset: int
    max_physical_offset: int
    flushed_offset: int
    dispatched_offset: int
    indexed_offset: int
    indexed_timestamp: int
    mismatches: int
    gone_leases: int
    """Leases that were dropped because the log no longer has their messages."""
    duplicates: int
    """Numbered messages that were stored already, and not stored again."""
    remembered_sequences: int
    appended: int
    longest_put_ms: int
    """The longest put since open, including its flush if the answer waits for that."""
    append_lock_ms: int
    """The time that the current append has been writing; 0 without one."""
    found_gets: int
    """Clients' reads of a queue that found a message; a receive reads each of its queues."""
    fruitless_gets: int
    """Clients' reads of a queue that found none."""
    longest_get_ms: int
    """The longest request for messages, without its long poll."""
    timed_entered: int
    """Timed messages that entered the wheel, over all runs."""
    set_aside_queues: int
    """Consume queues that cannot be written; sends to them are refused."""
    dispatch_stalled_ms: int
    """The time that dispatch has been stalled; from 10,000 on sends are refused."""
    flushes: int
    recovered_cut_bytes: int
    recovered_messages: int
    delayed_delivered: int
    """Messages with a delay level that were delivered to their queue."""
    delayed_put_back: int
    """Delayed messages that wait again, because all queues of their topic are closed."""
    delayed_undeliverable: int
    """Delayed messages that were given up, each with a line in the log."""
    timed_delivered: int
    """Timed messages that were delivered to their queue."""
    timed_rolled: int
    """Timed messages that were stored again on their way."""
    timed_recalled: int
    """Timed messages that were recalled."""
    timed_put_back: int
    """Timed messages that wait another minute, because all queues of their topic are closed."""
    timed_undeliverable: int
    """Timed messages that were given up, each with a line in the log."""
    timed_lost: int
    """Timed messages whose record was removed or damaged while they waited."""
    failed_puts_io: NotRequired[int]
    failed_puts_corrupt: NotRequired[int]
    failed_puts_too_large: NotRequired[int]
    failed_puts_invalid: NotRequired[int]
    failed_puts_full: NotRequired[int]
    failed_puts_poisoned: NotRequired[int]
    failed_puts_not_durable: NotRequired[int]
    failed_puts_closed: NotRequired[int]
    failed_puts_queue_closed: NotRequired[int]
    failed_puts_queue_set_aside: NotRequired[int]
    failed_puts_dispatch_stalled: NotRequired[int]
    missed_gets_no_matched_message: NotRequired[int]
    missed_gets_message_was_removing: NotRequired[int]
    missed_gets_message_unreadable: NotRequired[int]
    missed_gets_offset_found_null: NotRequired[int]
    missed_gets_offset_overflow_badly: NotRequired[int]
    missed_gets_offset_overflow_one: NotRequired[int]
    missed_gets_offset_too_small: NotRequired[int]
    missed_gets_queue_closed: NotRequired[int]
    missed_gets_no_matched_logic_queue: NotRequired[int]
    missed_gets_no_message_in_queue: NotRequired[int]

@type_check_only
class NewStoredMessage(TypedDict):
    """A message to store. The defaults are those of `Store.append`."""

    topic: str
    queue_id: int
    body: bytes
    properties: NotRequired[Mapping[str, str]]
    flag: NotRequired[int]
    sys_flag: NotRequired[int]
    born_timestamp: NotRequired[int]
    born_host: NotRequired[str]
    reconsume_times: NotRequired[int]
    prepared_transaction_offset: NotRequired[int]

@final
class RecoveryProgress:
    """How far the recovery of a store is that is being opened on another thread."""

    def __new__(cls) -> RecoveryProgress: ...
    def bytes(self) -> tuple[int, int]:
        """Bytes of the log that are walked, and the most that will be; both 0 before the walk."""

@final
class Store:
    """
    The message store of one directory.

    Raises `StoreLocked`, `CorruptStore`, `StoreFull`, `StoreClosed`, `MessageTooLarge` (from `ferromq.errors`), and
    `ConfigError` with the option's name. *recovery* shows another thread how far the recovery is, which then logs no
    progress.
    """

    def __new__(
        cls,
        directory: str,
        clock: Clock,
        *,
        recovery: RecoveryProgress | None = None,
        **options: Unpack[StoreOptions],
    ) -> Self: ...
    @staticmethod
    def check(**options: Unpack[StoreOptions]) -> dict[str, Any]:
        """All options of a store with these, including defaults. Raises `ConfigError` for a wrong option."""

    def options(self) -> dict[str, Any]:
        """All options by name, including defaults."""

    def configure(self, **options: Unpack[StoreOptions]) -> None:
        """Change flush and retention of the open store. Raises `ConfigError` for options that cannot change."""

    def fail_next_flush(self) -> None:
        """Let the next flush of the log fail, for tests: then the store stops writing until it is opened again."""

    def set_archive(self, hook: Callable[[ExpiredFile], object]) -> None:
        """Set the function that takes files before they are deleted, if `retention_on_expiry` is `archive`. An exception keeps the file."""

    def clean(self, *, now: bool = False) -> dict[str, Any]:
        """Delete expired files; *now*: at any hour. Returns `removed_files`, `archived_files`, `refused_files`, …"""

    def delete_topic(self, topic: str) -> int:
        """Delete the queues of a topic and its groups' progress, and return their number. Queue offsets continue."""

    def clean_unused(self, keep_topics: Sequence[str]) -> list[str]:
        """Delete all other topics; return them."""

    def set_queue_access(self, topic: str, queue_id: int, access: str) -> None:
        """Set `open`, `read_only` (for draining) or `closed`. It survives restarts."""

    def queue_access(self, topic: str, queue_id: int) -> str: ...
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
        """Store a message, wait as the flush policy promises, and return (queue offset, physical offset)."""

    def append_as_one(self, messages: Sequence[NewStoredMessage]) -> list[tuple[int, int, int]]:
        """
        Store all of the messages or none, also in a crash; otherwise like `append`.

        Returns queue offset, physical offset and size of each record.
        """

    def delayed(
        self, topic: str, queue_id: int, properties: Mapping[str, str], *, sys_flag: int = 0
    ) -> tuple[str, int, dict[str, str]] | None:
        """The topic, queue and properties that a delayed or timed message has while it waits; None for others."""

    def start_schedule(self) -> None:
        """Start to deliver delayed messages when they are due, at least once. A slave must not. Idempotent."""

    def stop_schedule(self) -> None:
        """Stop the delivery and write its offsets. `close` does it too."""

    def delay_offsets(self) -> dict[int, int]:
        """The next queue offset to deliver of each delay level; from `config/delayOffset.json` if the schedule is stopped."""

    def delay_offset_json(self) -> str:
        """The same in the form of that file."""

    def timer_check_point(self) -> bytes:
        """The position of the timer wheel, in the 56 bytes that a RocketMQ slave reads."""

    def timer_metrics(self) -> str:
        """The number of waiting timed messages by topic, in the form of `config/timermetrics`."""

    def timed_waiting(self) -> tuple[int, int, int]:
        """Timed messages in the wheel, those not in it yet, and the time before which all are delivered, in milliseconds."""

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        tags: str = "*",
        filter: tuple[str, str] | None = None,
    ) -> tuple[str, list[StoredMessage], int]:
        """
        Return the status name (`FOUND`, `NO_MATCHED_MESSAGE`, …), messages, and the next offset.

        The messages have one of *tags*, or match *filter* if it is given: `("SQL92", "price > 3")`. Raises `ValueError`
        for a wrong expression.
        """

    def message_at(self, physical_offset: int) -> StoredMessage | None: ...
    def nearest_message(self, physical_offset: int) -> int | None:
        """The offset of the message that contains this offset; or else of the last one before it, or else of the first one."""

    def query_by_unique_key(
        self, topic: str, key: str, max_count: int = 32, begin_ms: int = 0, end_ms: int = ..., *, max_bytes: int = ...
    ) -> list[StoredMessage]:
        """Messages, newest first, up to *max_bytes* in total, and at least one."""

    def query_by_key(
        self, topic: str, key: str, max_count: int = 32, begin_ms: int = 0, end_ms: int = ..., *, max_bytes: int = ...
    ) -> list[StoredMessage]:
        """Messages, newest first, up to *max_bytes* in total, and at least one."""

    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """The first message stored at the time or later; *upper*: the last one stored at the time or before it."""

    def earliest_time(self, topic: str, queue_id: int) -> int | None:
        """The store time of the first message in a queue."""

    def stored_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """The store time of the message at a queue offset; None if it was deleted."""

    def queue_entries(
        self, topic: str, queue_id: int, from_offset: int, count: int
    ) -> list[tuple[int, int, int]] | None:
        """Entries of a consume queue: physical offset, size, tag hash. None if there is no such queue."""

    def committed_offsets(self, group: str | None = None, topic: str | None = None) -> dict[str, dict[int, int]]:
        """Committed offsets by `topic@group` and queue id; only of *group* and *topic* if given."""

    def in_flight(self, group: str, topic: str, queue_id: int) -> list[tuple[int, int, bool]]:
        """Return the messages that a group has in flight: queue offset, deliveries, and whether the consumer changed when each comes again."""

    def delivery(
        self, group: str, topic: str, queue_id: int, queue_offset: int
    ) -> tuple[int, bool, int | None, int | None] | None:
        """
        Return the state of a message in a group.

        The committed offset of its queue, whether the group is done with the message, its deliveries, and the end of its
        lease in ms since 1970; None without a committed offset.
        """

    def next_and_in_flight(self, group: str, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the next message that a group has not received, and how many it has in flight."""

    def forget_group(self, group: str, topic: str | None = None) -> int:
        """Delete, durably, a group's progress in all topics or one; return the number of topics."""

    def adopt_offsets(self, offsets: dict[str, dict[int, int]]) -> None:
        """Replace committed offsets by a master's, by `topic@group` and queue id, durably; others stay."""

    def committed_offset(self, group: str, topic: str, queue_id: int) -> int | None: ...
    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None: ...
    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Let the group continue at *offset*. Its leases of the queue end, and messages from there are redelivered."""

    def queues(self) -> dict[str, list[int]]: ...
    def stats(self) -> StoreStats: ...
    def check_writes(self) -> None:
        """Raise the error with which the store would refuse any message now: `StoreFull`, `StoreClosed`."""

    def put_times(self) -> list[tuple[int, int]]:
        """A histogram of the duration of puts since open: the last millisecond of each bucket, and its count."""

    FLUSH_BOUNDS: ClassVar[list[int]]
    """The upper bounds of the buckets of `flush_times`, milliseconds; the last bucket has none."""

    def flush_times(self) -> tuple[list[int], float]:
        """A histogram of the duration of flushes since open: the count of each bucket, and the sum in milliseconds."""

    def recovery(self) -> dict[str, Any]:
        """The report of the recovery at open: `is_clean`, `walked_bytes`, `messages`, `cut_bytes`, `elapsed`, …"""

    def damages(self) -> list[tuple[Path, int, int, str]]:
        """
        The present damages: file, first and last + 1 physical offset, reason.

        They are ranges of the commit log that are not served; consume queues (by directory) or the index that cannot be
        written, with the range of the log to rebuild them from; messages that retention removed before their queue
        could be written again; and files that cannot be read, which this call tries again.
        """

    def close(self) -> None: ...

def inspect_store(
    directory: str, *, commit_log_paths: Sequence[str] = ..., index_slots: int | None = None
) -> dict[str, Any]:
    """
    Return what is in a store directory, in the fields of `store_tools.StoreSummary`. Only reads, and takes no lock.

    Raises `StoreError` if it is not a store directory or cannot be read.
    """

def flushed_end(directory: str) -> int | None:
    """The end of the log at the last flush of a store that ferromq has, or had, open; None if it is unknown."""

@final
class StoreLock:
    """Locks a store directory, so that no broker can open it. Raises `StoreLocked` if one has it open, and `OSError`."""

    def __new__(cls, directory: str) -> StoreLock: ...
    @staticmethod
    def is_held(directory: str) -> bool:
        """Whether a broker has the store open, or another `StoreLock` of it exists. Raises `OSError`."""

    def close(self) -> None:
        """Release the lock. Idempotent."""

@final
class StoreVerification:
    """
    A verification of a store directory on threads of its own. It only reads, and takes no lock.

    At most 1,024 events wait for the caller; then the threads wait.
    """

    def __new__(
        cls,
        directory: str,
        *,
        commit_log_paths: Sequence[str] = ...,
        index_slots: int | None = None,
        threads: int = 0,
    ) -> StoreVerification: ...
    def next(self, timeout: float) -> tuple[str, dict[str, Any]] | None:
        """
        (`finding`, fields of `store_tools.Finding`), (`progress`, `done` and `total` bytes) or, last, (`report`, fields of `VerifyReport`).

        None if nothing came within *timeout* seconds. Raises `StoreError` if the directory cannot be read,
        `RuntimeError` after the report and after `close`.
        """

    def close(self) -> None: ...

@final
class StoreDump:
    """Reads messages of a topic from a store directory, queue after queue. Raises `StoreError` as `inspect_store`, and for an unknown topic or queue."""

    def __new__(
        cls,
        directory: str,
        topic: str,
        *,
        queue_id: int | None = None,
        from_offset: int | None = None,
        to_offset: int | None = None,
        from_time: int | None = None,
        to_time: int | None = None,
        key: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
        commit_log_paths: Sequence[str] = ...,
    ) -> StoreDump: ...
    def __iter__(self) -> StoreDump: ...
    def __next__(self) -> tuple[StoredMessage, bool] | tuple[int, int, str]:
        """(message, whether it matches its checksums), or (queue id, queue offset, reason) of an entry without a record."""

@final
class LogFile:
    """Reads the records of one commit log file whose first byte has the physical offset *first_offset*. Raises `OSError`."""

    def __new__(cls, path: str, first_offset: int) -> LogFile: ...
    def __iter__(self) -> LogFile: ...
    def __next__(self) -> tuple[StoredMessage, bool] | dict[str, Any]:
        """(message, whether it matches its checksums), or the fields of `store_tools.Finding` for bytes without a record."""

@final
class LogFacts:
    """
    Reads the records of one commit log file before the physical offset *until* as columns, without their bodies.

    Raises `OSError`.
    """

    def __new__(cls, path: str, first_offset: int, *, until: int = ..., batch_rows: int = 8192) -> LogFacts: ...
    def __iter__(self) -> LogFacts: ...
    def __next__(self) -> dict[str, Any]:
        """
        Return the next *batch_rows* records or fewer.

        `rows`, and in native byte order: with 4 bytes `topic` (an index in `topics`), `queue_id`, `sys_flag`, `size`,
        `key_ends` (the end of each record's `keys`), `keys` (hashes of index entries), `tag_key` (an optional one more,
        or -1); with 8 bytes `queue_offset`, `physical_offset`, `tag_hash`, `store_timestamp`. `faults`:
        (kind, row or None, first byte, end, reason, whether no record follows). `end`: the end of the last record;
        `unwritten_from`: the start of the zeros; `continued`: records at the end whose group lacks its last record.
        """

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
        """`host:port` of the client."""

    @property
    def user(self) -> str | None:
        """The user that access control verified; None without one."""

    @property
    def certificate(self) -> str | None:
        """
        The subject of the certificate that the client has shown, in the form of RFC 4514 (`CN=ada,O=Acme`); None without
        one. `(empty)` or `(malformed)` for a certificate without a readable subject. At most 1,000 bytes in UTF-8.
        """

    @property
    def language(self) -> str:
        """The language in the header of a remoting client (`JAVA`); `OTHER` for gRPC."""

    @property
    def version(self) -> int:
        """The `MQVersion` ordinal in the header of a remoting client; 0 for gRPC."""

    @property
    def is_one_way(self) -> bool:
        """Whether the sender expects no answer."""

    @property
    def fields(self) -> dict[str, str]:
        """Remoting extFields, or gRPC metadata with names in lower case."""

    @property
    def body(self) -> bytes: ...

_Entry: TypeAlias = tuple[str, list[str], list[str], bool]
Response: TypeAlias = bytes | tuple[int, str | None, dict[str, str], bytes]
"""gRPC: the encoded message. Remoting: (code, remark, extFields, body)."""

@type_check_only
class ServerLimits(TypedDict, total=False):
    """The limits of a server."""

    idle: float
    """Seconds after which a remoting connection without traffic is closed; default 120."""
    max_connections: int
    """
    Open connections of both protocols. The default is what the descriptor limit leaves after the files of stores, for
    all servers of the process together, at most 16,384.
    """
    max_connections_by_address: int
    """Open connections of one address; without it, as many as `max_connections` allows."""
    backlog: int
    """Connections that can wait to be accepted."""
    send_buffer: int
    """Bytes that the system buffers of a connection's answers; without it, as the system decides."""
    receive_buffer: int
    """The same for its requests."""
    memory: int
    """
    Bytes of memory for requests in progress, and for answers that clients have not read; default 256 MiB. A connection
    may hold a quarter of it; an eighth is reserved for small requests.
    """
    frame: int
    """Bytes of the largest remoting request; default 16 MiB."""
    one_way: int
    """One-way remoting requests in progress over all connections; default 256. Above it, their connections are not read."""
    calls: int
    """Requests to clients in progress; default 64. More wait, within their timeout."""

@final
class Server:
    """
    A server: remoting and gRPC listeners, hot verbs in Rust, registered functions for cold requests.

    Handlers run on a bounded pool of threads. An exception becomes SYSTEM_ERROR (1) or INTERNAL_SERVER_ERROR.
    """

    def __new__(
        cls,
        clock: Clock,
        *,
        store: Store | None = None,
        broker_name: str = "",
        handler_threads: int = 8,
        **limits: Unpack[ServerLimits],
    ) -> Server: ...
    def register(self, route: int | str, handler: Callable[[Request], Response | None]) -> None:
        """Answer *route* with *handler* (None: no answer). Raises ValueError if *route* is a hot verb."""

    def on_missing(self, handler: Callable[[str, str, str, tuple[str, int, int]], bool | None]) -> None:
        """
        *handler*(kind, name, peer, wanted) creates it if allowed, pushes its entry, and returns whether it exists.
        None: it may be created, but the creation failed.

        kind is `topic` or `group`; `topic_to_send`, if a remoting producer asks for the settings of a default topic and
        a number of queues; or `topic_of_group`, a retry or dead-letter topic. *wanted* is (default topic, queues, system
        flag). `type_of_topic`: a topic pushed as UNDECIDED gets its first message, whose type is in *wanted* instead of
        the default topic.
        """

    def on_telemetry(
        self, handler: Callable[[int, tuple[int, str, str | None, str | None], dict[str, str], bytes | None], None]
    ) -> None:
        """
        *handler*(stream, (connection, peer, user, certificate), metadata, message); message None: the stream ended.

        *user* and *certificate* are as in `Request`. Calls of one stream come in order.
        """

    def on_close(self, handler: Callable[[int], None]) -> None:
        """Call *handler*(connection) after a connection was closed."""

    def set_access(
        self,
        users: Sequence[tuple[str, str, bool, bool, list[_Entry], list[_Entry]]],
        *,
        cluster: str,
        authorizes: bool,
        unsigned: list[str],
        unrestricted: list[str],
    ) -> None:
        """
        Turn access control on with these users, or replace them.

        A user: name, secret key, whether it is super and enabled, and the entries of its policy and of its default policy.
        An entry: resource, actions, source addresses, whether it allows them. *authorizes*: policies are checked, too.
        *unsigned* and *unrestricted*: requests that need no signature and no policy. Raises `ValueError`.
        """

    def set_limits(
        self,
        rules: Sequence[
            tuple[
                str | None,
                str | None,
                tuple[tuple[int | None, int | None], tuple[int | None, int | None]] | None,
                int | None,
            ]
        ],
    ) -> None:
        """
        Replace the limits of a broker. What was used up of rates is forgotten; the oldest connections of a user keep
        their places. A name server has none.

        A rule is user, topic, messages and bytes a second that are stored and that are handed out, and open
        connections, where 2**63 - 1 is no limit. A user or topic of None stands for all together, `*` for each without
        a rule of its own. Rates or connections of None are those of the next closest rule.
        """

    def allows(self, user: str | None, peer: str, topic: str, action: str) -> bool:
        """
        Return whether a user may take an action on a topic from `host:port` *peer*; None is no user.

        It is true while policies are not checked. Raises `ValueError` for another action or peer.
        """

    @staticmethod
    def lists_access(route: int | str) -> bool:
        """Return whether access control lists what *route* needs; without that, it is for super users alone."""

    def set_tls(
        self,
        mode: str,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        client_auth: str = "none",
        trust: Path | None = None,
    ) -> None:
        """
        Set TLS of remoting connections: `disabled`, `permissive` (TLS and plaintext) or `enforcing`.

        *certificate*, *key*: PEM files. *client_auth*: whether clients need a certificate, `none`, `optional` or
        `require`; *trust*: PEM file of their certificate authorities. Raises `ConfigError` with the file's name.
        """

    def set_grpc_tls(
        self,
        mode: str = "permissive",
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        client_auth: str = "none",
        trust: Path | None = None,
    ) -> None:
        """
        Set TLS of new gRPC connections: `disabled`, `permissive` (TLS and plaintext) or `enforcing`.

        Without files a certificate is generated; certificates of clients are checked with files only, as in `set_tls`.
        Raises ConfigError with the name of a wrong file.
        """

    def reload_tls(self) -> bool:
        """Reload changed certificate files; return whether any changed."""

    def listen_grpc(self, address: str) -> int:
        """Serve gRPC on `host:port` (port 0: any) and return the port. Raises OSError with the address."""

    def listen_remoting(self, address: str) -> int: ...
    def put_topic(
        self, name: str, *, read_queues: int, write_queues: int, permission: int, message_type: str = "NORMAL"
    ) -> None:
        """
        permission: RocketMQ's bits, 4 read, 2 write. message_type: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE,
        MIXED or UNSPECIFIED (both: any), or UNDECIDED (any, until `on_missing` decides about the first message).
        """

    def remove_topic(self, name: str) -> None: ...
    def put_group(
        self,
        name: str,
        *,
        enabled: bool = True,
        max_attempts: int = 17,
        from_beginning: bool = True,
        broadcast: bool = True,
        retry_queues: int = 1,
        ordered: bool = False,
        priority_factor: int = 100,
    ) -> None:
        """
        broadcast: whether its members may each read all messages.

        retry_queues: queues of its retry topic; 0: returned messages are dropped. max_attempts: deliveries of a message
        before it goes to the dead-letter topic. ordered: gRPC consumers receive each queue in order, one at a time.
        priority_factor: percentage of receives of a PRIORITY topic that read higher priorities first.
        """

    def remove_group(self, name: str) -> None: ...
    def put_forbidden(self, group: str, topics: Sequence[str]) -> None:
        """Replace the topics that a group cannot read in spite of a subscription."""

    def put_sql_filters(self, allowed: bool) -> None:
        """Set whether pulls may filter by SQL92. By default they are refused with 1, as in RocketMQ."""

    def put_transfer_limits(
        self,
        *,
        near_count: int,
        near_bytes: int,
        far_count: int,
        far_bytes: int,
        near_span: int,
        scan_entries: int,
    ) -> None:
        """
        Limit the answer of a pull, and of each queue of a receive, for clients that do not ask for large answers.

        near_count, near_bytes: for messages within *near_span* bytes of the end of the log; far_count, far_bytes: for
        others. An answer always has the first message. scan_entries: entries that a filtered read may skip. There are
        no limits before the first call.
        """

    def put_locked(self, group: str, until_ms: int | None) -> None:
        """
        Set the time until which members of a group hold locks of queues; None: no locks.

        Until then, messages that its members send to its retry topic become dead letters, as in RocketMQ, because
        ordered consumers have no retry topic.
        """

    def put_subscription(
        self,
        group: str,
        topic: str,
        *,
        expression_type: str = "TAG",
        expression: str = "*",
        version: int = 0,
        broadcasting: bool = False,
    ) -> None:
        """
        Push the subscription of a live group, for remoting pulls that carry none.

        Without one they are answered 24, and with a *version* below the pull's 25. broadcasting: each member reads all.
        """

    def remove_subscription(self, group: str, topic: str) -> None:
        """Remove a subscription; resets stay."""

    def put_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """
        Answer the next pull of a queue with the offset to continue at (21), and ignore its commits (15) until then.

        The committed offset itself is set in the store.
        """

    def remove_resets(self, group: str, topic: str | None = None) -> None:
        """Remove the pending resets of a topic, or of all topics of a group."""

    def send_telemetry(self, stream: int, message: bytes) -> bool:
        """Send an encoded TelemetryCommand to a client; False if the stream is closed."""

    def end_telemetry(self, stream: int, code: int, message: str) -> bool:
        """End a stream with a status of gRPC, such as 3 INVALID_ARGUMENT; False if the stream is closed."""

    def wake_receives(self, group: str, topic: str) -> None:
        """Wake waiting receives after the group's offsets in the topic changed."""

    def push(self, connection: int, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> bool:
        """
        Send a one-way request to a remoting client; False if its connection is closed or its queue is full.

        Never waits. A client that does not read loses only its own pushes. Raises `MessageTooLarge`.
        """

    def call(
        self,
        connection: int,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout: float = 3.0,
    ) -> tuple[int, str | None, dict[str, str], bytes]:
        """
        Send a request to a remoting client and return its response: (code, remark, extFields, body).

        Raises `ConnectionFailed`, `RequestTimeout` or `MessageTooLarge`. Releases the interpreter lock.
        """

    def routes_generation(self) -> int:
        """The number of `drop_routes` so far. Read it before looking up a route for `put_route`."""

    def put_route(self, topic: str, generation: int, standard: bytes, legacy: bytes) -> None:
        """
        Let Rust answer lookups (105) of *topic*; ignored after a drop since *generation* was read.

        *standard*: standard JSON, for clients since 4.9.4 and those with `acceptStandardJsonOnly`. *legacy*: with
        numbers as bare keys, as fastjson writes maps.
        """

    def drop_routes(self, topics: Sequence[str] | None) -> None:
        """Remove the routes of *topics* (None: all), so that the handler of 105 is called again."""

    def close_connection(self, connection: int) -> None: ...
    def stats(self) -> dict[str, int]:
        """Counters: connections, sent, received, acked, parked, cold_calls, demoted, …"""

    def set_send_policy(
        self,
        *,
        cluster: str = "DefaultCluster",
        region: str = "DefaultRegion",
        trace: bool = True,
        reject_transactions: bool = False,
        check_types: str = "grpc",
    ) -> None:
        """
        Set the marks of remoting clients' messages, and which messages are accepted. Omitted arguments have defaults.

        check_types: protocols over which a message must have its topic's type: none, grpc (as in RocketMQ) or all.
        """

    def set_client_policy(
        self,
        *,
        min_invisible_ms: int,
        max_invisible_ms: int,
        max_delay_ms: int | None,
        max_send: int,
        creates_topics: bool,
        redelivers_from_first: bool,
    ) -> None:
        """
        Set the limits of gRPC clients, and the redelivery of ordered groups.

        max_send: bytes of the largest request that sends messages.
        creates_topics: if off, a send to an unknown topic has the wrong type, as in RocketMQ.
        redelivers_from_first: redeliver all messages from the first unacknowledged one on, not only unacknowledged ones.
        """

    def refuse_reads(self, refuses: bool) -> None:
        """Refuse consumers, as a slave does (over remoting with SYSTEM_BUSY), or serve them again."""

    def count_put(self, topic: str, messages: int, size: int) -> None:
        """Count messages that were not stored by a send, in `traffic`; *size*: bytes of their records."""

    def traffic(self) -> dict[str, dict[str, tuple[int, int]]]:
        """
        Messages and bytes since the start: `put` by topic, and the part of it that producers sent, `sent`; `get`,
        `send_back` and `dead` by `topic@group`; refused sends and reads, `refused`, by `topic@reason`: `user_limit`,
        `topic_limit`, `user_topic_limit`, or protocol and code of a refused send as `remoting:16`.

        Bytes of `dead` and `refused` are not counted. Removed topics and groups have no counters.
        """

    LATENCY_BOUNDS: ClassVar[list[int]]
    """The upper bounds of the buckets of `latencies`, milliseconds; the last bucket has none."""
    SIZE_BOUNDS: ClassVar[list[int]]
    """The upper bounds of the classes of `message_sizes`, bytes; the last class has none."""

    def latencies(self) -> list[tuple[str, str, int, bool, str, list[int], float]]:
        """
        How long requests took: protocol, request, response code, whether it waited, result, counts by bucket, sum.

        The protocol is `remoting` (the request is its code) or `grpc` (the method); `other` stands for requests that
        are unknown, or more than a table holds. The response code is RocketMQ's; for gRPC it is that of the status,
        or gRPC's own below 100. The sum is in milliseconds.
        """

    def record_spans(self, *, on: bool) -> None:
        """Begin or end the recording of spans: of requests whose client samples its trace, by W3C's `traceparent`."""

    def take_spans(self) -> list[tuple[tuple[int, int, int], str, str, int, str, int, int]]:
        """
        Return the spans that have ended since the last call, 8,192 at most.

        The ids of the trace, of the client's span and of the span; protocol, request, response code and result as of
        `latencies`; begin and end in nanoseconds since 1970.
        """

    def message_sizes(self) -> dict[str, list[int]]:
        """By topic, the number of messages of each class of sizes; those of one send have their mean size."""

    def stop(self, timeout: float = 5.0) -> None:
        """Stop listening, wait for requests in progress, close connections. Idempotent."""

@final
class Completions:
    """The outcomes of framed calls and sends that were started. A descriptor becomes readable when there are some."""

    def __new__(cls) -> Self: ...
    def fileno(self) -> int:
        """Return the descriptor."""
    def take(self) -> list[tuple[int, Any]]:
        """
        Take all outcomes: the number of each, and what `FramedCalls.call`, `FramedCalls.poll` or `Sends.send` would return
        or raise.
        """

@final
class AckQueue:
    """Collects acknowledgements by broker, which messages put there without a call of Python."""

    def __new__(
        cls,
        check: Callable[[], object],
        grown: Callable[[str], object],
        in_use: InUse,
        *,
        full: int,
        most: int,
        waits: bool = True,
    ) -> Self:
        """
        *check* raises why the consumer may not be used. What is *in_use* is told to `leave`; *waits* goes with it. Without
        it the queue is an event loop's, and *check* is called each time.

        *grown* is called with a broker that has its first message, *full* messages, or *most* and more.
        """
    def count(self, endpoint: str) -> int:
        """Return how many messages of the broker at *endpoint* wait."""
    def endpoints(self) -> list[str]:
        """Return the brokers of which messages wait."""
    def take(self, endpoint: str, most: int) -> list[MessageView]:
        """Take the first *most* messages of the broker at *endpoint*."""
    def keep_order(self, in_order: Any) -> None:
        """Tell *in_order* of each message from now on."""
    def close(self) -> None:
        """Have messages checked before they are taken from now on."""

MAX_BATCH: Final = 1000
"""Most messages of one receive ahead of their use."""

@final
class Held:
    """A message that is used or waits for it; times are monotonic."""

    message: MessageView
    received: float
    until: float
    """When its lease ends."""
    renew_from: float
    in_order: Any
    """Says, where a loop keeps order, whether it may be used: an `InOrder`, or None."""
    order: str | None
    """What it shares with those it waits for; None: nothing. Decided once: the group may be another meanwhile."""
    is_behind: bool
    """One of its order that is redelivered goes before it."""
    may_begin: bool
    is_begun: bool
    is_over: bool
    """Its lease is ended, or left to itself: it must not be renewed."""
    comes_again: bool
    """The broker was not told its end: what is behind it must not go before it."""
    renewing: RLock | None
    """Held while a thread renews it."""

    def __new__(cls, message: MessageView, received: float, until: float, renew_from: float) -> Self: ...
    def renewed(self, now: float, duration: float, share: float = ...) -> None:
        """Note that its lease ends *duration* from now, and is to be renewed after a share of that."""
    def leave(self, *, waits: bool = True) -> None:
        """Let it be renewed no more, and wait while it is unless told not to: what ends a lease needs its last receipt handle."""

@final
class InUse:
    """What a consumer uses, by message: what receives puts it here, and what ends leases looks it up."""

    def __new__(cls) -> Self: ...
    def __len__(self) -> int: ...
    def values(self) -> list[Held]:
        """Return what is in use, in no order."""
    def get(self, message: MessageView) -> Held | None:
        """Return the use of a message, or None."""

@final
class Loop:
    """
    Hands out messages that wait and keep no order, each in use until the next one is taken.

    It ends where none waits, and where something is to be done before the next one; it may go on after that.
    """

    def __iter__(self) -> Self: ...
    def __next__(self) -> MessageView: ...
    def hold(self, held: Held) -> None:
        """Use a message that was taken elsewhere until the next one is taken."""
    def leave(self) -> Held | None:
        """Return what is in use, if anything is, and leave it to the caller."""

@final
class Ahead:
    """
    The messages a consumer holds, and how many more it may receive. Times are monotonic.

    It holds one message for each worker before there is a rate, and then no more than the workers finish, at the rate
    that was measured, in half a second or a fifth of a lease. Each call is done before another thread's begins.
    """

    is_receiving: bool
    """Whether a receive is under way."""
    hungry: int
    """How many workers wait for a message."""
    is_due: bool
    """Whether `advance` or a `Loop` found that it is time to look at `room` and `has_surplus`. The caller unsets it after that look."""

    def __new__(cls, invisible: float, prefetch: int | None = None, in_use: InUse | None = None) -> Self:
        """*invisible*: seconds of a lease. *prefetch*: most messages. *in_use* is kept for those that end leases."""
    @property
    def waiting(self) -> list[Held]:
        """What waits, in its order."""
    @property
    def count(self) -> int:
        """How many wait."""
    @property
    def in_use(self) -> list[Held]:
        """What is in use, in no order."""
    def room(self, hungry: int, at_least: int = 1) -> int:
        """Return how many messages to receive now, while *hungry* workers wait for one; 0: none."""
    def add(self, messages: list[MessageView], now: float, in_order: Any = None) -> None:
        """Take messages that were received just now."""
    def take(self, now: float) -> Held | None:
        """Return the next message to use, or None. It drops expired messages: the broker delivers them again."""
    def take_one(self, held: Held, now: float) -> Held | None:
        """Use one of those that wait, unless it has expired or waits no more."""
    def advance(self, before: Held | None, now: float) -> Held | None:
        """Note that *before* is no longer in use, let it be renewed no more, and return the next message as `take`."""
    def loop(self, now: float) -> Loop:
        """Return a loop over messages that wait; *now* is the time of its begin."""
    def stop(self) -> None:
        """Let loops end."""
    def finish(self) -> list[Held]:
        """Return what is in use; it is in use no longer."""
    def take_some(self, count: int, now: float) -> list[Held]:
        """Return messages to use at once; they are held no longer, unless they are put back."""
    def put_back(self, taken: Sequence[Held]) -> None:
        """Hold the first messages of `take_some` again."""
    def end(self, held: Held, now: float, *, is_used: bool = True) -> bool:
        """
        Note that a message is no longer in use, and learn from it unless it was not used at all.

        Return whether it is time to look at `room` and `has_surplus`.
        """
    def has_surplus(self) -> bool:
        """Return whether far more waits than the workers finish in time: they have become slower."""
    def aging(self, now: float, *, keep: bool) -> tuple[list[Held], list[MessageView]]:
        """
        Return what to renew, and the messages to give back, which are held no longer; called often within a lease.

        What waits although a third of its lease is over waits for workers that are slower than before: others may have
        it. With *keep* it is renewed.
        """
    def take_all(self) -> list[MessageView]:
        """Return the messages that wait; they are held no longer."""

@final
class Arrivals:
    """Waits until brokers have messages, and leases none of them. Thread-safe."""

    def __new__(cls, client_id: str, tls: FramedTls | None = None, fields: Sequence[tuple[str, str]] = ()) -> Self:
        """The connections speak TLS with *tls*. Each request has *fields* besides its own."""
    def wait(self, watched: Sequence[tuple[str, str, bytes]], timeout: float) -> list[str]:
        """
        Wait until one of the brokers has messages, and return the names of those that have.

        *watched*: name, endpoint and an encoded ReceiveMessageRequest. It returns after *timeout* seconds, and after
        `cancel`. A request that was refused counts as one that has messages.
        """
    def watch(self, watched: Sequence[tuple[str, str, bytes]], completions: Completions, number: int) -> None:
        """Begin to wait. Once a broker has messages, *completions* has None under *number*, and `take` the names."""
    def take(self) -> list[str]:
        """Return the names of the brokers that have had messages since the last call."""
    def cancel(self) -> None:
        """End the wait of a thread."""
    def close(self) -> None:
        """End all waits."""

@final
class Cancellation:
    """Ends receives and pulls from another thread."""

    def __new__(cls) -> Self: ...
    def set(self) -> None:
        """Have the broker answer what is under way at once. Later calls fail."""

@final
class FramedCalls:
    """
    Calls hot methods of brokers over connections of their own, without HTTP/2.

    A call waits in its thread, without the interpreter lock. Thread-safe.
    """

    def __new__(cls, tls: FramedTls | None = None, fields: Sequence[tuple[str, str]] = ()) -> Self:
        """The connections speak TLS with *tls*. Each request has *fields* besides its own."""
    @staticmethod
    def takes(method: str, request: bytes) -> bool:
        """Return whether *method* can be called in frames with *request*."""
    def call(
        self, endpoint: str, method: str, request: bytes, timeout: float, client_id: str
    ) -> tuple[int, str | None, bytes]:
        """
        Call *method* of the broker at *endpoint*, and return its status, the text of a failure, and its response.

        The status is gRPC's; 0 is success. Raises `ConnectionFailed` and `RequestTimeout`.
        """
    def poll(
        self, endpoint: str, method: str, request: bytes, timeout: float, client_id: str, cancellation: Cancellation
    ) -> tuple[int, str | None, Records]:
        """
        Call *method*, a receive or a pull, and return its status, the text of a failure, and the answer with its records.

        *cancellation* ends it. Raises `ConnectionFailed` and `RequestTimeout`.
        """
    def receive(
        self,
        endpoint: str,
        request: bytes,
        count: int,
        timeout: float,
        client_id: str,
        cancellation: Cancellation,
        ahead: Ahead,
        receiver: tuple[LeaseKeeper, str | None],
        begun: BegunCall | None = None,
        *,
        is_followed: bool,
    ) -> tuple[int, int, list[MessageView], BegunCall | None]:
        """
        Receive up to *count* messages that *ahead* will hold: wait for *begun*, or else send *request*.

        Return the status of the call, that of its answer, the messages, and the next receive: if *is_followed*, the
        answer has messages and *ahead* has room for as many again, its request was sent before the messages were
        decoded. It must be waited for.
        It decodes without the interpreter lock, which a loop over *ahead* hands over as soon as the messages are there.
        *receiver*: what keeps the leases, and the namespace without which topics are named. Raises `ConnectionFailed`,
        `RequestTimeout`, and `ValueError` for a malformed answer.
        """
    def begin_behind(
        self, endpoint: str, acks: bytes, request: bytes, timeouts: tuple[float, float], client_id: str
    ) -> tuple[tuple[int, str | None, bytes], BegunCall]:
        """
        As `begin`, for a receive behind the acknowledgement *acks*, also at a broker of this process.

        Both go with one write. Return status, text of a failure and response of the acknowledgement, and the receive.
        *timeouts*: of the acknowledgement and of the receive. Raises `ConnectionFailed` and `RequestTimeout`; then the
        acknowledgement may have done its work.
        """
    def begin(self, endpoint: str, method: str, request: bytes, timeout: float, client_id: str) -> BegunCall | None:
        """
        Send the request of a pull that does not wait for messages, without waiting for the answer.

        Return None if no connection to *endpoint* is open, or if it is a broker of this process. Raises
        `ConnectionFailed` and `RequestTimeout`.
        """
    def attach(self, endpoint: str, server: Server) -> None:
        """Call the broker at *endpoint* as *server*, which is in this process, without a connection."""
    def release(self, endpoint: str) -> None:
        """Let the broker at *endpoint* answer the receives under way at once."""
    def start(
        self,
        endpoint: str,
        method: str,
        request: bytes,
        timeout: float,
        client_id: str,
        completions: Completions,
        number: int,
    ) -> bool:
        """
        Start a call, whose outcome comes to *completions* under *number*.

        Return False, and do nothing, if no connection to *endpoint* is open.
        """
    def is_open(self, endpoint: str) -> bool:
        """Return whether a connection to *endpoint* is open."""
    def probe(self, endpoint: str, timeout: float) -> str | None:
        """Return None if the broker at *endpoint* answers frames within *timeout* seconds, and else the reason."""
    def forget(self, endpoint: str) -> None:
        """End the connection to *endpoint*, and the calls on it."""
    def close(self) -> None:
        """End all connections, and the calls on them. Later calls raise `ConnectionFailed`."""

@final
class BegunCall:
    """A receive or a pull whose request was sent. Where the object ends first, its answer is given up."""

    def wait(self, cancellation: Cancellation) -> tuple[int, str | None, Records]:
        """
        Wait for the answer, and return what `FramedCalls.poll` returns. *cancellation* ends the wait.

        Raises `ConnectionFailed` and `RequestTimeout`, and `RuntimeError` the second time.
        """

@final
class FramedTls:
    """What a client trusts over TLS, and shows to brokers that ask."""

    def __new__(
        cls, trust: bytes, certificate: bytes | None = None, key: bytes | None = None, server_name: str | None = None
    ) -> Self:
        """
        *trust*, *certificate* and *key* are contents of PEM files.

        *server_name* is the name that brokers' certificates must have; without it, the host of the endpoint. Raises
        `ConfigError` for a file without what it is for, and `Unsupported` for what gRPC may accept nevertheless.
        """

@final
class FailedSend:
    """A send that failed: the id of the message, the broker, and what happened."""

    @property
    def ids(self) -> MessageIds: ...
    @property
    def endpoint(self) -> str: ...
    @property
    def cause(self) -> Literal["refused", "shared", "not_sent", "timeout", "lost", "rpc"]: ...
    @property
    def code(self) -> int:
        """The code of a refusal, or gRPC's status."""
    @property
    def text(self) -> str: ...

@final
class Sends:
    """Sends single messages to topics whose route it was given. Messages of waiting threads share requests."""

    def __new__(cls, calls: FramedCalls, client_id: str, process: bytes, host: str) -> Self: ...
    def put_route(
        self,
        topic: str,
        queues: Sequence[tuple[int, str, str]],
        group_queues: Sequence[tuple[int, str, str]],
        seconds: float,
        max_body: int,
        brokers: Sequence[str],
        first: int,
    ) -> None:
        """
        Let messages of *topic* go to *queues* (id, endpoint, broker name) for the next *seconds*; message groups to
        *group_queues*.

        *brokers* are those to send to from here; a message whose turn is at another one goes another way. *first* is the
        turn of the first message; a body has at most *max_body* bytes.
        """
    def drop_routes(self, endpoint: str | None) -> None:
        """Forget the routes with a queue at *endpoint*, all of them for None."""
    def avoid(self, endpoint: str, seconds: float) -> None:
        """Send no message to a broker for *seconds*: they go to others, or another way."""
    def trust(self, endpoint: str) -> None:
        """Send messages to a broker again: it answers."""
    def send(
        self, topic: str, message: Message | bytes, born_timestamp: int, timeout: float
    ) -> SendReceipt | FailedSend | None:
        """
        Send a message and wait for its receipt.

        Returns None, and does nothing, without a route for it, and a `FailedSend` for a failure. Waits without the
        interpreter lock, *timeout* seconds at most.
        """
    def start(
        self,
        topic: str,
        message: Message | bytes,
        born_timestamp: int,
        timeout: float,
        completions: Completions,
        number: int,
    ) -> tuple[MessageIds, str] | None:
        """
        Start a send, whose outcome comes to *completions* under *number*, and return the id and the broker.

        Return None, and do nothing, without a route for it, and if no connection to its broker is open.
        """
    def has_route(self, topic: str) -> bool:
        """Return whether there is a route of *topic*, and it is not too old."""

@final
class RemotingClient:
    """Outgoing remoting calls over one kept connection for each peer. Thread-safe; releases the interpreter lock."""

    def __new__(
        cls,
        *,
        tls: bool = False,
        trust: str | Path | None = None,
        check_name: bool = True,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        credentials: tuple[str, str] | None = None,
    ) -> RemotingClient:
        """
        *tls*: use TLS with every peer. *trust*: PEM file of the servers' certificate authorities; None accepts any
        certificate (RocketMQ's `tls.client.authServer=false`). *check_name*: the certificate must name the host;
        RocketMQ does not check it. *certificate*, *key*: PEM files for servers that ask for them. *credentials*: access key and secret key
        with which requests are signed. Raises `ConfigError`
        with the file's name.
        """

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

    def begin(
        self, address: str, code: int, fields: Mapping[str, str] | None = None, *, timeout: float = 3.0
    ) -> PendingAnswer:
        """Start a call; `PendingAnswer.wait` returns its answer later."""

    def close(self) -> None: ...

@final
class PendingAnswer:
    """A call started by `RemotingClient.begin`."""

    def wait(self) -> tuple[int, str | None, dict[str, str], Records]:
        """(code, remark, extFields, body), once. Raises as `RemotingClient.call`; releases the interpreter lock."""

def blocking(wait: Callable[[], _T]) -> _T:
    """Call a function that waits, and return its result. Meanwhile, another thread of the pool can answer a request."""

def crc32(data: bytes) -> int: ...
def check_filter(kind: str, expression: str) -> None:
    """Raise `ValueError` with position and reason unless *expression* is a filter of its *kind*, `TAG` or `SQL92`."""

def decode_records(data: bytes, *, check: bool = True) -> list[StoredMessage]:
    """
    Decode consecutive records, as in the answers of QUERY_MESSAGE and PULL_MESSAGE.

    Raises `ValueError` for other bytes, and unless *check* is false for records with wrong checksums.
    """

@final
class ColumnBuffer:
    """Read-only bytes of a column filled by Rust. `bytes()` copies them."""

    @property
    def address(self) -> int:
        """The address of the bytes, valid as long as this object lives, for `pyarrow.foreign_buffer`."""

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

@final
class Records:
    """Records of an answer, not copied. `record_columns` takes them as they are; `bytes()` copies them."""

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

def record_columns(
    parts: Sequence[bytes | Records],
    *,
    columns: Sequence[str],
    filter: dict[str, Any] | None = None,
    end: int | None = None,
) -> dict[str, Any]:
    """
    Decode records into the buffers of Arrow columns, and check their checksums.

    *parts*: consecutive whole records each, as in answers of PULL_MESSAGE (11). *columns*: the wanted names of the
    schema of `ferromq.spark`. *filter*: `topics`, `queue_ids`, `tags`, `keys` (lists), `store_from_ms`, `store_to_ms`,
    `born_from_ms`, `born_to_ms`, `offset_from`, `offset_to` (from is inclusive, to exclusive), `starts` (the result of
    `queue_starts`); a row must meet all of them. Records from queue offset *end* on are ignored.

    Returns `rows`, `read` (records before the filter), `next_offset` (after the last record, or None) and `columns`:
    name → (null count, validity or None, buffers in Arrow's order, children after their parents). Compressed bodies are
    decompressed, and their bits of `sys_flag` cleared; a body that cannot be decompressed stays as it is, with the bits.
    Raises `ValueError` with the part and byte of a bad record, or with an unknown column or filter.
    """

@final
class MessageColumns:
    """
    The records of one answer or several, as buffers of Arrow columns in the making.

    A body that does not match its checksum or cannot be decompressed is null.
    """

    def __new__(cls, bytes: int, *, columns: Sequence[str]) -> Self:
        """Begin *columns* of about *bytes* bytes of records. Raises `ValueError` for an unknown column."""
    def add(self, records: Records) -> None:
        """Add the records of an answer. Raises `ValueError` for bytes that are no records."""
    def finish(self) -> dict[str, Any]:
        """Return the rows: the result of `record_columns`. Raises `ValueError` the second time."""

@final
class LogScan:
    """
    The records of one commit log file as batches of columns, with checked checksums. It only reads, and takes no lock.

    *path*: a file of ferromq or RocketMQ, whose first byte has the physical offset *first_offset*. It reads the records
    that begin at *begin* or later and before *end* (physical offsets); a *begin* inside a record means the next record.
    *columns* and *filter* as for `record_columns`; records that consumers cannot see are not rows. A batch ends with
    *batch_rows* rows, or with the row that reaches *batch_bytes* (at most 1 GiB). *on_corrupt*: `fail`, or `skip` to
    continue at the next sound record.

    Yields the result of `record_columns`, with `corrupt`: (physical offset, reason) of each skipped range. A batch may
    have no rows. Raises `CorruptStore` with file, offset and reason; `StoreError` if the file cannot be read;
    `ValueError` for a wrong range or option.
    """

    def __new__(
        cls,
        path: str | Path,
        first_offset: int,
        begin: int,
        end: int,
        *,
        columns: Sequence[str],
        filter: dict[str, Any] | None = None,
        batch_rows: int = 8192,
        batch_bytes: int = 8388608,
        on_corrupt: str = "fail",
    ) -> LogScan: ...
    def __iter__(self) -> LogScan: ...
    def __next__(self) -> dict[str, Any]: ...
    @property
    def position(self) -> int:
        """The physical offset of the next record."""

def log_files(directory: str | Path, *, commit_log_paths: Sequence[str | Path] = ...) -> list[tuple[str, int, int]]:
    """
    The readable commit log files of a store directory in order: (path, first physical offset, end of the readable part).

    The store may belong to ferromq or a Java broker, and may be open, closed or killed. Only flushed bytes are readable:
    all of a closed store, or else up to `ferromq/flushed`, or up to three seconds before a Java broker's checkpoint. A
    gap between files is a missing file. *commit_log_paths*: directories of the log, if it is elsewhere. Raises
    `StoreError` if it is not a store, or a file cannot be read.
    """

def queue_starts(directory: str | Path, *, commit_log_paths: Sequence[str | Path] = ...) -> dict[str, Any]:
    """
    The starts of a store's queues, for the filter `starts`, which skips records that queues no longer contain.

    `queues`: topic → queue id → (first queue offset, physical offset of its record). `undecided_from`: records from this
    physical offset on may not be in queues yet. Call it after `log_files`. Raises the same errors.
    """

def init_logging(filter: str, format: str) -> None:
    """Print Rust logs to stderr with a filter such as `info,ferromq_store=debug`, as `text` or `json`."""

def change_logging(filter: str) -> bool:
    """Replace the filter of Rust logs. Returns False and changes nothing if `init_logging` was not called."""

def keep_warnings() -> bool:
    """Keep Rust's warnings for `next_warnings`. Returns False and changes nothing if the logs are printed."""

def next_warnings() -> tuple[list[tuple[int, str, str]], int] | None:
    """Wait for warnings. Returns level, target and text of each, and how many were left out; None after `end_warnings`."""

def end_warnings() -> None:
    """End the wait of `next_warnings`, until the next `keep_warnings`."""

def forked_child() -> None: ...

# --- the client's messages -------------------------------------------------------------------------------------

@final
class Message:
    """
    A message to send: a body, keys and a tag, properties, and options of its delivery.

    Queries find it by *keys* (one or several). Consumers can filter by *tag*. *properties* are delivered with it. Give
    at most one of: *message_group*, whose messages are delivered one after the other, in the order of sending;
    *delivery_timestamp* (an aware `datetime`, or milliseconds since 1970), the earliest delivery time; *delay* (a
    `timedelta`, or seconds), the same counted from its sending; *priority*, 0 or more, higher ones first.

    Raises `TypeError` and `ValueError` for two of them, and for values that RocketMQ's records cannot contain: an empty
    body, a tag that is blank or contains `|`, a key with white space, control characters.
    """

    def __new__(
        cls,
        body: bytes | bytearray | memoryview,
        *,
        keys: str | Iterable[str] | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        delivery_timestamp: datetime | int | None = None,
        delay: timedelta | float | None = None,
        priority: int | None = None,
    ) -> Message: ...
    def __getnewargs_ex__(self) -> tuple[tuple[bytes], dict[str, Any]]: ...
    def compressed(self, algorithm: str, over: int) -> Message:
        """
        Return the message with a compressed body if that is over so many bytes, and smaller for it; else this one.

        *algorithm*: `zlib`, `lz4` or `zstd`.
        """
    def with_properties(self, added: Mapping[str, str]) -> Message:
        """Return a copy with more properties, which replace those of the same names."""
    @property
    def body(self) -> bytes:
        """The body."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, by which queries find the message."""

    @property
    def tag(self) -> str | None:
        """The tag; None without one."""

    @property
    def properties(self) -> dict[str, str]:
        """The properties that are delivered with it."""

    @property
    def message_group(self) -> str | None:
        """The message group, whose messages are delivered in the order of sending; None without one."""

    @property
    def delivery_timestamp(self) -> int | None:
        """The earliest delivery time, milliseconds since 1970; None without one."""

    @property
    def delay(self) -> timedelta | None:
        """The time from its sending to its earliest delivery; None without one."""

    @property
    def priority(self) -> int | None:
        """The priority, 0 or more, higher ones first; None without one."""

    @property
    def lane(self) -> str | None:
        """The batch key, equal for all messages of a request: None, `delayed`, `priority`, or `group:` and the group."""

@type_check_only
class LeaseKeeper(Protocol):
    """
    The receiver of messages, which implements their `ack` and `change_invisible_duration`.

    With an `AckQueue` as the attribute `acks`, messages put themselves there instead of calling `ack_later`.
    """

    def ack_later(self, message: MessageView, /) -> None: ...
    def change_invisible_duration(self, message: MessageView, duration: timedelta | float, /) -> Any: ...

@final
class MessageView:
    """
    A received message under a lease. Attributes are built when they are read.

    A view keeps its whole answer, with other messages, in memory: to keep much data, keep `body`, not views. Timestamps
    are milliseconds since 1970, as in `StoredMessage`.
    """

    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: Any, /) -> Self: ...
    @property
    def topic(self) -> str:
        """The topic, named without the namespace of its consumer."""

    @property
    def body(self) -> bytes:
        """
        The body as it was sent, decompressed if needed.

        Raises `CorruptMessage`, a `ValueError`, if the body does not match the checksum that the broker sent, or is marked
        as compressed but cannot be decompressed. If a handler does not catch it, the message is redelivered, and becomes a
        dead letter in the end.
        """

    @property
    def raw_body(self) -> bytes:
        """The body as received, compressed or not."""

    @property
    def tag(self) -> str | None:
        """The tag; None without one."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, by which queries find the message."""

    @property
    def properties(self) -> dict[str, str]:
        """The properties that the producer gave."""

    @property
    def message_group(self) -> str | None:
        """The message group, whose messages are delivered in the order of sending; None without one."""

    @property
    def delivery_timestamp(self) -> int | None:
        """The earliest delivery time of a timed message, milliseconds since 1970; None for others."""

    @property
    def priority(self) -> int | None:
        """The priority, 0 or more, higher ones first; None without one."""

    @property
    def message_id(self) -> str:
        """The message id, which the producer chose."""

    @property
    def queue_id(self) -> int:
        """The number of its queue in the topic on its broker, from 0."""

    @property
    def queue_offset(self) -> int:
        """The position in its queue, from 0."""

    @property
    def delivery_attempt(self) -> int:
        """The number of this delivery: 1 for the first one."""

    @property
    def receipt_handle(self) -> str:
        """The key of the lease. It changes with the lease's duration."""

    @property
    def born_timestamp(self) -> int:
        """When it was sent, by the producer's clock: milliseconds since 1970."""

    @property
    def born_host(self) -> str:
        """The producer's address, or what it gave in its place."""

    @property
    def store_timestamp(self) -> int:
        """When it was stored, by the broker's clock: milliseconds since 1970."""

    @property
    def store_host(self) -> str:
        """The `host:port` of the broker that stored it."""

    @property
    def invisible_ms(self) -> int:
        """The length of its first lease in milliseconds."""

    @property
    def endpoint(self) -> str:
        """The `host:port` of the broker that delivered it and takes its acknowledgement."""

    def ack(self) -> None:
        """
        Acknowledge the message soon, together with others.

        A refusal is logged, and raised by the consumer's next `flush`. `Consumer.ack` waits for the broker instead. A
        second call does nothing.
        """

    def change_invisible_duration(self, duration: timedelta | float) -> Awaitable[None] | Any:
        """
        Let the lease end *duration* (float: seconds) from now; zero releases the message at once.

        Returns None, or with `ferromq.aio` an awaitable. Raises `LeaseExpired` if the lease has expired.
        """

    @property
    def is_settled(self) -> bool:
        """Whether this client has acknowledged the message or forwarded it to the dead letters, or is doing so."""

@final
class MessageIds:
    """The message ids of a batch, built when they are read; *first* is the counter of the first one."""

    def __new__(cls, process: bytes, seconds: int, first: int, count: int) -> MessageIds: ...
    def __getnewargs__(self) -> tuple[bytes, int, int, int]: ...
    @staticmethod
    def reserve(process: bytes, seconds: int, count: int) -> MessageIds:
        """Reserve *count* ids that are unique in this process; *process*: 8 bytes, *seconds*: since 2021."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> str: ...

_Column: TypeAlias = tuple[int, bytes | None, bytes]
_Texts: TypeAlias = tuple[_Column, bytes]

@final
class Rows:
    """
    Checked rows of Arrow columns, for encoding as send requests.

    A column is (index of the first row's value, validity bits or None, values) with eight bytes for each value, numbers
    or offsets. Texts are such a column and the buffer of its offsets. *columns* may contain `topic`, `key`, `tag`,
    `message_group` (texts), `keys` (offsets, texts), `properties` (offsets, names, values), `delivery_timestamp` and
    `priority` (numbers), `delay` (numbers, and the number of their units in a millisecond). *first* is the number of the
    first row in its partition, *topic* that of rows without one, *numbered* the text before the row's number in
    FERROMQ_SEQUENCE. Raises `ValueError` with row and column.
    """

    def __new__(
        cls,
        count: int,
        body: _Texts,
        columns: dict[str, Any],
        *,
        first: int = 0,
        topic: str | None = None,
        numbered: str | None = None,
    ) -> Rows: ...
    @property
    def topics(self) -> list[tuple[str, int]]:
        """Each topic, and its first row."""

    def lanes(self, max_rows: int, max_bytes: int) -> list[Part]:
        """Divide all rows into requests, each with one topic and at most one message group; delayed rows are alone."""

    def placed(
        self,
        topic: int,
        block: int,
        queues: list[int],
        in_order: list[int],
        brokers: list[int],
        max_rows: int,
        max_bytes: int,
    ) -> list[Part]:
        """
        Divide the rows of one topic into requests in their order, each for one queue, or for the broker that chooses it.

        *queues* are the queues of each *block* of rows, *in_order* those for message groups, *brokers* the broker of
        each queue, all by number. Raises `ValueError` if one is missing.
        """

    def encode(
        self, part: Part, ids: MessageIds, queue_id: int, born_timestamp: int, born_host: str, max_body: int
    ) -> bytes:
        """Encode a SendMessageRequest. Raises `MessageTooLarge` with the row."""

@final
class Part:
    """The rows of one request."""

    @property
    def topic(self) -> str: ...
    @property
    def group(self) -> str | None:
        """The message group of its first row."""

    @property
    def queue(self) -> int:
        """The number of its queue, if `placed` chose one."""

    @property
    def numbers(self) -> list[int]:
        """The numbers of its rows in the partition, ascending."""

    def __len__(self) -> int: ...

def batch_end(messages: list[Message | bytes], start: int, max_count: int, max_bytes: int) -> int:
    """The end of the batch that begins at *start*: after *max_count* messages or about *max_bytes*, and at least one."""

def has_lanes(messages: list[Message | bytes]) -> bool:
    """Whether any of the messages has a `lane`. Raises `TypeError` for other objects."""

def queue_of_group(group: str, queues: int) -> int:
    """The index of a message group's queue among *queues* writable ones, in the route's order, as in RocketMQ's clients."""

def encode_send(
    topic: str,
    messages: list[Message | bytes],
    ids: MessageIds,
    queue_id: int,
    born_timestamp: int,
    born_host: str,
    max_body: int,
    transaction: int | None = None,
) -> bytes:
    """
    Encode a SendMessageRequest. *transaction*: for half messages, milliseconds until the first check-back; 0: the broker's.

    Raises `MessageTooLarge`, and `TypeError` or `ValueError` with the message.
    """

def decode_sent(
    answer: bytes,
) -> tuple[
    int,
    str,
    list[int],
    list[tuple[int, int, str]],
    list[tuple[int, str, str]],
    int | None,
    tuple[Literal["written", "flushed"] | None, bytes, bytes],
]:
    """
    Decode a SendMessageResponse: code, text, queue offsets.

    Then index, code and text of each failed message, and index, transaction id and recall handle of each message with
    one of them; then the queue of the first message, if the broker chose another one; last durability, the broker's
    address, and the physical offsets in 8 bytes each.
    """

def renew(message: MessageView, receipt_handle: str) -> None:
    """Replace the receipt handle of a message by a new one from the broker."""

def unsettle_all(messages: Sequence[MessageView]) -> None:
    """Unset `is_settled` of messages after the broker refused or did not answer."""

def any_settled(messages: Sequence[MessageView]) -> bool:
    """Return whether any of the messages is settled."""

def settle_all(messages: Sequence[MessageView]) -> dict[str, list[MessageView]]:
    """Settle messages, and return those that were not, by the broker that they came from."""

def encode_acks(group: str, topic: str, messages: Sequence[MessageView]) -> bytes:
    """Encode an AckMessageRequest."""

def encode_record_acks(group: str, topic: str, messages: Sequence[MessageView]) -> bytes | None:
    """Encode an acknowledgement for a framed call, or return None: not all messages came as records with their first leases."""

def decode_record_acks(answer: bytes) -> tuple[int, str, list[tuple[int, int, str]]]:
    """Decode the answer to `AckRecords`: code, text; index, code and text of each failed message."""

def decode_acked(answer: bytes) -> tuple[int, str, list[tuple[str, int, str]]]:
    """Decode an AckMessageResponse: code, text; message id, code and text of each failed entry."""

def decode_records_answer(
    answer: Records, lease: LeaseKeeper, endpoint: str, namespace: str | None = None
) -> tuple[tuple[int, str] | None, list[MessageView], int | None]:
    """
    Decode the answer to a framed receive or pull: its status (code, text), its messages, and a pull's next offset.

    Topics are named without the *namespace*. Raises `ValueError` for other bytes.
    """

def split_records(answer: Records) -> tuple[tuple[int, str], int | None, Records]:
    """
    Split the answer to a framed receive or pull: its status (code, text), a pull's next offset, and its records.

    Raises `ValueError` for other bytes. The records are not checked.
    """

def decode_received(
    packets: list[bytes], packed: bool, lease: LeaseKeeper, endpoint: str, namespace: str | None = None
) -> tuple[tuple[int, str] | None, list[MessageView], int | None]:
    """
    Decode a ReceiveMessage or PullMessage stream: its status (code, text), if any, its messages, and a pull's next offset.

    *packed*: each packet is a sequence of length-prefixed responses, otherwise one. Topics are named without the
    *namespace*. Raises `ValueError` for other bytes.
    """
