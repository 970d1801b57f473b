"""
Metrics in Prometheus' text format: what servers of both kinds tell, under RocketMQ's names where it has them.

Names, types and labels of RocketMQ are those that its broker's exporter prints; `tests/fixtures/metrics` has them.
It does no I/O: the caller passes what was counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ferromq._proto import messages as pb
from ferromq.protocol.codes import RequestCode, ResponseCode

OTHER: Final = "(other)"
"""The topic and group of everything beyond the limit; no name has brackets."""
Labels = tuple[str, ...]
"""The values of labels, in the order of their names."""
Latency = tuple[str, str, int, bool, str, Sequence[int], float]
"""A row of `Server.latencies`."""

# gRPC's own codes, which a call ends with that has no status of RocketMQ.
_GRPC_CODES = (
    *("ok", "cancelled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists"),
    *("permission_denied", "resource_exhausted", "failed_precondition", "aborted", "out_of_range", "unimplemented"),
    *("internal", "unavailable", "data_loss", "unauthenticated"),
)


class Described(NamedTuple):
    """A metric: its name, type and description."""

    name: str
    kind: str
    """`gauge` or `counter`."""
    text: str


SERVER_METRICS: Final[Mapping[str, Described]] = {
    "connections": Described("ferromq_connections", "gauge", "Open connections of both protocols"),
    "connection_limit": Described("ferromq_connection_limit", "gauge", "Most open connections"),
    "refused_connections": Described(
        "ferromq_refused_connections_total", "counter", "Connections refused because too many were open"
    ),
    "malformed": Described("ferromq_malformed_connections_total", "counter", "Connections closed for a bad frame"),
    "remoting_requests": Described("ferromq_framed_requests_total", "counter", "Remoting requests and framed calls"),
    "routes": Described("ferromq_route_lookups_total", "counter", "Routes answered without the control plane"),
    "sent": Described("ferromq_sent_messages_total", "counter", "Messages stored for producers"),
    "send_requests": Described("ferromq_send_requests_total", "counter", "Requests that stored messages"),
    "received": Described("ferromq_received_messages_total", "counter", "Messages handed out under a lease"),
    "pulled": Described("ferromq_pulled_messages_total", "counter", "Messages read from an offset the client keeps"),
    "acked": Described("ferromq_acknowledged_messages_total", "counter", "Messages acknowledged"),
    "stale_receipts": Described("ferromq_stale_receipts_total", "counter", "Receipt handles refused as stale"),
    "given_back": Described("ferromq_given_back_messages_total", "counter", "Messages whose receiver was gone"),
    "dead": Described("ferromq_dead_letters_total", "counter", "Messages stored as dead letters"),
    "invisible_changed": Described("ferromq_lease_changes_total", "counter", "Leases whose length was changed"),
    "renewed": Described("ferromq_lease_renewals_total", "counter", "Renewals of leases by the broker"),
    "parked": Described("ferromq_waiting_polls", "gauge", "Polls that wait for messages"),
    "cold_calls": Described("ferromq_control_plane_calls_total", "counter", "Requests handed to the control plane"),
    "demoted": Described("ferromq_unknown_names_total", "counter", "Unknown names handed to the control plane"),
    "telemetry_streams": Described("ferromq_telemetry_streams", "gauge", "Open telemetry streams of gRPC clients"),
    "over_user_limit": Described(
        "ferromq_over_user_limit_total", "counter", "Sends and reads refused because a user's limit was used up"
    ),
    "over_topic_limit": Described(
        "ferromq_over_topic_limit_total", "counter", "Sends and reads refused because a topic's limit was used up"
    ),
    "over_user_connections": Described(
        "ferromq_over_user_connections_total", "counter", "Requests refused because their user had too many connections"
    ),
    "over_user_topic_limit": Described(
        "ferromq_over_user_topic_limit_total",
        "counter",
        "Sends and reads refused because the limit of a user in a topic was used up",
    ),
    "dropped_spans": Described(
        "ferromq_dropped_spans_total", "counter", "Spans of requests dropped because too many waited for their push"
    ),
    "memory_held": Described("ferromq_network_memory_bytes", "gauge", "Memory of requests and unread answers"),
}
"""The counters of a server, by their names in `Server.stats`."""


class Families:
    """Makes metrics whose samples all have the same first labels, *base*."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self._names, self._values = tuple(base), tuple(base.values())

    def gauge(
        self, name: str, text: str, rows: Iterable[tuple[Labels, float]], labels: Sequence[str] = ()
    ) -> GaugeMetricFamily:
        """Return a gauge; *rows* are the values of *labels*, and the value."""
        family = GaugeMetricFamily(name, text, labels=[*self._names, *labels])
        for values, value in rows:
            family.add_metric([*self._values, *values], value)
        return family

    def counter(
        self, name: str, text: str, rows: Iterable[tuple[Labels, float]], labels: Sequence[str] = ()
    ) -> CounterMetricFamily:
        """Return a counter, whose *name* ends in `_total`; *rows* as of a gauge."""
        family = CounterMetricFamily(name, text, labels=[*self._names, *labels])
        for values, value in rows:
            family.add_metric([*self._values, *values], value)
        return family

    def histogram(
        self,
        name: str,
        text: str,
        rows: Iterable[tuple[Labels, Sequence[int], float]],
        labels: Sequence[str],
        bounds: Sequence[int],
    ) -> HistogramMetricFamily:
        """Return a histogram; *rows* are the values of *labels*, the counts of the buckets, and the sum."""
        family = HistogramMetricFamily(name, text, labels=[*self._names, *labels])
        limits = [*(str(float(bound)) for bound in bounds), "+Inf"]
        for values, counts, total in rows:
            cumulative, buckets = 0, list[tuple[str, float]]()
            for limit, count in zip(limits, counts, strict=True):
                cumulative += count
                buckets.append((limit, cumulative))
            family.add_metric([*self._values, *values], buckets, total)
        return family

    def server(self, counters: Mapping[str, int]) -> Iterable[Metric]:
        """Return the counters of a server."""
        for name, value in counters.items():
            described = SERVER_METRICS[name]
            make = self.gauge if described.kind == "gauge" else self.counter
            yield make(described.name, described.text, [((), value)])

    def latencies(self, rows: Iterable[Latency], bounds: Sequence[int]) -> Iterable[Metric]:
        """Return how long requests took, and how many sends were refused."""
        merged: dict[Labels, tuple[list[int], float]] = {}
        for protocol, request, code, waited, result, counts, total in rows:
            names = request_name(protocol, request), response_name(protocol, code)
            key = (protocol, *names, str(waited).lower(), result)
            before, summed = merged.get(key, ([0] * len(counts), 0.0))
            merged[key] = [old + new for old, new in zip(before, counts, strict=True)], summed + total
        yield self.histogram(
            "rocketmq_rpc_latency_milliseconds",
            "Time of requests, from their arrival to the end of their response",
            ((key, counts, total) for key, (counts, total) in merged.items()),
            ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
            bounds,
        )
        refused: dict[Labels, int] = {}
        for (protocol, request, response, _, _), (counts, _) in merged.items():
            if request in _SENDS and response not in _ACCEPTED:
                refused[protocol, response] = refused.get((protocol, response), 0) + sum(counts)
        yield self.counter(
            "ferromq_refused_sends_total",
            "Requests to send that were refused, or not durable in time",
            refused.items(),
            ("protocol_type", "reason"),
        )


_SENDS = {"send_message", "send_message_v2", "send_batch_message", "SendMessage"}
_ACCEPTED = {"success", "ok"}


def request_name(protocol: str, request: str) -> str:
    """Return the name of a request: RocketMQ's for a remoting code, in lower case; the method for gRPC."""
    if protocol != "remoting" or not request.isdecimal():
        return request
    try:
        return RequestCode(int(request)).name.lower()
    except ValueError:
        return request


def response_name(protocol: str, code: int) -> str:
    """Return the name of a response code, in lower case, as RocketMQ has it."""
    if protocol != "remoting" and code < len(_GRPC_CODES):
        return _GRPC_CODES[code]
    try:
        return (ResponseCode(code).name if protocol == "remoting" else pb.Code.Name(code)).lower()
    except ValueError:
        return str(code)


class Names:
    """
    Gives a limited number of names a place of their own in metrics; further ones are `OTHER`.

    A name keeps its place until it is forgotten, so that its counters do not jump. Not thread-safe.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def keep(self, present: Iterable[str]) -> None:
        """Forget all names but the *present* ones, and give the free places to others of them."""
        wanted = set(present)
        self._known &= wanted
        free = self._limit - len(self._known)
        if free > 0:
            self._known.update(sorted(wanted - self._known)[:free])

    def __contains__(self, name: str) -> bool:
        return name in self._known


class Totals:
    """
    Sums what was counted by name since the start, by the places of *names*; the rest goes to `OTHER`.

    No sum goes down: what was summed as `OTHER` stays there when its name is forgotten or gets a place. The sum of a
    name ends with its place. Not thread-safe.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._seen: dict[str, Sequence[int]] = {}
        self._sums: dict[str, list[int]] = {}

    def add(self, counted: Mapping[str, Sequence[int]]) -> Mapping[str, Sequence[int]]:
        """Add what was counted since the last call, and return the sums; *counted* are totals since the start."""
        for name, counts in counted.items():
            before = self._seen.get(name)
            if before is None or any(new < old for new, old in zip(counts, before, strict=True)):
                before = [0] * len(counts)  # it is new, or was forgotten and came again
            sums = self._sums.setdefault(name if name in self._names else OTHER, [0] * len(counts))
            for place, (new, old) in enumerate(zip(counts, before, strict=True)):
                sums[place] += new - old
        self._seen = dict(counted)
        self._sums = {name: sums for name, sums in self._sums.items() if name == OTHER or name in counted}
        return self._sums
