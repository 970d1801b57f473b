"""The metrics' names and limits, the options of the endpoint, and the formats of logs."""

import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from ferromq.broker.administration.rocketmq_options import as_lines, flat
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import ConfigError
from ferromq.monitoring.metrics import Families, Metric, Names, Totals, request_name, response_name
from ferromq.process.logs import JsonLine, parts
from ferromq.protocol.client_version import version_name

BOUNDS = [1, 10]


class Given(Collector):
    """A collector of given metrics."""

    def __init__(self, *metrics: Metric) -> None:
        self.metrics = metrics

    def collect(self) -> Any:
        """Return them."""
        return self.metrics


def samples(*metrics: Metric) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return name and labels → value, read from the text."""
    text = generate_latest(Given(*metrics)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@given(st.dictionaries(st.text(max_size=20), st.integers(0, 1 << 50), max_size=10))
def test_any_names_are_read_back(counts: dict[str, int]) -> None:
    """Quotes, line ends and backslashes in the values of labels, too."""
    rows = [((topic,), count) for topic, count in counts.items()]
    found = samples(Families({"cluster": "c"}).counter("rocketmq_messages_in_total", "text", rows, ("topic",)))
    expected = {
        ("rocketmq_messages_in_total", (("cluster", "c"), ("topic", topic))): count for topic, count in counts.items()
    }
    assert found == expected


def test_a_histogram_counts_upwards() -> None:
    """Its buckets are cumulative, and the last one has all."""
    found = samples(Families({}).histogram("h", "text", [(("a",), [1, 2, 3], 9.0)], ("l",), BOUNDS))
    values = [found["h_bucket", (("l", "a"), ("le", limit))] for limit in ("1.0", "10.0", "+Inf")]
    assert values == [1, 3, 6]
    assert (found["h_count", (("l", "a"),)], found["h_sum", (("l", "a"),)]) == (6, 9.0)


def test_requests_that_look_alike_are_one_sample() -> None:
    """Two codes of one name would be a duplicate, which Prometheus refuses."""
    rows = [("grpc", "AckMessage", code, False, "success", [1, 0, 0], 0.5) for code in (0, 20000)]
    refused = [
        ("remoting", "310", 14, False, "success", [0, 2, 0], 8.0),
        ("grpc", "SendMessage", 8, False, "success", [0, 0, 1], 50.0),
    ]
    found = samples(*Families({}).latencies([*rows, *refused], BOUNDS))
    labels = {"protocol_type": "grpc", "request_code": "AckMessage", "response_code": "ok"}
    more = {"is_long_polling": "false", "result": "success"}
    key = tuple(sorted({**labels, **more}.items()))
    assert found["rocketmq_rpc_latency_milliseconds_count", key] == 2
    reasons = {labels: value for (name, labels), value in found.items() if name == "ferromq_refused_sends_total"}
    assert reasons == {
        (("protocol_type", "remoting"), ("reason", "service_not_available")): 2,
        (("protocol_type", "grpc"), ("reason", "resource_exhausted")): 1,
    }


def test_requests_and_responses_have_rocketmqs_names() -> None:
    """In lower case; unknown ones are numbers."""
    assert request_name("remoting", "310") == "send_message_v2"
    assert request_name("remoting", "9999") == "9999"
    assert request_name("grpc", "SendMessage") == "SendMessage"
    assert [response_name("remoting", code) for code in (0, 19, 9999)] == ["success", "pull_not_found", "9999"]
    assert [response_name("grpc", code) for code in (20000, 40402, 14)] == ["ok", "topic_not_found", "unavailable"]


def test_versions_have_rocketmqs_names() -> None:
    """Of the ordinals that clients send."""
    assert [version_name(ordinal) for ordinal in (-1, 0, 213, 413, 513, 612)] == [
        *("v3", "v3", "v4_0_0", "v5_0_0", "v5_5_0", "higher_version"),
    ]


@given(st.lists(st.sets(st.sampled_from("abcdefgh")), max_size=8), st.integers(1, 4))
def test_names_keep_their_places(rounds: list[set[str]], limit: int) -> None:
    """As long as they are present; there are never more than the limit, and never fewer than fit."""
    names, before = Names(limit), set[str]()
    for present in rounds:
        names.keep(present)
        known = {name for name in present if name in names}
        assert before & present <= known
        assert len(known) == min(limit, len(present))
        before = known


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9)), max_size=8), st.integers(1, 3))
def test_no_total_goes_down(rounds: list[dict[str, int]], limit: int) -> None:
    """Whatever names come and go; together they have what was counted."""
    names, counted, before = Names(limit), dict[str, int](), dict[str, int]()
    totals, gone = Totals(names), 0
    for more in rounds:
        # A name that is not in this round was deleted.
        gone += sum(count for name, count in before.items() if name != "(other)" and name not in more)
        counted = {name: counted.get(name, 0) + count for name, count in more.items()}
        names.keep(counted)
        sums = {name: total for name, (total,) in totals.add({key: (n,) for key, n in counted.items()}).items()}
        assert all(total >= before[name] for name, total in sums.items() if name in before)
        assert len(sums.keys() - {"(other)"}) <= limit
        before = sums
    assert sum(before.values()) + gone == sum(sum(more.values()) for more in rounds)


@pytest.mark.parametrize(
    ("lines", "listen"),
    [
        ("metricsExporterType=PROM", "0.0.0.0:5557"),
        ("metricsExporterType=2\nmetricsPromExporterHost=10.0.0.1\nmetricsPromExporterPort=9100", "10.0.0.1:9100"),
        ("metricsExporterType=DISABLE\nmetricsPromExporterPort=9100", "off"),
        ("metricsPromExporterPort=9100", "off"),
    ],
)
def test_rocketmqs_keys_set_the_address(tmp_path: Path, lines: str, listen: str) -> None:
    """As its broker reads them."""
    file = tmp_path / "broker.conf"
    file.write_text(lines)
    assert BrokerConfig.from_properties(file).monitoring.metrics_listen == listen


def test_rocketmqs_keys_set_the_collector(tmp_path: Path) -> None:
    """And its headers, which are not shown."""
    file = tmp_path / "broker.conf"
    keys = {
        "metricsExporterType": "OTLP_GRPC",
        "metricsGrpcExporterTarget": "collector.example:4317",
        "metricsGrpcExporterHeader": "Tenant:a,authorization:Bearer 7",
        "metricGrpcExporterIntervalInMills": "1500",
        "metricGrpcExporterTimeOutInMills": "200",
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    config = BrokerConfig.from_properties(file).monitoring
    assert config.metrics_push == "https://collector.example:4317"
    assert config.headers() == (("tenant", "a"), ("authorization", "Bearer 7"))
    assert (config.push_interval, config.push_timeout) == (
        timedelta(milliseconds=1500),
        timedelta(milliseconds=200),
    )
    assert "Bearer" not in repr(config)
    assert "Bearer" not in as_lines(flat(BrokerConfig.from_properties(file)), {"brokerName": "broker-a"})


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("metricsExporterType=OTLP_GRPC", "OTLP_GRPC needs metricsGrpcExporterTarget"),
        (
            "metricsExporterType=1\nmetricsGrpcExporterTarget=http://a",
            "metrics_push is 'http://a'; expected http://HOST:",
        ),
        ("metricsExporterType=LOG", "so LOG is refused; use PROM, OTLP_GRPC or DISABLE"),
        ("metricsExporterType=prom", "prom is no type of exporter; use PROM, OTLP_GRPC or DISABLE"),
        ("metricsGrpcExporterHeader=token", "push_headers has one that is not NAME:VALUE"),
        ("metricGrpcExporterIntervalInMills=0", "push_interval is 0.*; it must be more than 0"),
        ("metricsExporterType=PROM\nmetricsPromExporterPort=many", "expected a whole number"),
        ("metricsExporterType=PROM\nmetricsPromExporterPort=70000", "expected HOST:PORT"),
        ("metricsOtelCardinalityLimit=0", "metrics_limit is 0; it must be more than 0"),
    ],
)
def test_wrong_values_of_rocketmqs_keys_are_refused(tmp_path: Path, lines: str, text: str) -> None:
    """With the way out."""
    file = tmp_path / "broker.conf"
    file.write_text(lines)
    with pytest.raises(ConfigError, match=text):
        BrokerConfig.from_properties(file)


def test_the_endpoint_is_off_unless_it_is_asked_for() -> None:
    """In brokers and name servers that a program makes."""
    assert BrokerConfig().monitoring.metrics_listen == NameServerConfig().monitoring.metrics_listen == "off"
    with pytest.raises(ConfigError, match="metrics_listen is 'here'; expected HOST:PORT"):
        NameServerConfig.from_options({"metrics_listen": "here"})


def record(text: str, *given: object) -> logging.LogRecord:
    """Return a record of a log."""
    return logging.LogRecord("ferromq.broker", logging.WARNING, __file__, 1, text, given, None)


@pytest.mark.parametrize(
    ("text", "given", "message", "fields"),
    [
        ("broker ready broker=%s port=%d", ("a", 7), "broker ready", {"broker": "a", "port": 7}),
        ("damage file=%s begin=%d: %s", ("f", 1, "torn"), "damage: torn", {"file": "f", "begin": 1}),
        ("address not reachable: %s", ("a=b c=%s",), "address not reachable: a=b c=%s", {}),
        ("100%% of %s", ("x",), "100% of x", {}),
        ("plain", (), "plain", {}),
    ],
)
def test_values_of_a_line_are_fields(
    text: str, given: tuple[object, ...], message: str, fields: dict[str, object]
) -> None:
    """What has a name becomes a field, the rest is the message."""
    assert parts(record(text, *given)) == (message, fields)


def test_a_line_of_json_is_one_object_in_one_line() -> None:
    """With the traceback of an exception in it."""
    error, failed = ValueError("two\nlines"), record("failed path=%s", Path("/a"))
    failed.exc_info = (ValueError, error, None)
    line = JsonLine().format(failed)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["target"], found["message"]) == ("WARN", "ferromq::broker", "failed")
    assert found["fields"]["path"] == "/a"
    assert "ValueError: two\nlines" in found["fields"]["exception"]
    assert found["time"].endswith("Z")
