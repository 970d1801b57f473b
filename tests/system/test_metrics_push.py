"""Metrics that servers push by OTLP: to a collector that answers, is down, hangs, refuses and comes back."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as pb
from otlp_collector import Collector, labels
from ports import kept_port
from prometheus_client.core import CounterMetricFamily
from tls_files import FILES, TRUST

import ferromq
from ferromq.config.namesrv import NameServerConfig
from ferromq.monitoring import otlp, pushed_metrics
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock

PATIENCE = 30
FREE = "127.0.0.1:0"


@contextlib.contextmanager
def pushing(port: int, clock: Clock, **options: Any) -> Iterator[ferromq.Embedded]:
    """Run a broker that pushes once in ten seconds of *clock*."""
    target = f"http://127.0.0.1:{port}"
    with ferromq.embedded(clock=clock, metrics_push=target, push_interval=10, **options) as mq:
        yield mq


def test_metrics_are_pushed_under_rocketmqs_names() -> None:
    """With their types, units and labels; no HTTP endpoint is needed."""
    clock = Clock.manual()
    with (
        contextlib.closing(Collector()) as collector,
        pushing(collector.port, clock, push_headers="Tenant:a") as mq,
        mq.producer() as producer,
    ):
        assert mq.broker.metrics_address is None
        producer.send("orders", b"tea")
        began = clock.now_ms()
        clock.advance(seconds=10)
        found = collector.metrics()
        assert collector.headers[0]["tenant"] == "a"
    stored = found["rocketmq_messages_in_total"]
    (point,) = [point for point in stored.sum.data_points if labels(point)["topic"] == "orders"]
    assert (point.as_double, point.time_unix_nano // 1_000_000) == (1, began + 10_000)
    node = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
    assert labels(point) == {"topic": "orders", "message_type": "normal", "is_system": "false", **node}
    assert stored.sum.is_monotonic
    assert stored.sum.aggregation_temporality == 2  # cumulative
    assert found["ferromq_ready"].gauge.data_points[0].as_double == 1
    assert found["rocketmq_storage_size"].unit == "bytes"
    latency = found["rocketmq_rpc_latency"]
    assert latency.unit == "milliseconds"
    (sends,) = [point for point in latency.histogram.data_points if labels(point)["request_code"] == "SendMessage"]
    assert sends.count == sum(sends.bucket_counts) == 1
    assert list(sends.explicit_bounds) == [1, 3, 5, 7, 10, 100, 1000, 2000, 3000]
    assert "le" not in labels(sends)


def test_a_name_server_pushes_its_metrics() -> None:
    """As a broker does; what came since the last push comes with the end, after which nothing more comes."""
    clock = Clock.manual()
    with contextlib.closing(Collector()) as collector:
        monitoring = {"metrics_push": f"http://127.0.0.1:{collector.port}", "push_interval": 10, "push_headers": "T:a"}
        config = NameServerConfig.load(flags={"listen": FREE, **monitoring})
        with contextlib.closing(NamesrvController(config, clock=clock)) as name_server:
            assert name_server.metrics_address is None
            with ferromq.embedded(namesrv=name_server.address):
                clock.advance(seconds=10)
                found = collector.metrics()
        assert collector.headers[0]["t"] == "a"
        last = collector.metrics()
        assert collector.received.empty()
    (point,) = found["ferromq_registered_brokers"].gauge.data_points
    assert (point.as_double, labels(point)) == (1, {"node_type": "namesrv", "node_id": name_server.address})
    assert last["ferromq_registered_brokers"].gauge.data_points[0].as_double == 0


def test_a_name_server_that_cannot_push_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the missing package, or a wrong target; its address is free again."""
    with pytest.raises(ferromq.ConfigError, match="metrics_push is 'nowhere'"):
        NameServerConfig.load(flags={"metrics_push": "nowhere"})
    with kept_port() as listen:
        with monkeypatch.context() as patched:
            patched.setattr(otlp, "_PROTO", "opentelemetry.is_not_here")
            with pytest.raises(ModuleNotFoundError, match=r"pip install 'ferromq\[otel\]'"):
                NamesrvController(NameServerConfig.load(flags={"listen": listen, "metrics_push": "http://127.0.0.1:1"}))
        NamesrvController(NameServerConfig.load(flags={"listen": listen})).close()


def test_many_points_are_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which have all points, once each."""
    monkeypatch.setattr(pushed_metrics, "MAX_POINTS", 7)
    clock = Clock.manual()
    with (
        contextlib.closing(Collector()) as collector,
        pushing(collector.port, clock) as mq,
        mq.producer() as producer,
    ):
        for number in range(20):
            producer.send(f"topic-{number}", b"tea")
        clock.advance(seconds=10)
        topics, sizes = list[str](), list[int]()
        while not collector.received.empty():
            metrics = collector.metrics().values()
            points = [
                (metric.name, point)
                for metric in metrics
                for kind in ("sum", "gauge", "histogram")
                for point in getattr(metric, kind).data_points
            ]
            sizes.append(len(points))
            topics += [labels(point)["topic"] for name, point in points if name == "rocketmq_messages_in_total"]
    assert sorted(topics) == sorted(f"topic-{number}" for number in range(20))
    assert set(sizes[:-1]) == {7}


def test_a_collector_that_is_down_costs_a_line_and_gets_all_totals_later(caplog: pytest.LogCaptureFixture) -> None:
    """Down at the start, then up, gone and back at the same port; the broker works all the time."""
    clock = Clock.manual()
    with (
        caplog.at_level(logging.INFO, "ferromq.monitoring"),
        kept_port() as address,
        pushing(port := int(address.rpartition(":")[2]), clock) as mq,
        mq.producer() as producer,
    ):
        for number in range(2):
            producer.send("orders", b"tea")
            clock.advance(seconds=10)
            assert caplog.text.count("metrics not pushed") == 1, number
        for up in (1, 2):
            with contextlib.closing(Collector(port)) as collector:
                end = time.monotonic() + PATIENCE
                while collector.received.empty() and time.monotonic() < end:
                    clock.advance(seconds=10)  # gRPC connects again after a pause of its own
                (point,) = collector.metrics()["rocketmq_messages_in_total"].sum.data_points
                assert point.as_double == 2
                assert caplog.text.count("metrics are pushed again") == up
            clock.advance(seconds=10)
            assert caplog.text.count("metrics not pushed") == up + 1


def test_a_hung_collector_holds_up_neither_messages_nor_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """A push waits for it on its own thread, and ends with the broker."""
    go_on, began = threading.Event(), threading.Event()

    def hang(_: grpc.ServicerContext) -> pb.ExportMetricsServiceResponse:
        began.set()
        go_on.wait(PATIENCE)
        return pb.ExportMetricsServiceResponse()

    with contextlib.closing(Collector(answer=hang)) as collector, contextlib.ExitStack() as stack:
        stack.callback(go_on.set)
        target = f"http://127.0.0.1:{collector.port}"
        timing = {"push_interval": "1ms", "push_timeout": "1h"}
        with ferromq.embedded(metrics_push=target, **timing) as mq, mq.producer() as producer:  # type: ignore[arg-type]
            assert began.wait(PATIENCE)
            producer.send("orders", b"tea")
            end = time.monotonic()
        assert time.monotonic() - end < PATIENCE / 2
    assert "Traceback" not in caplog.text
    assert "metrics not pushed" not in caplog.text


def test_what_came_since_the_last_push_comes_with_the_end() -> None:
    """An orderly stop loses no totals."""
    clock = Clock.manual()
    with contextlib.closing(Collector()) as collector:
        with pushing(collector.port, clock) as mq, mq.producer() as producer:
            producer.send("orders", b"tea")
        (point,) = collector.metrics()["rocketmq_messages_in_total"].sum.data_points
        assert point.as_double == 1
        assert collector.received.empty()


def test_an_end_waits_for_a_hung_collector_no_longer_than_for_a_push() -> None:
    """Which takes the last push and does not answer."""
    go_on = threading.Event()

    def hang(_: grpc.ServicerContext) -> pb.ExportMetricsServiceResponse:
        go_on.wait(PATIENCE)
        return pb.ExportMetricsServiceResponse()

    with contextlib.closing(Collector(answer=hang)) as collector, contextlib.ExitStack() as stack:
        stack.callback(go_on.set)
        with pushing(collector.port, Clock.manual(), push_timeout=1):
            end = time.monotonic()
        assert time.monotonic() - end < PATIENCE / 2
        assert collector.received.qsize() == 1


def test_a_name_server_neither_waits_for_a_hung_collector_nor_ends_late() -> None:
    """Brokers register and look for routes meanwhile."""
    go_on, began = threading.Event(), threading.Event()

    def hang(_: grpc.ServicerContext) -> pb.ExportMetricsServiceResponse:
        began.set()
        go_on.wait(PATIENCE)
        return pb.ExportMetricsServiceResponse()

    with contextlib.closing(Collector(answer=hang)) as collector, contextlib.ExitStack() as stack:
        stack.callback(go_on.set)
        flags = {"listen": FREE, "metrics_push": f"http://127.0.0.1:{collector.port}"}
        timing = {"push_interval": "1ms", "push_timeout": "1h"}
        with contextlib.closing(NamesrvController(NameServerConfig.load(flags=flags | timing))) as name_server:
            assert began.wait(PATIENCE)
            with ferromq.embedded(namesrv=name_server.address) as mq, mq.producer() as producer:
                producer.send("orders", b"tea")
                assert name_server.routes.lookup("orders") is not None
            end = time.monotonic()
        assert time.monotonic() - end < PATIENCE / 2


def test_a_collector_may_ask_for_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variables are those of OpenTelemetry; a certificate that is renewed is shown after a push that failed."""
    shown = {name: tmp_path / name for name in ("CLIENT_CERTIFICATE", "CLIENT_KEY")}
    for name, path in shown.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", str(path))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(TRUST))
    key, certificate, trust = ((FILES / name).read_bytes() for name in ("first.key", "first.pem", "ca.pem"))
    credentials = grpc.ssl_server_credentials([(key, certificate)], trust, require_client_auth=True)
    clock = Clock.manual()
    with contextlib.closing(Collector(credentials=credentials)) as collector:

        def start() -> ferromq.Embedded:
            return ferromq.embedded(clock=clock, metrics_push=collector.target, push_interval=10)

        with pytest.raises(ferromq.ConfigError, match="OTEL_EXPORTER_OTLP_CLIENT_KEY cannot be read"):
            start()
        for path, name in zip(shown.values(), ("own.pem", "own.key"), strict=True):
            path.write_bytes((FILES / name).read_bytes())
        with start():
            clock.advance(seconds=10)
            assert collector.received.empty()
            shown["CLIENT_KEY"].unlink()
            clock.advance(seconds=10)
            for path, name in zip(shown.values(), ("client.pem", "client.key"), strict=True):
                path.write_bytes((FILES / name).read_bytes())
            clock.advance(seconds=10)
            assert "rocketmq_broker_permission" in collector.metrics()
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_CLIENT_KEY")
        with pytest.raises(ferromq.ConfigError, match="belong together"):
            start()


def test_a_part_that_is_refused_does_not_keep_back_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests behind it are sent, too."""
    monkeypatch.setattr(pushed_metrics, "MAX_POINTS", 7)

    def counted(refused: int) -> int:
        def refuse(_: grpc.ServicerContext) -> pb.ExportMetricsServiceResponse:
            partial = pb.ExportMetricsPartialSuccess(rejected_data_points=refused)
            return pb.ExportMetricsServiceResponse(partial_success=partial)

        clock = Clock.manual()
        with contextlib.closing(Collector(answer=refuse)) as collector, pushing(collector.port, clock):
            clock.advance(seconds=10)
            sent: int = collector.received.qsize()
            return sent

    assert counted(1) == counted(0) > 1


def test_a_total_that_begins_anew_has_a_start_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a collector takes a topic that was deleted and made again for one whose total fell."""

    def metric(**totals: int) -> CounterMetricFamily:
        family = CounterMetricFamily("stored", "Messages.", labels=["topic"])
        for topic, total in totals.items():
            family.add_metric([topic], total)
        return family

    shown: list[CounterMetricFamily] = [metric(old=5, deleted=5)]
    source = pushed_metrics.PushedMetrics(lambda: shown, 1_000)

    def starts(now_ms: int) -> dict[str, int]:
        (request,) = source.requests(now_ms)
        (found,) = request.resource_metrics[0].scope_metrics[0].metrics
        return {labels(point)["topic"]: point.start_time_unix_nano // 1_000_000 for point in found.sum.data_points}

    assert starts(2_000) == {"old": 1_000, "deleted": 1_000}
    shown[:] = [metric(old=6)]
    assert starts(3_000) == {"old": 1_000}
    shown[:] = [metric(old=6, deleted=1)]
    assert starts(4_000) == {"old": 1_000, "deleted": 3_000}
    shown[:] = [metric(old=2, deleted=1)]
    monkeypatch.setattr(pushed_metrics, "MAX_POINTS", 1)
    next(source.requests(4_500))  # a push that fails after its first request
    monkeypatch.undo()
    assert starts(5_000) == {"old": 4_000, "deleted": 3_000}


@pytest.mark.parametrize("is_partial", [True, False])
def test_what_a_collector_refuses_is_logged(is_partial: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Also a part; with its reason."""

    def refuse(context: grpc.ServicerContext) -> pb.ExportMetricsServiceResponse:
        if not is_partial:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
        partial = pb.ExportMetricsPartialSuccess(rejected_data_points=3, error_message="no token")
        return pb.ExportMetricsServiceResponse(partial_success=partial)

    clock = Clock.manual()
    with contextlib.closing(Collector(answer=refuse)) as collector, pushing(collector.port, clock):
        clock.advance(seconds=10)
    assert f"metrics not pushed target=http://127.0.0.1:{collector.port}: " in caplog.text
    assert "no token" in caplog.text


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When the broker starts; nothing of it stays open."""
    monkeypatch.setattr(otlp, "_PROTO", "opentelemetry.is_not_here")
    with (
        pytest.raises(ModuleNotFoundError, match=r"pip install 'ferromq\[otel\]'"),
        ferromq.embedded(tmp_path, metrics_push="http://127.0.0.1:1"),
    ):
        pass
    with ferromq.embedded(tmp_path):
        pass
