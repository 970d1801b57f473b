"""The HTTP endpoint of servers: metrics, health and readiness, with real brokers and clients."""

import contextlib
import itertools
import json
import logging
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dispatching import dispatched
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from remoting_peer import Peer

import ferromq
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock
from ferromq.protocol.codes import RequestCode

PATIENCE = 30
ANY = "127.0.0.1:0"
PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
REFERENCE = Path(__file__).parents[1] / "fixtures" / "metrics" / "rocketmq-5.5.0.json"
Eventually = Callable[[Callable[[], bool]], bool]


def read(address: str | None, path: str) -> tuple[int, str]:
    """Return the status and the text of a page."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def families(address: str | None) -> dict[str, Metric]:
    """Return the metrics by name, as Prometheus reads them."""
    status, text = read(address, "/metrics")
    assert status == 200
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(found: dict[str, Metric], family: str, sample: str, **labels: str) -> float:
    """Return the sum of the samples that have these labels."""
    return sum(
        each.value for each in found[family].samples if each.name == sample and labels.items() <= each.labels.items()
    )


@pytest.fixture
def clock() -> Clock:
    """Return a clock moved by hand."""
    return Clock.manual()


@pytest.fixture
def mq(clock: Clock) -> Iterator[ferromq.Embedded]:
    """Run a broker with an endpoint."""
    with ferromq.embedded(clock=clock, metrics_listen=ANY, default_queues=1) as mq:
        yield mq


def test_messages_are_counted_by_topic_and_group(mq: ferromq.Embedded, clock: Clock, eventually: Eventually) -> None:
    """Sent, received, waiting and in flight, with their ages."""
    with mq.producer() as producer:
        producer.send_all("orders", [b"tea"] * 5)
    dispatched(mq)
    clock.advance(seconds=7)
    topic = {"topic": "orders", "cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
    pair = {**topic, "consumer_group": "billing", "is_retry": "false", "is_system": "false"}

    def of_group(name: str) -> float:
        name = f"rocketmq_consumer_{name}"
        return value(families(mq.broker.metrics_address), name, name, **pair)

    with mq.consumer("billing", "orders", prefetch=1) as consumer:
        (first, second) = consumer.receive(2)
        first.ack()
        # The acknowledgement is on its way.
        assert eventually(lambda: of_group("lag_messages") == 4)
        assert of_group("lag_latency_milliseconds") == 7_000
        assert of_group("inflight_messages") == 1
        assert of_group("ready_messages") == 3
        assert of_group("queueing_latency_milliseconds") == 7_000
        second.ack()
    found = families(mq.broker.metrics_address)
    messages_in = "rocketmq_messages_in"
    assert value(found, messages_in, f"{messages_in}_total", **topic, message_type="normal", is_system="false") == 5
    assert value(found, "rocketmq_messages_out", "rocketmq_messages_out_total", **pair) == 2
    sizes = value(found, "rocketmq_message_size", "rocketmq_message_size_bucket", **topic, le="1024.0")
    assert sizes == 5
    sends = {"request_code": "SendMessage", "response_code": "ok", "protocol_type": "grpc", "result": "success"}
    latency = "rocketmq_rpc_latency_milliseconds"
    assert value(found, latency, f"{latency}_count", **sends) >= 1
    assert value(found, "ferromq_ready", "ferromq_ready") == 1


def test_acknowledgements_out_of_order_are_neither_ready_nor_late(
    mq: ferromq.Embedded, clock: Clock, eventually: Eventually
) -> None:
    """The last of three received messages is acknowledged, the first two are held: two are ready, since they came."""
    with mq.producer() as producer:
        producer.send_all("orders", [b"tea"] * 3)
        clock.advance(seconds=7)
        producer.send_all("orders", [b"tea"] * 2)
    dispatched(mq)
    clock.advance(seconds=3)

    def of_group(name: str) -> float:
        name = f"rocketmq_consumer_{name}"
        return value(families(mq.broker.metrics_address), name, name, consumer_group="billing", topic="orders")

    with mq.consumer("billing", "orders", prefetch=1) as consumer:
        received = consumer.receive(3)
        received[2].ack()
        assert eventually(lambda: of_group("inflight_messages") == 2)
        assert of_group("ready_messages") == 2
        assert of_group("queueing_latency_milliseconds") == 3_000
        assert of_group("lag_messages") == 4
        assert of_group("lag_latency_milliseconds") == 10_000


def test_counters_do_not_go_down_when_topics_are_deleted(clock: Clock) -> None:
    """Neither the sum of the topics beyond the limit, nor, when a place becomes free, that of a topic that gets it."""
    with ferromq.embedded(clock=clock, metrics_listen=ANY, metrics_limit=1) as mq, mq.producer() as producer:

        def totals() -> dict[str, float]:
            samples = families(mq.broker.metrics_address)["rocketmq_messages_in"].samples
            return {each.labels["topic"]: each.value for each in samples if each.name.endswith("_total")}

        producer.send("a", b"tea")
        assert totals() == {"a": 1}
        for _ in range(3):
            producer.send("b", b"tea")
        producer.send("c", b"tea")
        assert totals() == {"a": 1, "(other)": 4}
        with mq.admin() as admin:
            admin.delete_topic("c")
            assert totals() == {"a": 1, "(other)": 4}
            admin.delete_topic("a")
        assert totals() == {"b": 0, "(other)": 4}
        producer.send("b", b"tea")
        assert totals() == {"b": 1, "(other)": 4}


def test_a_page_that_is_made_while_the_server_stops_is_that_of_a_stopping_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it reads from is closed meanwhile; the log has no failure."""
    addresses = {"listen": ANY, "grpc_listen": ANY, "fast_listen": "off", "metrics_listen": ANY}
    config = BrokerConfig.from_options({"store": tmp_path, "commit_log_file_size": 1 << 20, **addresses})
    with contextlib.closing(BrokerController(config)) as broker:
        endpoint = broker._endpoint
        assert endpoint is not None
        made = endpoint._collect

        def stops_meanwhile() -> Any:
            yield from itertools.islice(made(), 5)
            endpoint.stopping()
            raise ferromq.errors.StoreClosed("expected by the test")

        endpoint._collect = stops_meanwhile
        status, text = read(broker.metrics_address, "/metrics")
        assert (status, "ferromq_ready 0.0" in text) == (200, True)
    assert "page failed" not in caplog.text


def test_the_labels_are_rocketmqs(mq: ferromq.Embedded) -> None:
    """Each metric with a name of RocketMQ has its type and its labels; what differs is listed here."""
    with mq.producer() as producer, mq.consumer("billing", "orders") as consumer:
        producer.send("orders", b"tea")
        (message,) = consumer.receive(1)
        message.ack()
        found = families(mq.broker.metrics_address)
    reference: dict[str, Any] = json.loads(REFERENCE.read_text())
    # RocketMQ counts these by topic; ferromq counts them in all.
    without_topic = {"rocketmq_timer_enqueue", "rocketmq_timer_dequeue", "rocketmq_half_messages"}
    shared = {name for name in found if name.startswith("rocketmq_")}
    # Java prints these only with events that the run for the reference did not have.
    unseen = {"rocketmq_rollback_messages", "rocketmq_send_to_dlq_messages"}
    assert shared - reference.keys() == unseen
    for name in shared - unseen:
        family = found[name]
        assert family.type == reference[name]["type"], name
        for sample in family.samples:
            labels = sorted(label for label in sample.labels if label != "le")
            expected = [label for label in reference[name]["labels"] if name not in without_topic or label != "topic"]
            assert labels == expected, name


def row(metric: Metric) -> str:
    """Return a metric's row of the page."""
    labels = [label for label in metric._labelnames if label not in {"cluster", "node_type", "node_id"}]  # type: ignore[attr-defined]
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return f"| `{name}` | {metric.type} | {', '.join(f'`{label}`' for label in labels)} | {metric.documentation} |"


def test_the_page_lists_all_metrics(mq: ferromq.Embedded) -> None:
    """Of brokers and name servers, with their types, labels and meanings."""
    config = NameServerConfig.from_options({"listen": ANY, "metrics_listen": ANY})
    with contextlib.closing(NamesrvController(config)) as name_server:
        endpoints = mq.broker._endpoint, name_server._endpoint
        metrics = [metric for endpoint in endpoints if endpoint for metric in endpoint.collect()]
    rows = {row(metric) for metric in metrics if not metric.name.startswith("process_")}
    table = PAGE.read_text().partition("<!-- metrics -->")[2].partition("<!-- end of metrics -->")[0]
    assert table.splitlines()[3:] == sorted(rows)


def test_a_refused_send_is_counted(mq: ferromq.Embedded) -> None:
    """The reason is RocketMQ's code."""
    with mq.producer() as producer:
        producer.send("orders", b"tea")
        mq.broker.set_queue_access("orders", 0, "closed")
        with pytest.raises(ferromq.errors.Forbidden):
            producer.send("orders", b"tea")
    found = families(mq.broker.metrics_address)
    assert value(found, "ferromq_refused_sends", "ferromq_refused_sends_total", reason="forbidden") >= 1
    of_topic = {"topic": "orders", "reason": "forbidden"}
    assert value(found, "ferromq_refused_by_topic", "ferromq_refused_by_topic_total", **of_topic) >= 1


def test_refusals_of_topics_beyond_the_limit_are_summed(clock: Clock) -> None:
    """A topic that does not exist has no series, and its sum with others does not go down."""
    options: dict[str, Any] = {"metrics_limit": 2, "limits": ["topic=* send=1"], "auto_create_topics": False}
    with ferromq.embedded(clock=clock, metrics_listen=ANY, **options) as mq, Peer(mq.broker.address) as peer:
        names = ["a", "b", "c", "d"]
        with mq.admin() as admin:
            for name in names:
                admin.create_topic(name, queues=1)
        for _ in range(3):
            for name in [*names, "missing"]:
                send = {"a": "producer", "b": name, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0"}
                peer.call(RequestCode.SEND_MESSAGE_V2, send | {"i": "", "j": "0", "k": "false", "m": "false"}, b"x")
        samples = families(mq.broker.metrics_address)["ferromq_refused_by_topic"].samples
        found = {(each.labels["topic"], each.labels["reason"]): each.value for each in samples}
        assert found == {("a", "topic_limit"): 2, ("b", "topic_limit"): 2, ("(other)", "topic_limit"): 4}


def test_flushes_are_timed() -> None:
    """One observation for each flush of the log."""
    with ferromq.embedded(metrics_listen=ANY, flush="each") as mq, mq.producer() as producer:
        producer.send("orders", b"tea")
        found = families(mq.broker.metrics_address)
        timed = value(found, "ferromq_flush_latency_milliseconds", "ferromq_flush_latency_milliseconds_count")
        assert timed > 0


REFUSED = """
import contextlib, logging
import ferromq

class Seen(logging.Handler):
    def emit(self, record):
        print(record.name, record.getMessage())

logging.getLogger("ferromq").addHandler(Seen())
with ferromq.embedded(default_queues=1) as mq, mq.producer() as producer:
    producer.send("orders", b"tea")
    mq.broker.set_queue_access("orders", 0, "closed")
    with contextlib.suppress(ferromq.errors.Forbidden):
        producer.send("orders", b"tea")
"""


def test_a_refused_send_is_logged_by_the_embedding_program() -> None:
    """In a process of its own: lines of this kind are limited."""
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True, timeout=50)
    assert "send refused" in done.stdout


def test_topics_beyond_the_limit_are_summed(clock: Clock) -> None:
    """Under one name, so that no client can make any number of series."""
    with ferromq.embedded(clock=clock, metrics_listen=ANY, metrics_limit=3) as mq, mq.producer() as producer:
        for number in range(8):
            producer.send(f"topic-{number}", b"tea")
        found = families(mq.broker.metrics_address)
        totals = {
            sample.labels["topic"]: sample.value
            for sample in found["rocketmq_messages_in"].samples
            if sample.name == "rocketmq_messages_in_total"
        }
        assert len(totals) == 4
        assert totals["(other)"] == 5
        for number in range(8):
            producer.send(f"topic-{number}", b"tea")
        found = families(mq.broker.metrics_address)
        assert value(found, "rocketmq_messages_in", "rocketmq_messages_in_total", topic="(other)") == 10


def test_dead_letters_are_counted(mq: ferromq.Embedded) -> None:
    """By the topic and the group of the message."""
    with mq.producer() as producer, mq.consumer("billing", "orders") as consumer:
        producer.send("orders", b"tea")
        (message,) = consumer.receive(1)
        consumer.forward_to_dead_letter(message, "not tea")
    found = families(mq.broker.metrics_address)
    name = "rocketmq_send_to_dlq_messages"
    assert value(found, name, f"{name}_total", topic="orders", consumer_group="billing") == 1


def test_a_ready_broker_says_so(mq: ferromq.Embedded) -> None:
    """And what runs is alive."""
    assert read(mq.broker.metrics_address, "/healthz") == (200, "alive\n")
    assert read(mq.broker.metrics_address, "/readyz") == (200, "ready\n")
    assert read(mq.broker.metrics_address, "/") == (
        404,
        "there is no page /; there are /healthz, /metrics, /readyz\n",
    )


def test_a_broker_that_refuses_sends_is_not_ready(clock: Clock) -> None:
    """After a failed flush its store stops writing; it stays alive, and its metrics are served."""
    # Closing reports that the store could not write.
    with (
        contextlib.suppress(ferromq.errors.StoreClosed),
        ferromq.embedded(clock=clock, metrics_listen=ANY, flush="each") as mq,
    ):
        mq.store.fail_next_flush()
        with mq.producer() as producer, contextlib.suppress(ferromq.errors.FerromqError):
            producer.send("orders", b"tea", timeout=2)
        status, text = read(mq.broker.metrics_address, "/readyz")
        assert status == 503
        assert text.startswith("not ready: sends are refused: ")
        assert read(mq.broker.metrics_address, "/healthz")[0] == 200
        assert value(families(mq.broker.metrics_address), "ferromq_ready", "ferromq_ready") == 0


def test_a_broker_that_no_name_server_knows_is_not_ready(tmp_path: Path) -> None:
    """It says which ones do not answer."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = f"127.0.0.1:{closed.getsockname()[1]}"
    addresses = {"listen": ANY, "grpc_listen": ANY, "fast_listen": "off", "metrics_listen": ANY}
    options = {"store": tmp_path, "namesrv": gone, "commit_log_file_size": 1 << 20, **addresses}
    with contextlib.closing(BrokerController(BrokerConfig.from_options(options))) as broker:
        status, text = read(broker.metrics_address, "/readyz")
    assert (status, text) == (503, f"not ready: no name server has the broker's registration: {gone}\n")


def test_a_starting_and_a_stopping_broker_is_alive_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its endpoint is there before the store is opened, and until it is closed; then the port is free."""
    seen = list[tuple[int, str]]()
    address = list[str]()
    opened = BrokerController._open_store

    def watched(broker: BrokerController, *arguments: Any) -> None:
        address.append(broker.metrics_address or "")
        seen.extend(read(address[0], path) for path in ("/healthz", "/readyz", "/metrics"))
        opened(broker, *arguments)
        closed = broker.store.close
        started = arguments[0]
        started.callback(lambda: seen.append(read(address[0], "/readyz")))
        assert closed is not None

    monkeypatch.setattr(BrokerController, "_open_store", watched)
    addresses = {"listen": ANY, "grpc_listen": ANY, "fast_listen": "off", "metrics_listen": ANY}
    config = BrokerConfig.from_options({"store": tmp_path, "commit_log_file_size": 1 << 20, **addresses})
    broker = BrokerController(config)
    assert read(address[0], "/readyz")[0] == 200
    broker.close()
    assert [status for status, _ in seen] == [200, 503, 200, 503]
    assert "the server is starting" in seen[1][1]
    assert "ferromq_ready 0.0" in seen[2][1]
    assert "the server is stopping" in seen[3][1]
    with pytest.raises(OSError, match="refused"):
        read(address[0], "/healthz")


def test_a_name_server_has_metrics(clock: Clock) -> None:
    """How many brokers and topics it knows; it is ready once it answers routes."""
    config = NameServerConfig.from_options(
        {"listen": ANY, "metrics_listen": ANY, "wait_for_service": True, "service_wait": "45s"}
    )
    with contextlib.closing(NamesrvController(config, clock=clock)) as name_server:
        assert read(name_server.metrics_address, "/readyz") == (
            503,
            "not ready: routes are refused until brokers had time to register\n",
        )
        clock.advance(seconds=46)
        with ferromq.embedded(clock=clock, namesrv=name_server.address, auto_create_topics=False) as mq:
            assert mq.broker.identity.name == "broker-a"
            found = families(name_server.metrics_address)
            assert value(found, "ferromq_registered_brokers", "ferromq_registered_brokers", node_type="namesrv") == 1
            latency = "rocketmq_rpc_latency_milliseconds"
            registered = {"request_code": "register_broker", "response_code": "success"}
            assert value(found, latency, f"{latency}_count", **registered) >= 1
        assert read(name_server.metrics_address, "/readyz") == (200, "ready\n")


def test_a_taken_port_is_an_error_unless_it_is_the_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default gives way to another server of the machine, with a warning."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use; set metrics_listen"):
            NamesrvController(NameServerConfig(listen=ANY).from_options({"metrics_listen": f"127.0.0.1:{port}"}))
        monkeypatch.setattr("ferromq.namesrv.server.NAME_SERVER_PORT", port)
        config = NameServerConfig.from_options({"listen": ANY, "metrics_listen": "auto"})
        with caplog.at_level(logging.WARNING, "ferromq"), contextlib.closing(NamesrvController(config)) as name_server:
            assert name_server.metrics_address is None
    assert f"port {port} of 127.0.0.1 is taken; set metrics_listen" in caplog.text


def test_scrapes_and_messages_do_not_stop_each_other(mq: ferromq.Embedded) -> None:
    """Several at once, while messages are sent."""
    ended, failures = threading.Event(), list[BaseException]()

    def scrape() -> None:
        try:
            while not ended.is_set():
                assert read(mq.broker.metrics_address, "/metrics")[0] == 200
        except BaseException as error:  # noqa: BLE001 (for the test)
            failures.append(error)

    scrapers = [threading.Thread(target=scrape) for _ in range(4)]
    for scraper in scrapers:
        scraper.start()
    with mq.producer() as producer:
        for number in range(300):
            producer.send(f"topic-{number % 10}", b"tea")
    ended.set()
    for scraper in scrapers:
        scraper.join(PATIENCE)
    assert failures == []
    found = families(mq.broker.metrics_address)
    assert value(found, "rocketmq_messages_in", "rocketmq_messages_in_total", is_system="false") == 300


def test_warnings_of_the_core_reach_pythons_loggers(
    mq: ferromq.Embedded, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    """A refused send of a client that checks nothing, in the log of the embedding program."""
    with caplog.at_level(logging.WARNING, "ferromq"), socket.create_connection(_address(mq.remoting)) as client:
        client.sendall(b"\x00\x00\x00\x08nonsense")
        assert eventually(lambda: "connection closed for a bad frame" in caplog.text)
    assert any(record.name.startswith("ferromq.transport") for record in caplog.records)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
