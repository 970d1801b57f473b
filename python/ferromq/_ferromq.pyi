"""Bindings of the Rust core. No logic lives here; `ferromq` re-exports what users need."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, final, type_check_only

_T = TypeVar("_T")

__version__: str

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

    def grpc_message(self) -> bytes:
        """It as an encoded protobuf `Message`, as gRPC clients are shown it; the body as stored."""

@final
class ExpiredFile:
    """A file of the commit log that is about to be deleted; it lies there unchanged until the hook has returned."""

    @property
    def path(self) -> Path: ...
    @property
    def begin(self) -> int:
        """First physical offset."""

    @property
    def end(self) -> int:
        """Last physical offset + 1."""

    @property
    def oldest_ms(self) -> int:
        """When its first message was stored, milliseconds since 1970."""

    @property
    def newest_ms(self) -> int: ...

@type_check_only
class StoreOptions(TypedDict, total=False):
    """The fields of the Rust `StoreConfig`, where the defaults and the limits live; None is not given."""

    commit_log_file_size: int | None
    commit_log_paths: Sequence[str] | None
    consume_queue_file_entries: int | None
    dedup_window: timedelta | None
    dedup_writers: int | None
    delay_levels: str | None
    """How long each delay level lasts, level 1 first: `1s 5s 10s 30s 1m 2h`."""
    disk_reserve: int | None
    fast_boot: bool | None
    flush: str | None
    """`group`, `each`, `every 1000`, `interval`, `interval 200ms`."""
    flush_every: Mapping[str, int] | None
    """Topic → messages that may be acknowledged and not flushed."""
    index_entries: int | None
    index_slots: int | None
    mapped_bytes: int | None
    max_message_size: int | None
    open_files: int | None
    progress_interval: timedelta | None
    property_crc: bool | None
    read_only_commit_log_paths: Sequence[str] | None
    retention_age: timedelta | None
    """`timedelta.max` keeps files whatever their age."""
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
    """Counters and positions of a store. A failure or miss is there once it is counted."""

    min_physical_offset: int
    max_physical_offset: int
    flushed_offset: int
    dispatched_offset: int
    indexed_offset: int
    indexed_timestamp: int
    mismatches: int
    appended: int
    longest_put_ms: int
    """How long the longest put took since open, until it was flushed where it is answered then."""
    append_lock_ms: int
    """How long the current append has been writing; 0 while no append writes."""
    found_gets: int
    """Reads of a queue by clients that found a message; a receive reads each of its queues."""
    fruitless_gets: int
    """Those that found none."""
    longest_get_ms: int
    """How long the longest request for messages took, without its wait for one."""
    timed_entered: int
    """Messages with a time of delivery that were entered into the wheel, over all runs."""
    set_aside_queues: int
    """Consume queues that cannot be written now; sends to them are refused."""
    dispatch_stalled_ms: int
    """How long dispatch has stood still with something to dispatch; from 10,000 on messages are refused."""
    flushes: int
    recovered_cut_bytes: int
    recovered_messages: int
    delayed_delivered: int
    """Messages with a delay level that came to their queue."""
    delayed_put_back: int
    """Those that wait once more, because all queues of their topic are closed."""
    delayed_undeliverable: int
    """Those given up, each with a line in the log."""
    timed_delivered: int
    """Messages with a time of delivery that came to their queue."""
    timed_rolled: int
    """Those stored anew on their way."""
    timed_recalled: int
    """Those that were taken back."""
    timed_put_back: int
    """Those that wait a minute more, because all queues of their topic are closed."""
    timed_undeliverable: int
    """Those given up, each with a line in the log."""
    timed_lost: int
    """Those whose record was removed or damaged while they waited."""
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
    """A message to store; what is left out has the defaults of `Store.append`."""

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
class Store:
    """
    The message store of one directory.

    Raises `StoreLocked`, `CorruptStore`, `StoreFull`, `StoreClosed`, `MessageTooLarge` (from `ferromq.errors`), and
    `ConfigError` naming the option.
    """

    def __new__(cls, directory: str, clock: Clock, **options: Unpack[StoreOptions]) -> Store: ...
    @staticmethod
    def check(**options: Unpack[StoreOptions]) -> dict[str, Any]:
        """Every option of a store opened with these, defaults included. Raises `ConfigError` where none can be."""

    def options(self) -> dict[str, Any]:
        """Every option by its name, defaults included."""

    def configure(self, **options: Unpack[StoreOptions]) -> None:
        """Change flush and retention of the open store. Raises `ConfigError` for options that cannot change."""

    def set_archive(self, hook: Callable[[ExpiredFile], object]) -> None:
        """Set what takes files before they are deleted, where `retention_on_expiry` is `archive`; an exception keeps the file."""

    def clean(self, *, now: bool = False) -> dict[str, Any]:
        """Delete what may go; *now*: at whatever hour. What was done: `removed_files`, `archived_files`, `refused_files`, …"""

    def delete_topic(self, topic: str) -> int:
        """Delete the queues of a topic and its groups' progress, return how many; queue offsets go on where they were."""

    def clean_unused(self, keep_topics: Sequence[str]) -> list[str]:
        """Delete all other topics; return them."""

    def set_queue_access(self, topic: str, queue_id: int, access: str) -> None:
        """`open`, `read_only` (it drains) or `closed`. Kept across restarts."""

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
        """Store one message, wait until it is durable as the flush policy promises; (queue offset, physical offset)."""

    def append_as_one(self, messages: Sequence[NewStoredMessage]) -> list[tuple[int, int, int]]:
        """
        As `append`, but whatever happens all of the messages are there afterwards or none.

        Returns queue offset, physical offset and size of each record.
        """

    def delayed(
        self, topic: str, queue_id: int, properties: Mapping[str, str], *, sys_flag: int = 0
    ) -> tuple[str, int, dict[str, str]] | None:
        """Topic, queue and properties of a message with a delay level or a time of delivery while it waits, or None."""

    def start_schedule(self) -> None:
        """Deliver messages that wait at a delay level, at their time or after it, at least once; a slave must not. Idempotent."""

    def stop_schedule(self) -> None:
        """End that, and write how far it got. `close` does it too."""

    def delay_offsets(self) -> dict[int, int]:
        """Next queue offset to deliver of each delay level; of `config/delayOffset.json` where the schedule does not run."""

    def delay_offset_json(self) -> str:
        """The same in the form of that file."""

    def timer_check_point(self) -> bytes:
        """How far the wheel of timed messages is, in the 56 bytes a RocketMQ slave reads."""

    def timer_metrics(self) -> str:
        """How many timed messages wait by topic, in the form of `config/timermetrics`."""

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
        Status name (`FOUND`, `NO_MATCHED_MESSAGE`, …), messages, next offset.

        Only messages with one of *tags*, or, where *filter* is given, those it wants: `("SQL92", "price > 3")`. Raises
        `ValueError` for a wrong expression.
        """

    def message_at(self, physical_offset: int) -> StoredMessage | None: ...
    def nearest_message(self, physical_offset: int) -> int | None:
        """Where the message begins that lies at the offset; else the last one before it, else the first one kept."""

    def query_by_unique_key(
        self, topic: str, key: str, max_count: int = 32, begin_ms: int = 0, end_ms: int = ..., *, max_bytes: int = ...
    ) -> list[StoredMessage]:
        """Messages, newest first, as many as have *max_bytes* together; at least one."""

    def query_by_key(
        self, topic: str, key: str, max_count: int = 32, begin_ms: int = 0, end_ms: int = ..., *, max_bytes: int = ...
    ) -> list[StoredMessage]:
        """Messages, newest first, as many as have *max_bytes* together; at least one."""

    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """The first message stored at the time or later; *upper*: the last one stored at the time or before it."""

    def earliest_time(self, topic: str, queue_id: int) -> int | None:
        """When the first message kept in a queue was stored."""

    def stored_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When the message at a queue offset was stored; None where it is not kept."""

    def queue_entries(
        self, topic: str, queue_id: int, from_offset: int, count: int
    ) -> list[tuple[int, int, int]] | None:
        """Entries of a consume queue: physical offset, size, tag hash. None where there is no such queue."""

    def committed_offsets(self, group: str | None = None, topic: str | None = None) -> dict[str, dict[int, int]]:
        """Committed offsets by `topic@group` and queue id, of one group and of one topic where they are given."""

    def forget_group(self, group: str, topic: str | None = None) -> int:
        """Forget, durably, what a group has read of all topics or of one; return of how many."""

    def adopt_offsets(self, offsets: dict[str, dict[int, int]]) -> None:
        """Take over a master's committed offsets by `topic@group` and queue id, durably; others stay as they are."""

    def committed_offset(self, group: str, topic: str, queue_id: int) -> int | None: ...
    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None: ...
    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group goes on at *offset*: its leases of the queue end, and messages above come again."""

    def queues(self) -> dict[str, list[int]]: ...
    def stats(self) -> StoreStats: ...
    def put_times(self) -> list[tuple[int, int]]:
        """How long puts took since open: the last millisecond of each bucket, and how many ended in it."""

    def recovery(self) -> dict[str, Any]:
        """What the recovery at open did: `is_clean`, `walked_bytes`, `messages`, `cut_bytes`, `elapsed`, …"""

    def damages(self) -> list[tuple[Path, int, int, str]]:
        """
        What is wrong now: file, first and last + 1 physical offset, reason.

        Ranges of the commit log that are not served; consume queues, named by their directory, or the index that
        cannot be written now, with the range of the log they are redone from; messages that retention removed before
        their queue could be written again; and files that cannot be read now, which are tried again for the answer.
        """

    def close(self) -> None: ...

def inspect_store(
    directory: str, *, commit_log_paths: Sequence[str] = ..., index_slots: int | None = None
) -> dict[str, Any]:
    """
    Say what is in a store directory, without lock and read-only; the fields are those of `store_tools.StoreSummary`.

    Raises `StoreError` where it is no store directory, or cannot be read.
    """

@final
class StoreVerification:
    """
    A verification of a store directory that runs on threads of its own, without lock and read-only.

    At most 1,024 events wait to be taken; the threads wait for the caller then.
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

        None where nothing came within *timeout* seconds. Raises `StoreError` where the directory cannot be read,
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
        """(message, whether it matches its checksums), or (queue id, queue offset, reason) of an entry that leads to no record."""

@final
class LogFile:
    """Reads the records of one commit log file whose first byte has the physical offset *first_offset*. Raises `OSError`."""

    def __new__(cls, path: str, first_offset: int) -> LogFile: ...
    def __iter__(self) -> LogFile: ...
    def __next__(self) -> tuple[StoredMessage, bool] | dict[str, Any]:
        """(message, whether it matches its checksums), or the fields of `store_tools.Finding` for bytes that are no record."""

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

        `rows`, and in native byte order: as 4 bytes `topic` (a place in `topics`), `queue_id`, `sys_flag`, `size`,
        `key_ends` (behind the last of each record's `keys`), `keys` (hashes of index entries), `tag_key` (one more that
        may be there, or -1); as 8 bytes `queue_offset`, `physical_offset`, `tag_hash`, `store_timestamp`. `faults`:
        (kind, row or None, first byte, end, reason, whether no record follows). `end`: behind the last record;
        `unwritten_from`: where nothing but zeros begins; `continued`: records at the end that lack their last one.
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
        """`host:port` of the other side."""

    @property
    def language(self) -> str:
        """RocketMQ's name of the language a remoting client says it is written in (`JAVA`); `OTHER` for gRPC."""

    @property
    def version(self) -> int:
        """The `MQVersion` ordinal a remoting client says it has; 0 for gRPC."""

    @property
    def is_one_way(self) -> bool:
        """Whether the sender waits for no answer."""

    @property
    def fields(self) -> dict[str, str]:
        """Remoting extFields, or gRPC metadata with names in lower case."""

    @property
    def body(self) -> bytes: ...

Response: TypeAlias = bytes | tuple[int, str | None, dict[str, str], bytes]
"""gRPC: the encoded message. Remoting: (code, remark, extFields, body)."""

@type_check_only
class ServerLimits(TypedDict, total=False):
    """What a server bounds."""

    idle: float
    """Seconds after which a remoting connection without traffic is closed; default 120."""
    max_connections: int
    """
    Open connections of both protocols; by default what the limit of descriptors leaves beside the files of stores, for all
    servers of the process together, and at most 16,384.
    """
    memory: int
    """
    Bytes of memory for requests that arrive or are answered, and for answers that clients have not taken; default
    256 MiB. A connection may hold a quarter of it; an eighth is for small requests alone.
    """
    one_way: int
    """One-way remoting requests under way over all connections; default 256. Beyond it their connections are not read."""
    calls: int
    """Calls of clients under way; default 64. More wait, within their timeout."""

@final
class Server:
    """
    One server: remoting and gRPC listeners, hot verbs in Rust, cold requests handed to registered functions.

    Handlers run on a bounded pool of threads, one call each; an exception becomes SYSTEM_ERROR (1) or
    INTERNAL_SERVER_ERROR.
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
        """Answer *route* with *handler* (None: no answer). Raises ValueError where *route* is a hot verb."""

    def on_missing(self, handler: Callable[[str, str, str, tuple[str, int, int]], bool | None]) -> None:
        """
        *handler*(kind, name, peer, wanted): create it where allowed, push its entry, return whether it is there now.
        None: it may be created, and could not be.

        kind is `topic` or `group`; `topic_to_send`, where a producer of remoting wants the settings of a default topic
        and at most so many queues; or `topic_of_group`, a retry or dead-letter topic. *wanted* is (default topic, queues,
        system flag). `type_of_topic`: a topic pushed as UNDECIDED gets its first message, whose type stands in *wanted*
        in place of the default topic.
        """

    def on_telemetry(self, handler: Callable[[int, int, str, dict[str, str], bytes | None], None]) -> None:
        """*handler*(stream, connection, peer, metadata, message); message None: the stream ended. Calls of one stream come in order."""

    def on_close(self, handler: Callable[[int], None]) -> None:
        """*handler*(connection) after a connection is gone."""

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
        Take remoting connections as *mode* says: `disabled`, `permissive` (TLS and plaintext) or `enforcing`.

        *certificate*, *key*: PEM files. *client_auth*: whether clients show a certificate, `none`, `optional` or
        `require`; *trust*: PEM file of those that sign theirs. Raises `ConfigError` naming the file.
        """

    def set_grpc_tls(
        self, mode: str = "permissive", *, certificate: Path | None = None, key: Path | None = None
    ) -> None:
        """
        Take gRPC connections from the next one on as *mode* says: `disabled`, `permissive` (both) or `enforcing`.

        Without files a certificate is made up. Raises ConfigError naming the file that is wrong.
        """

    def reload_tls(self) -> bool:
        """Take the files of TLS anew where they have changed; return whether they had."""

    def listen_grpc(self, address: str) -> int:
        """Serve gRPC on `host:port` (port 0: any) and return the port. Raises OSError naming the address."""

    def listen_remoting(self, address: str) -> int: ...
    def put_topic(
        self, name: str, *, read_queues: int, write_queues: int, permission: int, message_type: str = "NORMAL"
    ) -> None:
        """
        permission: RocketMQ's bits, 4 read, 2 write. message_type: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE,
        MIXED or UNSPECIFIED (both: any), or UNDECIDED (any, until `on_missing` is asked about the first message).
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

        retry_queues: queues of its retry topic; 0: what is given back is dropped. max_attempts: deliveries of a message
        before it goes to the dead-letter topic. ordered: gRPC consumers receive each queue in order, one at a time.
        priority_factor: how many of a hundred receives of a topic of priorities look at the higher ones first.
        """

    def remove_group(self, name: str) -> None: ...
    def put_forbidden(self, group: str, topics: Sequence[str]) -> None:
        """The topics a group may not read though it is subscribed to them, instead of those said before."""

    def put_sql_filters(self, allowed: bool) -> None:
        """Say whether pulls may filter by SQL92; else they are refused with 1, as RocketMQ refuses them. It begins so."""

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
        Bound what a pull, and each queue of a receive, answers to clients that do not ask for large answers.

        near_count, near_bytes: of messages that begin at most *near_span* bytes before the end of the log; far_count,
        far_bytes: of others. The first message always comes. scan_entries: entries one look with a filter passes over.
        Before the first call nothing is bounded.
        """

    def put_locked(self, group: str, until_ms: int | None) -> None:
        """
        Say until when members of a group hold locks of queues; None: no more.

        Until then what its members send to its retry topic goes to its dead letters, as with RocketMQ: they consume in
        order.
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
        Push what a live group subscribed to; remoting pulls that carry no subscription use it.

        Without one they are answered 24, with a *version* below the pull's 25. broadcasting: each member reads all.
        """

    def remove_subscription(self, group: str, topic: str) -> None:
        """Forget a subscription; resets stay."""

    def put_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """
        Answer the next pull of a queue with *offset* to go on at (21); until then commits (15) of it are ignored.

        The committed offset itself is the store's to set.
        """

    def remove_resets(self, group: str, topic: str | None = None) -> None:
        """Forget the resets of a topic, or of all a group's topics, that no member has been told of."""

    def send_telemetry(self, stream: int, message: bytes) -> bool:
        """Send an encoded TelemetryCommand to a client; False where the stream is gone."""

    def end_telemetry(self, stream: int, code: int, message: str) -> bool:
        """End a stream with a status of gRPC, as 3 INVALID_ARGUMENT; False where the stream is gone."""

    def wake_receives(self, group: str, topic: str) -> None:
        """Have receives that wait look again: the group's offsets in the topic are others now."""

    def push(self, connection: int, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> bool:
        """
        Send a one-way request to a remoting client; False where its connection is gone or takes no more.

        Never waits: a client that does not read loses its own pushes only. Raises `MessageTooLarge`.
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
        """The number of `drop_routes` so far; read it before a route is looked up to be put."""

    def put_route(self, topic: str, generation: int, standard: bytes, legacy: bytes) -> None:
        """
        Answer lookups (105) of *topic* in Rust from now on; ignored where a drop came since *generation* was read.

        *standard*: JSON by the book, for clients from 4.9.4 on and those that say `acceptStandardJsonOnly`. *legacy*:
        with numbers as bare keys, as fastjson writes maps.
        """

    def drop_routes(self, topics: Sequence[str] | None) -> None:
        """Forget the routes of *topics* (None: all): the handler of 105 is asked again."""

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
        What messages of remoting clients are stamped with, and which are taken; what is left out has its default.

        check_types: over which protocols a message must be of its topic's type: none, grpc (as with RocketMQ) or all.
        """

    def set_client_policy(
        self,
        *,
        min_invisible_ms: int,
        max_invisible_ms: int,
        max_delay_ms: int | None,
        creates_topics: bool,
        redelivers_from_first: bool,
    ) -> None:
        """
        What clients may ask for over gRPC, and what comes again in an ordered group.

        creates_topics: off, a send to an unknown topic is of the wrong type, as with RocketMQ.
        redelivers_from_first: all messages from the first one that is not acknowledged, not those alone that are not.
        """

    def refuse_reads(self, refuses: bool) -> None:
        """Refuse consumers from now on, as a slave does, or serve them; over remoting with SYSTEM_BUSY."""

    def count_put(self, topic: str, messages: int, size: int) -> None:
        """Count messages that were stored otherwise than by a send, in `traffic`; *size*: bytes of their records."""

    def traffic(self) -> dict[str, dict[str, tuple[int, int]]]:
        """
        Messages and bytes since the start: `put` by topic, `get` and `send_back` by `topic@group`.

        A topic or group that is removed is forgotten.
        """

    def stop(self, timeout: float = 5.0) -> None:
        """Stop listening, let requests under way end, close connections. Idempotent."""

@final
class RemotingClient:
    """Outgoing remoting calls over kept connections, one a peer. Thread-safe; releases the interpreter lock."""

    def __new__(
        cls,
        *,
        tls: bool = False,
        trust: str | Path | None = None,
        check_name: bool = True,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
    ) -> RemotingClient:
        """
        *tls*: to every peer. *trust*: PEM file of the certificates that sign servers'; None takes any certificate
        (RocketMQ's `tls.client.authServer=false`). *check_name*: the certificate must name the host, which RocketMQ does
        not ask. *certificate*, *key*: PEM files for servers that ask. Raises `ConfigError` naming the file.
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
        """Begin a call whose answer is taken later; it is under way meanwhile."""

    def close(self) -> None: ...

@final
class PendingAnswer:
    """A call that `RemotingClient.begin` began."""

    def wait(self) -> tuple[int, str | None, dict[str, str], Records]:
        """(code, remark, extFields, body), once. Raises as `RemotingClient.call`; releases the interpreter lock."""

def blocking(wait: Callable[[], _T]) -> _T:
    """Call a function that waits, and return what it does: on a thread that answers requests, another request begins."""

def crc32(data: bytes) -> int: ...
def check_filter(kind: str, expression: str) -> None:
    """Raise `ValueError` with position and reason unless *expression* is a filter of its *kind*, `TAG` or `SQL92`."""

def decode_records(data: bytes) -> list[StoredMessage]:
    """Decode records laid one after the other, as QUERY_MESSAGE and PULL_MESSAGE answer. Raises `ValueError` for bytes that are not records."""

@final
class ColumnBuffer:
    """Bytes of a column that Rust filled. Read-only; `bytes()` copies them."""

    @property
    def address(self) -> int:
        """Where they lie as long as this object lives, for `pyarrow.foreign_buffer`."""

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

@final
class Records:
    """Records of an answer, where they came to lie; `record_columns` takes them as they are, `bytes()` copies them."""

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
    Decode records as they lie in a log into the buffers of Arrow columns, their checksums checked.

    *parts*: each whole records one after the other, as PULL_MESSAGE (11) answers. *columns*: names of the schema of
    `ferromq.spark`; only these are made. *filter*: `topics`, `queue_ids`, `tags`, `keys` (lists), `store_from_ms`,
    `store_to_ms`, `born_from_ms`, `born_to_ms`, `offset_from`, `offset_to` (from: the first one, to: the first one that is
    not), `starts` (what `queue_starts` answered); all that are given must hold. Records at and behind queue offset *end* are left out, as if they had not come.

    Returns `rows`, `read` (records looked at, before the filter), `next_offset` (behind the last of them, or None) and
    `columns`: name → (null count, validity or None, buffers in Arrow's order, children's after their parents').
    Compressed bodies come out decompressed and without the bits of `sys_flag` that say so; one that does not decompress
    comes as it is stored, with them. Raises `ValueError` naming the part and byte where no sound record lies, or the
    column or filter that is not known.
    """

@final
class LogScan:
    """
    The records of one commit log file as batches of columns, checksums checked; read-only, without the store's lock.

    *path*: a file of RocketMQ's or ours, whose first byte has the physical offset *first_offset*. Records are read that
    begin at *begin* or behind it and before *end* (physical offsets); a *begin* inside a record goes on with the next.
    *columns* and *filter* as for `record_columns`; records that consumers do not see are no rows. A batch ends with
    *batch_rows* rows, or with the row that takes it to *batch_bytes* (at most 1 GiB). *on_corrupt*: `fail`, or `skip`
    to go on at the next sound record.

    Yields what `record_columns` returns, and with it `corrupt`: (physical offset, reason) of each place that was skipped.
    A batch may have no rows. Raises `CorruptStore` naming file, offset and reason; `StoreError` where the file cannot be
    read; `ValueError` for a range or option that cannot be.
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
        """Where it goes on, a physical offset."""

def log_files(directory: str | Path, *, commit_log_paths: Sequence[str | Path] = ...) -> list[tuple[str, int, int]]:
    """
    The commit log files of a store directory in order: (path, first physical offset, end of what may be read).

    Ours or a Java broker's, open, closed or killed; read-only, and never beyond what was flushed: of a store that was
    closed everything, else what `ferromq/flushed` says, or a Java broker's checkpoint, three seconds taken off. Files of
    which nothing may be read are left out; a gap between files is a file that is missing. *commit_log_paths*: where the
    log lies elsewhere. Raises `StoreError` where it is no store, or a file cannot be read.
    """

def queue_starts(directory: str | Path, *, commit_log_paths: Sequence[str | Path] = ...) -> dict[str, Any]:
    """
    Where the queues of a store begin, for the filter `starts`, which leaves out records that queues no longer hold.

    `queues`: topic → queue id → (first queue offset, physical offset of its record). `undecided_from`: records from this
    physical offset on may not have been in queues yet. To be asked after `log_files`. Raises as that does.
    """

def init_logging(filter: str) -> None:
    """Print Rust logs to stderr, filtered as `info,ferromq_store=debug`."""

def change_logging(filter: str) -> bool:
    """Filter Rust logs anew; False where `init_logging` was not called, and nothing changes."""

def forked_child() -> None: ...

# --- the client's messages -------------------------------------------------------------------------------------

@final
class Message:
    """
    A message to send: a body, what finds it, and what is special about its delivery.

    *keys* (one or several) find it in queries, *tag* lets consumers filter, *properties* travel along. At most one of:
    *message_group*, whose messages are delivered one after the other, in the order of sending; *delivery_timestamp*
    (an aware `datetime`, or milliseconds since 1970), before which it is not delivered; *delay* (a `timedelta`, or
    seconds), the same counted from its sending; *priority*, 0 or more, of which higher ones come first. Raises
    `TypeError` and `ValueError` for two of them, and for what RocketMQ's records cannot hold: an empty body, a blank or
    barred tag, a key with white space, control characters.
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
    @property
    def body(self) -> bytes: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def message_group(self) -> str | None: ...
    @property
    def delivery_timestamp(self) -> int | None:
        """Milliseconds since 1970."""

    @property
    def delay(self) -> timedelta | None: ...
    @property
    def priority(self) -> int | None: ...
    @property
    def lane(self) -> str | None:
        """Messages of one request have one lane: None, `delayed`, `priority`, or `group:` and the message group."""

@type_check_only
class LeaseKeeper(Protocol):
    """Whoever received messages: their `ack` and `change_invisible_duration` end here."""

    def ack_later(self, message: MessageView, /) -> None: ...
    def change_invisible_duration(self, message: MessageView, duration: timedelta | float, /) -> Any: ...

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
        """
        The body as it was sent, decompressed where needed.

        Raises `CorruptMessage`, a `ValueError`, where the message says it is compressed and does not decompress. A
        handler that lets it through has failed: the message comes again, and ends as a dead letter.
        """

    @property
    def raw_body(self) -> bytes:
        """The body as it came, compressed or not."""

    @property
    def tag(self) -> str | None: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def message_group(self) -> str | None: ...
    @property
    def delivery_timestamp(self) -> int | None:
        """Before which a delayed message was not to be delivered, milliseconds since 1970."""

    @property
    def priority(self) -> int | None: ...
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

        A refusal is logged, and raised by the consumer's next `flush`. `Consumer.ack` waits for the broker instead.
        Nothing happens for a message that this client has acknowledged already.
        """

    def change_invisible_duration(self, duration: timedelta | float) -> Awaitable[None] | Any:
        """
        Let the lease end *duration* (float: seconds) from now; zero gives the message back at once.

        Returns None; of a consumer of `ferromq.aio` what is to be awaited. Raises `LeaseExpired` where the lease is no longer held.
        """

    def renew(self, receipt_handle: str) -> None:
        """Replace the receipt handle by the one the broker answered."""

    @property
    def is_settled(self) -> bool:
        """Whether this client has acknowledged the message or forwarded it to the dead letters, or is about to."""

    def settle(self) -> bool:
        """Set `is_settled`, and say whether it was not set before; the consumer calls it."""

    def unsettle(self) -> None:
        """Unset `is_settled`: the broker refused or did not answer; the consumer calls it."""

@final
class MessageIds:
    """The ids of one batch, made when looked at."""

    @staticmethod
    def reserve(process: bytes, seconds: int, count: int) -> MessageIds:
        """Take *count* ids nobody else in this process gets; *process*: 8 bytes, *seconds*: since 2021."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> str: ...

_Column: TypeAlias = tuple[int, bytes | None, bytes]
_Texts: TypeAlias = tuple[_Column, bytes]

@final
class Rows:
    """
    Rows of Arrow columns, checked, that become send requests.

    A column is (which value is the first row's, validity bits or None, values): eight bytes a value, numbers or offsets;
    texts are such a column and the buffer its offsets point into. *columns* may hold `topic`, `key`, `tag`,
    `message_group` (texts), `keys` (offsets, texts), `properties` (offsets, names, values), `delivery_timestamp` and
    `priority` (numbers), `delay` (numbers, how many of their units are a millisecond). *first* is the number of the first
    row in its partition, *topic* for rows that name none, *numbered* what comes before the row in FERROMQ_SEQUENCE.
    Raises `ValueError` naming row and column.
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
        """Each topic, and the first row that goes there."""

    def lanes(self, max_rows: int, max_bytes: int) -> list[Part]:
        """Cut all rows into requests, each of one topic and message group or none; delayed rows are alone."""

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
        Cut the rows of one of the topics into requests, in their order, each to one queue; what a broker places, to that broker.

        *queues* are the queues of each *block* of rows, *in_order* those that message groups choose among, *brokers* the
        broker of each queue, all by number. Raises `ValueError` where one is missing.
        """

    def encode(
        self, part: Part, ids: MessageIds, queue_id: int, born_timestamp: int, born_host: str, max_body: int
    ) -> bytes:
        """A SendMessageRequest. Raises `MessageTooLarge` naming the row."""

@final
class Part:
    """Rows of one request."""

    @property
    def topic(self) -> str: ...
    @property
    def group(self) -> str | None:
        """The message group of its first row."""

    @property
    def queue(self) -> int:
        """The number of its queue, where it was placed."""

    @property
    def numbers(self) -> list[int]:
        """The numbers of its rows in the partition, rising."""

    def __len__(self) -> int: ...

def batch_end(messages: list[Message | bytes], start: int, max_count: int, max_bytes: int) -> int:
    """Where the batch that begins at *start* ends: at *max_count* messages or about *max_bytes*; at least one."""

def has_lanes(messages: list[Message | bytes]) -> bool:
    """Say whether any of the messages has a `lane`. Raises `TypeError` for what is no message."""

def queue_of_group(group: str, queues: int) -> int:
    """Which of *queues* writable queues, in the route's order, a message group goes to: RocketMQ's clients' choice."""

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
    A SendMessageRequest; *transaction*: of half messages, milliseconds until the first check-back, 0: the broker's.

    Raises `MessageTooLarge`, and `TypeError` or `ValueError` naming the message.
    """

def decode_sent(
    answer: bytes,
) -> tuple[int, str, list[int], list[tuple[int, int, str]], list[tuple[int, str, str]], int | None]:
    """
    Of a SendMessageResponse: code, text, queue offsets.

    Then index, code and text of each message that failed, and index, transaction id and recall handle of each that has
    one of them; last the queue of the first message, where the broker says that it chose another one.
    """

def encode_acks(group: str, topic: str, messages: Sequence[MessageView]) -> bytes:
    """An AckMessageRequest."""

def decode_acked(answer: bytes) -> tuple[int, str, list[tuple[str, int, str]]]:
    """Of an AckMessageResponse: code, text; message id, code and text of each entry that failed."""

def decode_received(
    packets: list[bytes], packed: bool, lease: LeaseKeeper, endpoint: str
) -> tuple[tuple[int, str] | None, list[MessageView], int | None]:
    """
    Of a ReceiveMessage or PullMessage stream: its status (code, text), where it had one, and its messages.

    Last, of a pull's, where the next one begins.

    *packed*: each packet is a row of length-prefixed responses, else one. Raises `ValueError` for other bytes.
    """
