"""
The metrics of a broker, made when they are read: RocketMQ's names where it has them, `ferromq_` before others.

It reads what other parts count and changes nothing. `docs/metrics.md` lists all names.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import Metric

from ferromq._ferromq import Server, Store
from ferromq.broker.clients.table import ClientTable
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.topics import TopicTable
from ferromq.config.broker import BrokerConfig
from ferromq.monitoring.metrics import OTHER, Families, Labels, Names, Totals, response_name
from ferromq.protocol import naming
from ferromq.protocol.client_version import version_name

if TYPE_CHECKING:
    from ferromq._ferromq import StoreStats

_STORAGE = ("storage_type", "storage_medium")
_DISK: Final[Labels] = ("local", "disk")
_CONSUME_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
_OF_TOPIC = ("topic", "message_type", "is_system")
_OF_GROUP = ("consumer_group", "topic", "is_retry", "is_system")
# The counters of the store that are metrics: name, and description.
_OF_STORE = {
    "appended": ("ferromq_appended_messages_total", "Messages written to the log, internal ones included"),
    "flushes": ("ferromq_flushes_total", "Flushes of the log; under the policy `group` many messages share one"),
    "duplicates": ("ferromq_duplicate_messages_total", "Numbered messages that were stored already"),
    "gone_leases": ("ferromq_lost_leases_total", "Leases whose messages the log no longer has"),
    "delayed_delivered": ("ferromq_delayed_deliveries_total", "Messages with a delay level delivered to their queue"),
    "delayed_undeliverable": ("ferromq_undeliverable_delayed_total", "Messages with a delay level that were given up"),
    "timed_undeliverable": ("ferromq_undeliverable_timed_total", "Timed messages that were given up"),
    "timed_lost": ("ferromq_lost_timed_total", "Timed messages whose record was gone before their delivery"),
}
_FAILED_PUTS = "failed_puts_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the metrics are read from."""

    config: Callable[[], BrokerConfig]
    server: Server
    store: Store
    topics: TopicTable
    groups: GroupTable
    clients: ClientTable
    transactions: Callable[[], Mapping[str, str]]
    """Returns the counts of transactions that `brokerStatus` prints."""
    ended: Callable[[], Mapping[tuple[str, str], int]]
    """Returns how many transactions ended, by decision and topic."""
    now_ms: Callable[[], int]


@dataclass(slots=True)
class _Lag:
    """
    The progress of a group in a topic: `messages` are those in flight and those ready, as RocketMQ counts them.

    Times are store times in milliseconds, None without a message.
    """

    messages: int = 0
    in_flight: int = 0
    ready: int = 0
    oldest: int | None = None
    oldest_ready: int | None = None

    def add(self, other: "_Lag") -> None:
        """Add the progress in other queues."""
        self.messages += other.messages
        self.in_flight += other.in_flight
        self.ready += other.ready
        self.oldest = _earlier(self.oldest, other.oldest)
        self.oldest_ready = _earlier(self.oldest_ready, other.oldest_ready)


class BrokerMetrics:
    """Makes the metrics of a broker; thread-safe."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources
        config = sources.config()
        self._families = Families({"cluster": config.cluster, "node_type": "broker", "node_id": config.name})
        self._lock = threading.Lock()
        limit = config.monitoring.metrics_limit
        self._topics, self._pairs = Names(limit), Names(limit)
        self._put, self._sized = Totals(self._topics), Totals(self._topics)
        self._got, self._dead = Totals(self._pairs), Totals(self._pairs)
        self._refused: dict[str, Totals] = {}
        """By reason."""
        self._ended = {decision: Totals(self._topics) for decision in ("COMMIT", "ROLLBACK")}

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        with self._lock:
            stats, committed = self._from.store.stats(), self._from.store.committed_offsets()
            yield from self._of_tables()
            yield from self._of_traffic(committed)
            yield from self._of_lag(committed)
            yield from self._of_clients()
            yield from self._of_transactions()
            yield from self._of_store(stats)
            yield from self._of_timers(stats)
            yield from self._families.server(self._from.server.stats())
            yield from self._families.latencies(self._from.server.latencies(), self._from.server.LATENCY_BOUNDS)
            memory = self._from.config().connections.network_memory
            yield self._families.gauge(
                "ferromq_network_memory_limit_bytes", "Most memory of requests and unread answers", [((), memory)]
            )

    def _of_tables(self) -> Iterator[Metric]:
        gauge, groups = self._families.gauge, self._from.groups.content.entries
        permission = self._from.config().membership.permission
        yield gauge("rocketmq_broker_permission", "Permission of the broker: 4 read, 2 write", [((), permission)])
        yield gauge("rocketmq_topic_number", "Topics", [((), len(self._from.topics.content.entries))])
        yield gauge("rocketmq_consumer_group_number", "Consumer groups", [((), len(groups))])

    def _of_traffic(self, committed: Mapping[str, object]) -> Iterator[Metric]:
        traffic = self._from.server.traffic()
        put, got, dead = traffic["put"], traffic["get"], traffic["dead"]
        refused = _by_reason(traffic["refused"])
        self._topics.keep({*put, *(topic for counts in refused.values() for topic in counts)})
        self._pairs.keep({*got, *dead, *committed})
        counter = self._families.counter
        stored = {self._topic(topic): counts for topic, counts in self._put.add(put).items()}
        text = "stored for producers, delayed and committed ones included"
        yield counter("rocketmq_messages_in_total", f"Messages {text}", _first(stored), _OF_TOPIC)
        yield counter("rocketmq_throughput_in_total", f"Bytes of messages {text}", _second(stored), _OF_TOPIC)
        yield self._sizes(stored)
        for reason in refused.keys() - self._refused.keys():
            self._refused[reason] = Totals(self._topics)
        yield counter(
            "ferromq_refused_by_topic_total",
            "Sends to a topic that were refused, and reads over a limit",
            (
                ((topic, reason), counts[0])
                for reason, totals in sorted(self._refused.items())
                for topic, counts in totals.add(refused.get(reason, {})).items()
            ),
            ("topic", "reason"),
        )
        read = {self._pair(key): counts for key, counts in self._got.add(got).items()}
        yield counter("rocketmq_messages_out_total", "Messages read by consumers", _first(read), _OF_GROUP)
        yield counter("rocketmq_throughput_out_total", "Bytes of messages read by consumers", _second(read), _OF_GROUP)
        letters = {self._pair(key): counts for key, counts in self._dead.add(dead).items()}
        yield counter(
            "rocketmq_send_to_dlq_messages_total",
            "Messages of a topic that became dead letters of a group",
            (((group, topic, system), counts[0]) for (group, topic, _, system), counts in letters.items()),
            ("consumer_group", "topic", "is_system"),
        )

    def _sizes(self, stored: Mapping[Labels, Sequence[int]]) -> Metric:
        sizes = self._sized.add(self._from.server.message_sizes())
        by_topic = {self._topic(topic): counts for topic, counts in sizes.items()}
        rows = ((key, counts, float(stored.get(key, (0, 0))[1])) for key, counts in by_topic.items())
        text = "Sizes of stored records in bytes; the messages of one send count with their mean"
        return self._families.histogram("rocketmq_message_size", text, rows, _OF_TOPIC, self._from.server.SIZE_BOUNDS)

    def _of_lag(self, committed: Mapping[str, Mapping[int, int]]) -> Iterator[Metric]:
        lags: dict[Labels, _Lag] = {}
        for key, offsets in committed.items():
            topic, _, group = key.rpartition("@")
            lags.setdefault(self._pair(key), _Lag()).add(self._lag(group, topic, offsets))
        now = self._from.now_ms()

        def gauge(name: str, text: str, value: Callable[[_Lag], float]) -> Metric:
            return self._families.gauge(name, text, ((key, value(lag)) for key, lag in lags.items()), _OF_GROUP)

        yield gauge("rocketmq_consumer_lag_messages", "Messages in flight and ready", lambda lag: lag.messages)
        yield gauge(
            "rocketmq_consumer_lag_latency_milliseconds",
            "Age of the message at the committed offset",
            lambda lag: _age(now, lag.oldest),
        )
        yield gauge(
            "rocketmq_consumer_inflight_messages",
            "Messages received and not yet acknowledged",
            lambda lag: lag.in_flight,
        )
        yield gauge(
            "rocketmq_consumer_queueing_latency_milliseconds",
            "Age of the first message that was not received yet",
            lambda lag: _age(now, lag.oldest_ready),
        )
        yield gauge("rocketmq_consumer_ready_messages", "Messages that were not received yet", lambda lag: lag.ready)

    def _lag(self, group: str, topic: str, offsets: Mapping[int, int]) -> _Lag:
        store, lag = self._from.store, _Lag()
        for queue_id, committed in offsets.items():
            end = store.max_offset(topic, queue_id)
            first = max(committed, store.min_offset(topic, queue_id))  # retention may have deleted what comes before
            if first >= end:
                continue
            following, in_flight = store.next_and_in_flight(group, topic, queue_id)
            ready = max(0, end - following)
            oldest = store.stored_time(topic, queue_id, first)
            oldest_ready = oldest if following == first else store.stored_time(topic, queue_id, following)
            lag.add(_Lag(ready + in_flight, in_flight, ready, oldest, oldest_ready))
        return lag

    def _of_clients(self) -> Iterator[Metric]:
        producers: dict[Labels, int] = {}
        for members in self._from.clients.all_producers().values():
            for client, _ in members:
                key = _client(client.language, client.version, is_grpc=client.is_grpc)
                producers[key] = producers.get(key, 0) + 1
        yield self._families.gauge(
            "rocketmq_producer_connections",
            "Members of producer groups",
            producers.items(),
            ("language", "version", "protocol_type"),
        )
        consumers: dict[Labels, int] = {}
        found = self._from.clients.all_consumers()
        named = set(sorted({group for group, _, _ in found})[: self._from.config().monitoring.metrics_limit])
        for group, consume_type, client in found:
            shown = group if group in named else OTHER
            language, version, protocol = _client(client.language, client.version, is_grpc=client.is_grpc)
            mode = _CONSUME_MODES.get(consume_type, "push")
            of_group = shown, language, version, mode, protocol, _flag(is_true=naming.is_system_group(group))
            consumers[of_group] = consumers.get(of_group, 0) + 1
        yield self._families.gauge(
            "rocketmq_consumer_connections",
            "Members of consumer groups",
            consumers.items(),
            ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
        )

    def _of_transactions(self) -> Iterator[Metric]:
        counts, ended = self._from.transactions(), self._from.ended()
        gauge, counter = self._families.gauge, self._families.counter
        for decision, name in (
            ("COMMIT", "rocketmq_commit_messages_total"),
            ("ROLLBACK", "rocketmq_rollback_messages_total"),
        ):
            counted = {topic: (count,) for (how, topic), count in ended.items() if how == decision}
            sums: dict[Labels, Sequence[int]] = {
                (topic,): total for topic, total in self._ended[decision].add(counted).items()
            }
            yield counter(name, f"Transactions ended by a {decision.lower()}", _first(sums), ("topic",))
        yield gauge("rocketmq_half_messages", "Open transactions", [((), int(counts["transactionHalfOpen"]))])
        for name, text, key in (
            ("ferromq_checked_transactions_total", "Check-backs sent to producers", "transactionChecked"),
            ("ferromq_discarded_transactions_total", "Transactions given up", "transactionDiscarded"),
            ("ferromq_lost_transactions_total", "Half messages deleted before they ended", "transactionHalfLost"),
        ):
            yield counter(name, text, [((), int(counts[key]))])

    def _of_store(self, stats: "StoreStats") -> Iterator[Metric]:
        gauge, store = self._families.gauge, self._from.store
        disk = shutil.disk_usage(Path(self._from.config().store))
        yield gauge("ferromq_disk_free_bytes", "Free bytes of the disk with the store", [((), disk.free)])
        end = stats["max_physical_offset"]
        behind = max(0, end - stats["flushed_offset"]), max(0, end - stats["dispatched_offset"])
        for name, text, value in (
            ("rocketmq_storage_size_bytes", "Used bytes of the disk with the store", disk.used),
            ("rocketmq_storage_flush_behind_bytes", "Bytes of the log that are not flushed", behind[0]),
            ("rocketmq_storage_dispatch_behind_bytes", "Bytes of the log that are not in queues yet", behind[1]),
        ):
            yield gauge(name, text, [(_DISK, value)], _STORAGE)
        begin = store.nearest_message(stats["min_physical_offset"])
        first = None if begin is None else store.message_at(begin)
        yield gauge(
            "rocketmq_storage_message_reserve_time_milliseconds",
            "Age of the first message of the log",
            [] if first is None else [(_DISK, max(0, self._from.now_ms() - first.store_timestamp))],
            _STORAGE,
        )
        yield gauge("ferromq_log_bytes", "Bytes of the log", [((), end - stats["min_physical_offset"])])
        yield gauge("ferromq_set_aside_queues", "Queues that cannot be written", [((), stats["set_aside_queues"])])
        yield gauge(
            "ferromq_dispatch_stalled_seconds",
            "Time for which dispatch has been stalled; from 10 on sends are refused",
            [((), stats["dispatch_stalled_ms"] / 1000)],
        )
        values: Mapping[str, object] = {**stats}
        for key, (name, text) in _OF_STORE.items():
            yield self._families.counter(name, text, [((), float(str(values[key])))])
        flushes, total_ms = store.flush_times()
        yield self._families.histogram(
            "ferromq_flush_latency_milliseconds",
            "Time of flushes of the log",
            [((), flushes, total_ms)],
            (),
            store.FLUSH_BOUNDS,
        )
        yield self._families.counter(
            "ferromq_failed_puts_total",
            "Appends that the store refused",
            (
                ((key.removeprefix(_FAILED_PUTS),), float(str(value)))
                for key, value in values.items()
                if key.startswith(_FAILED_PUTS)
            ),
            ("reason",),
        )

    def _of_timers(self, stats: "StoreStats") -> Iterator[Metric]:
        in_wheel, behind, read_ms = self._from.store.timed_waiting()
        late = max(0, self._from.now_ms() - read_ms) if in_wheel and read_ms else 0
        gauge, counter = self._families.gauge, self._families.counter
        left = stats["timed_delivered"] + stats["timed_rolled"] + stats["timed_recalled"]
        yield gauge(
            "rocketmq_timer_enqueue_lag", "Timed messages that are not in the wheel yet", [(_DISK, behind)], _STORAGE
        )
        yield gauge(
            "rocketmq_timer_dequeue_latency_milliseconds",
            "How late the wheel delivers",
            [(_DISK, late)],
            _STORAGE,
        )
        counts = json.loads(self._from.store.timer_metrics()).get("timingCount", {})
        waiting: dict[str, int] = {}
        for topic, entry in counts.items():
            shown = topic if topic in self._topics else OTHER
            waiting[shown] = waiting.get(shown, 0) + _count(entry)
        yield gauge(
            "rocketmq_timing_messages",
            "Timed messages that wait",
            (((*_DISK, topic), count) for topic, count in waiting.items()),
            (*_STORAGE, "topic"),
        )
        entered = [(_DISK, stats["timed_entered"])]
        yield counter("rocketmq_timer_enqueue_total", "Timed messages that entered the wheel", entered, _STORAGE)
        yield counter(
            "rocketmq_timer_dequeue_total",
            "Timed messages that left the wheel",
            [(_DISK, left)],
            _STORAGE,
        )

    def _topic(self, topic: str) -> Labels:
        if topic not in self._topics:
            return OTHER, "mixed", "false"
        known = self._from.topics.get(topic)
        kind = "unspecified" if known is None else known.message_type.lower()
        return topic, kind, _flag(is_true=naming.is_system_topic(topic))

    def _pair(self, key: str) -> Labels:
        if key not in self._pairs:
            return OTHER, OTHER, "false", "false"
        topic, _, group = key.rpartition("@")
        is_retry = topic.startswith((naming.RETRY_PREFIX, naming.DLQ_PREFIX))
        is_system = naming.is_system_topic(topic) or naming.is_system_group(group)
        return group, topic, _flag(is_true=is_retry), _flag(is_true=is_system)


def _by_reason(refused: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, tuple[int]]]:
    """Return the counts of refusals by the name of their reason, then by topic."""
    found: dict[str, dict[str, tuple[int]]] = {}
    for key, (count, _) in refused.items():
        topic, _, reason = key.rpartition("@")
        protocol, _, code = reason.partition(":")
        counts = found.setdefault(response_name(protocol, int(code)) if code else reason, {})
        # Codes of both protocols may have one name.
        (before,) = counts.get(topic, (0,))
        counts[topic] = (before + count,)
    return found


def _first(sums: Mapping[Labels, Sequence[int]]) -> Iterable[tuple[Labels, float]]:
    return ((key, counts[0]) for key, counts in sums.items())


def _second(sums: Mapping[Labels, Sequence[int]]) -> Iterable[tuple[Labels, float]]:
    return ((key, counts[1]) for key, counts in sums.items())


def _client(language: str, version: int, *, is_grpc: bool) -> tuple[str, str, str]:
    return language.lower(), version_name(version), "grpc" if is_grpc else "remoting"


def _count(entry: object) -> int:
    """Return the count of a topic in `config/timermetrics`."""
    return int(entry.get("count", 0)) if isinstance(entry, dict) else 0


def _earlier(one: int | None, other: int | None) -> int | None:
    known: Sequence[int] = [time for time in (one, other) if time is not None]
    return min(known, default=None)


def _age(now: int, time: int | None) -> int:
    return 0 if time is None else max(0, now - time)


def _flag(*, is_true: bool) -> str:
    return str(is_true).lower()
