"""The metrics of RocketMQ's own broker: the reference of names, types and labels for ours."""

import contextlib
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

from java_processes import JavaBroker, JavaNameServer, JavaProxy, free_port
from otlp_collector import Collector, labels
from prometheus_client.parser import text_string_to_metric_families

import ferromq
from ferromq._ferromq import RemotingClient

REFERENCE = Path(__file__).parents[1] / "fixtures" / "metrics" / "rocketmq-5.5.0.json"
PATIENCE = 60.0
# What the exporter adds to each sample, and ferromq does not.
SCOPE = "otel_scope_"


def described(text: str) -> dict[str, Any]:
    """Return the type and the labels of each metric that begins with `rocketmq_`."""
    found: dict[str, Any] = {}
    for family in text_string_to_metric_families(text):
        labels = {label for sample in family.samples for label in sample.labels}
        labels -= {"le", *(label for label in labels if label.startswith(SCOPE))}
        if family.name.startswith("rocketmq_"):
            found[family.name] = {"type": family.type, "labels": sorted(labels)}
    return found


def scrape(port: int) -> dict[str, Any]:
    """Read the broker's page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        return described(answer.read().decode())


def test_the_reference_is_what_the_original_prints(tmp_path: Path) -> None:
    """After messages of several kinds were sent and consumed through it and its proxy."""
    reference: dict[str, Any] = json.loads(REFERENCE.read_text())
    port = free_port()
    options = {"metricsExporterType": "PROM", "metricsPromExporterHost": "127.0.0.1", "metricsPromExporterPort": port}
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(JavaNameServer(tmp_path / "namesrv"))
        stack.enter_context(JavaBroker(tmp_path / "broker", names.address, **options))
        with ferromq.Admin(names.address, timeout=PATIENCE) as admin:
            admin.create_topic("orders", queues=1, message_type="NORMAL")
            admin.create_topic("later", queues=1, message_type="DELAY")
            admin.create_topic("deals", queues=1, message_type="TRANSACTION")
            admin.create_group("billing", retries=1)
        proxy = stack.enter_context(JavaProxy(tmp_path / "proxy", names.address))
        with ferromq.Producer(proxy.address, timeout=PATIENCE, checker=lambda _: None) as producer:
            for _ in range(5):
                producer.send("orders", b"tea")
            producer.send("later", b"tea", delay=1)
            with producer.transaction() as transaction:
                transaction.send("deals", b"tea")
        with ferromq.Consumer(proxy.address, "billing", "orders", timeout=PATIENCE) as consumer:
            for message in consumer.receive(4, wait=20):
                message.ack()
            end, found = time.monotonic() + PATIENCE, dict[str, Any]()
            while time.monotonic() < end:
                found |= scrape(port)
                (tmp_path / "found.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
                if reference.items() <= found.items():
                    break
                for message in consumer.receive(1, wait=3):
                    message.ack()
    assert {name: found.get(name) for name in reference} == reference


def pushed(collector: Collector, wanted: set[str]) -> dict[str, tuple[str, str, list[str]]]:
    """Return kind, unit and labels of metrics by name, once all that are *wanted* have come."""
    end, found = time.monotonic() + PATIENCE, dict[str, tuple[str, str, list[str]]]()
    while not wanted <= found.keys() and time.monotonic() < end:
        for name, metric in collector.metrics().items():
            kind = str(metric.WhichOneof("data"))
            names = {label for point in getattr(metric, kind).data_points for label in labels(point)}
            found[name] = kind, metric.unit, sorted(names)
    return found


def test_what_is_pushed_has_the_originals_names_and_units(tmp_path: Path) -> None:
    """RocketMQ's broker and ours push to a collector what was stored and how long requests took."""
    wanted = {
        *("rocketmq_messages_in_total", "rocketmq_throughput_in_total", "rocketmq_message_size"),
        *("rocketmq_rpc_latency", "rocketmq_storage_size", "rocketmq_storage_flush_behind_bytes"),
        *("rocketmq_storage_dispatch_behind_bytes", "rocketmq_storage_message_reserve_time"),
        *("rocketmq_broker_permission", "rocketmq_topic_number", "rocketmq_consumer_group_number"),
        *("rocketmq_timer_enqueue_lag", "rocketmq_timer_dequeue_latency"),
    }
    sent = {"a": "PG", "b": "orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    sent |= {"i": "", "j": "0", "k": "false", "m": "false"}
    client = RemotingClient()
    with contextlib.closing(Collector()) as collector, contextlib.ExitStack() as stack:
        names = stack.enter_context(JavaNameServer(tmp_path / "namesrv"))
        options = {
            "metricsExporterType": "OTLP_GRPC",
            "metricsGrpcExporterTarget": collector.target,
            "metricGrpcExporterIntervalInMills": 500,
            "metricsGrpcExporterHeader": "tenant:a",
        }
        broker = stack.enter_context(JavaBroker(tmp_path / "broker", names.address, **options))
        assert client.call(broker.address, 310, sent, b"tea")[0] == 0
        theirs = pushed(collector, wanted)
        assert collector.headers[-1]["tenant"] == "a"
    with (
        contextlib.closing(Collector()) as collector,
        ferromq.embedded(metrics_push=collector.target, push_interval="500ms") as mq,
    ):
        assert client.call(mq.remoting, 310, sent, b"tea")[0] == 0
        ours = pushed(collector, wanted)
    client.close()
    shared = wanted & theirs.keys()
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
    assert wanted == shared
