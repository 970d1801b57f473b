"""
A server's metrics in the messages of `opentelemetry/proto/metrics/v1`: what `/metrics` prints.

Names are those that RocketMQ pushes: Prometheus' exporter appends units, OTLP has them apart. Each push has all totals,
so none is lost. A series that is new, or whose total fell because it was forgotten meanwhile, began at the push before:
OTLP's start time tells collectors so.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prometheus_client import Metric

from ferromq.monitoring.otlp import add_label, describe, messages

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

MAX_POINTS: Final = 4_000
"""Points of one request; collectors take requests of 4 MiB. RocketMQ's default."""
_CUMULATIVE: Final = 2  # AggregationTemporality
# RocketMQ's name of this one has no unit; those that end in `_behind_bytes` have it twice.
_WITHOUT_UNIT: Final = {"rocketmq_storage_size_bytes": "rocketmq_storage_size"}


_Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels."""


class _Since(NamedTuple):
    """Since when a series counts, and its total at the last push."""

    start_ns: int
    total: float


class PushedMetrics:
    """Makes requests of the metrics that *collect* returns; counters began at *start_ms*."""

    what = "metrics"
    rejected = "rejected_data_points"

    def __init__(self, collect: Callable[[], Iterable[Metric]], start_ms: int) -> None:
        self._pb = messages("metrics")
        self.stub = self._pb.services.MetricsServiceStub
        self._collect = collect
        self._pushed_ns = start_ms * 1_000_000
        """The last push; before it, the start of the server."""
        self._began: dict[_Series, _Since] = {}
        """The series of the last push."""

    def requests(self, now_ms: int) -> Iterator[Any]:
        """Yield requests with all metrics, each with `MAX_POINTS` at most."""
        request, room, now_ns = self._request(), MAX_POINTS, now_ms * 1_000_000
        began: dict[_Series, _Since] = {}
        for family in self._collect():
            points = list(self._points(family, now_ns, began))
            while points:
                taken, points = points[:room], points[room:]
                self._add(request, family, taken)
                room -= len(taken)
                if room == 0:
                    yield request
                    request, room = self._request(), MAX_POINTS
        # A push that fails before its end changes nothing here.
        self._began, self._pushed_ns = began, now_ns
        if room < MAX_POINTS:
            yield request

    def _start(self, sample: "Sample", total: float, began: "dict[_Series, _Since]") -> int:
        """Return since when a series counts, in nanoseconds since 1970, and note it in *began*."""
        series = sample.name, tuple(sample.labels.items())
        known = self._began.get(series)
        start = self._pushed_ns if known is None or total < known.total else known.start_ns
        began[series] = _Since(start, total)
        return start

    def _request(self) -> Any:
        request = self._pb.requests.ExportMetricsServiceRequest()
        describe(request.resource_metrics.add())
        return request

    def _add(self, request: Any, family: Metric, points: Sequence[Any]) -> None:
        name, unit = _named(family)
        metric = request.resource_metrics[0].scope_metrics[0].metrics.add()
        metric.name, metric.description, metric.unit = name, family.documentation, unit
        data = {"counter": metric.sum, "histogram": metric.histogram}.get(family.type, metric.gauge)
        if family.type in {"counter", "histogram"}:
            data.aggregation_temporality = _CUMULATIVE
        if family.type == "counter":
            data.is_monotonic = True
        data.data_points.extend(points)

    def _points(self, family: Metric, now_ns: int, began: "dict[_Series, _Since]") -> Iterator[Any]:
        if family.type == "histogram":
            yield from self._histograms(family, now_ns, began)
            return
        for sample in family.samples:
            point = self._pb.data.NumberDataPoint(time_unix_nano=now_ns, as_double=sample.value)
            if family.type == "counter":
                point.start_time_unix_nano = self._start(sample, sample.value, began)
            yield _labelled(point, sample)

    def _histograms(self, family: Metric, now_ns: int, began: "dict[_Series, _Since]") -> Iterator[Any]:
        """Yield a point for each run of buckets; count and sum follow them, as `HistogramMetricFamily` makes them."""
        point, counted = None, 0
        for sample in family.samples:
            kind = sample.name.removeprefix(family.name)
            if kind == "_bucket":
                if point is None:
                    point, counted = self._pb.data.HistogramDataPoint(time_unix_nano=now_ns), 0
                point.bucket_counts.append(int(sample.value) - counted)
                counted = int(sample.value)
                if sample.labels["le"] != "+Inf":
                    point.explicit_bounds.append(float(sample.labels["le"]))
            elif kind == "_sum" and point is not None:
                point.count, point.sum = counted, sample.value
                point.start_time_unix_nano = self._start(sample, counted, began)
                yield _labelled(point, sample)
                point = None


def _named(family: Metric) -> tuple[str, str]:
    """Return name and unit, as RocketMQ pushes them."""
    if family.type == "counter":
        return f"{family.name}_total", ""
    name = family.name.removesuffix("_milliseconds")
    if name != family.name:
        return name, "milliseconds"
    return _WITHOUT_UNIT.get(name, name), "bytes" if name.endswith("_bytes") else ""


def _labelled(point: Any, sample: "Sample") -> Any:
    for name, value in sample.labels.items():
        add_label(point, name, value)
    return point
