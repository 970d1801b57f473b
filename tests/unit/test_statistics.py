"""A broker's traffic: rates over windows, totals at midnight."""

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest

from ferromq.broker.reports.statistics import SAMPLE_MS, Statistics, Windows
from ferromq.protocol import java_json

NOON = int(dt.datetime(2026, 3, 4, 12).astimezone().timestamp() * 1000)
MINUTE, HOUR = 60_000, 3_600_000


class Broker:
    """Counters of the test, and a virtual clock that samples as the broker does."""

    def __init__(self) -> None:
        self.traffic: dict[str, dict[str, tuple[int, int]]] = {"put": {}, "get": {}, "send_back": {}}
        self.now = NOON
        self.statistics = Statistics(lambda: self.traffic, lambda: self.now, "DefaultCluster")

    def count(self, kind: str, key: str, messages: int, size: int = 10) -> None:
        """Let messages pass."""
        before = self.traffic[kind].get(key, (0, 0))
        self.traffic[kind][key] = (before[0] + messages, before[1] + messages * size)

    def pass_time(self, elapsed_ms: int, *, each: int = 0) -> None:
        """Let time pass, with samples, and *each* messages of the topic `t` before each of them."""
        for _ in range(elapsed_ms // SAMPLE_MS):
            if each:
                self.count("put", "t", each)
            self.now += SAMPLE_MS
            self.statistics.sample(self.now)

    def view(self, name: str, key: str) -> Any:
        """Ask request 315."""
        request: Any = SimpleNamespace(fields={"statsName": name, "statsKey": key})
        code, remark, _, body = self.statistics.view(request)
        return java_json.loads(body) if code == 0 else (int(code), remark)


def test_each_window_counts_its_own_time() -> None:
    """A steady rate is the same in all; older traffic is outside of a window."""
    broker = Broker()
    broker.pass_time(2 * HOUR, each=50)
    found = broker.view("TOPIC_PUT_NUMS", "t")
    assert [found[f"stats{window}"]["tps"] for window in ("Minute", "Hour", "Day")] == [5.0, 5.0, 5.0]
    assert found["statsMinute"]["sum"] == 300
    assert found["statsHour"]["sum"] == 18_000
    sizes = broker.view("TOPIC_PUT_SIZE", "t")["statsMinute"]
    assert sizes == {"avgpt": 10.0, "sum": 3_000, "tps": 50.0}
    broker.pass_time(MINUTE)
    assert broker.view("TOPIC_PUT_NUMS", "t")["statsMinute"]["sum"] == 0
    assert broker.view("TOPIC_PUT_NUMS", "t")["statsHour"]["sum"] > 0


def test_traffic_since_the_last_sample_is_counted() -> None:
    """A query right after a send shows it."""
    broker = Broker()
    broker.pass_time(MINUTE)
    broker.count("get", "t@g", 7)
    broker.now += 1_000
    found = broker.view("GROUP_GET_NUMS", "t@g")
    assert [found[f"stats{window}"]["sum"] for window in ("Minute", "Hour", "Day")] == [7, 7, 7]
    assert broker.statistics.per_second("get", "t@g") > 0


def test_the_broker_is_the_sum_of_its_topics() -> None:
    """Under the name of its cluster."""
    broker = Broker()
    broker.count("put", "t", 3)
    broker.count("put", "u", 4)
    broker.pass_time(SAMPLE_MS)
    assert broker.view("BROKER_PUT_NUMS", "DefaultCluster")["statsMinute"]["sum"] == 7
    assert broker.statistics.rate("put", MINUTE).messages == 7
    assert broker.statistics.bytes_put() == 70


@pytest.mark.parametrize(
    ("name", "key", "named"),
    [("TOPIC_PUT_NUMS", "nowhere", "nowhere"), ("LATENCY", "t", "known are"), ("BROKER_PUT_NUMS", "other", "other")],
)
def test_an_uncounted_statistic_is_named(name: str, key: str, named: str) -> None:
    """In RocketMQ's words, which its tools ignore."""
    code, remark = Broker().view(name, key)
    assert code == 1
    assert f"The stats <{name}> <{key}> not exist".lower() in remark.lower()
    assert named in remark


def test_totals_are_kept_at_midnight() -> None:
    """Today begins at the local midnight, and so did yesterday."""
    broker = Broker()
    broker.count("put", "t", 5)
    broker.pass_time(13 * HOUR)
    broker.count("put", "t", 6)
    assert broker.statistics.totals("put") == (0, 5, 11)
    broker.pass_time(24 * HOUR)
    assert broker.statistics.totals("put") == (5, 11, 11)


def test_a_deleted_topics_samples_go() -> None:
    """A topic of the same name begins at zero."""
    broker = Broker()
    broker.count("put", "t", 500)
    broker.pass_time(MINUTE)
    broker.traffic["put"] = {}
    broker.pass_time(SAMPLE_MS)
    assert broker.view("TOPIC_PUT_NUMS", "t")[0] == 1
    broker.count("put", "t", 2)
    assert broker.view("TOPIC_PUT_NUMS", "t")["statsMinute"]["sum"] == 2


def test_no_rate_is_negative_when_a_topic_is_deleted() -> None:
    """What was counted of it stays in the sums of the broker, also if it is made again at once."""
    broker = Broker()
    broker.count("get", "t@g", 500)
    broker.count("get", "u@g", 20)
    broker.pass_time(MINUTE)
    assert broker.statistics.totals("get").now == 520
    del broker.traffic["get"]["t@g"]
    assert broker.statistics.rate("get", SAMPLE_MS).per_second == 0
    assert broker.statistics.totals("get").now == 520
    broker.count("get", "t@g", 30)
    assert broker.statistics.rate("get", SAMPLE_MS).messages == 30
    assert broker.statistics.rate("get", MINUTE, "t@g").messages == 30
    broker.pass_time(SAMPLE_MS)
    broker.traffic["get"]["t@g"] = (10, 100)
    assert broker.statistics.rate("get", MINUTE, "t@g").messages == 10
    assert broker.statistics.totals("get").now == 560


def test_a_window_keeps_few_samples() -> None:
    """However long the broker runs."""
    windows = Windows()
    for number in range(100_000):
        windows.sample(NOON + number * SAMPLE_MS, (number, number))
    assert sum(len(series.samples) for series in windows._series.values()) <= 8 + 8 + 26


def test_many_counters_are_looked_at_together() -> None:
    """The rate of several topics is their sum, from one look at all counters, which is costly."""
    broker, looks = Broker(), list[int]()

    def traffic() -> dict[str, dict[str, tuple[int, int]]]:
        looks.append(1)
        return broker.traffic

    statistics = Statistics(traffic, lambda: broker.now, "DefaultCluster")
    broker.count("get", "t@g", 60)
    broker.count("get", "u@g", 30)
    broker.now += SAMPLE_MS
    statistics.sample(broker.now)
    looks.clear()
    apart = [statistics.per_second("get", key) for key in ("t@g", "u@g")]
    assert len(looks) == 2
    assert statistics.per_second("get", "t@g", "u@g", "gone@g") == sum(apart) > 0
    assert len(looks) == 3
