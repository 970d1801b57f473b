"""`ferromq pipeline stats` and `dead-letters`: figures of made-up rows, and of a broker's store."""

import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dispatching import dispatched
from pipeline_rows import BEGIN, frame, row

import ferromq
from ferromq.cli import main as cli
from ferromq.errors import ConfigError
from ferromq.pipeline.dead_letters import dead_letters, replay_list
from ferromq.pipeline.inputs import group_lags
from ferromq.pipeline.stats import lags, queues, stats
from ferromq.spark.options import ClusterAddress

PATIENCE = 60


def test_a_row_for_each_topic_and_span(session: Any) -> None:
    """Messages, bytes, tags, keys, sizes and the delay from born to stored, by minute."""
    rows = [
        row(0, at=0, keys=["a"], tag="x", body=b"12"),
        row(1, at=59, keys=["b"], tag="y", body=b"1234", born_timestamp=BEGIN + timedelta(seconds=49)),
        row(2, at=60, queue_id=1, reconsume_times=2),
        row(0, at=1, topic="other"),
    ]
    found = [one.asDict() for one in stats(frame(session, rows), every="1 minute").collect()]
    assert [(one["topic"], one["messages"], one["bytes"], one["tags"], one["keys"]) for one in found] == [
        ("orders", 2, 6, 2, 2),
        ("orders", 1, 1, 0, 0),
        ("other", 1, 1, 0, 0),
    ]
    assert [(one["keyed"], one["retried"], one["queues"]) for one in found] == [(2, 0, 1), (0, 1, 1), (0, 0, 1)]
    assert [(one["size_p50"], one["size_max"], one["delay_p50_ms"], one["delay_max_ms"]) for one in found] == [
        (2, 4, 1000, 10_000),
        (1, 1, 1000, 1000),
        (1, 1, 1000, 1000),
    ]
    skew = [(one.queue_id, one.messages, one.share) for one in queues(frame(session, rows[:3])).collect()]
    assert skew == [(0, 2, pytest.approx(4 / 3)), (1, 1, pytest.approx(2 / 3))]


def test_an_invalid_span_is_named(session: Any) -> None:
    """With the allowed values."""
    with pytest.raises(ConfigError, match="every is 'daily'; allowed: a number and second"):
        stats(frame(session, [row(0)]), every="daily")


def dead(offset: int, group: str = "billing", **fields: Any) -> dict[str, Any]:
    """Return a dead letter of topic orders."""
    origin = {"DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": f"id{offset}"}
    properties = origin | fields.pop("properties", {})
    return row(offset, topic=f"%DLQ%{group}", properties=properties, reconsume_times=3, **fields)


def test_dead_letters_by_cause_and_as_a_list(session: Any) -> None:
    """By group, origin, reason without its details, and attempts; the list has the rows of the origin."""
    java = {"RETRY_TOPIC": "bills", "ORIGIN_MESSAGE_ID": "java"}
    rows = [
        *(dead(number, properties={"Error": f"ValueError: customer {number}", "k": "v"}) for number in range(3)),
        dead(3, properties={"reason": "late"}),
        row(0, topic="%DLQ%audit", properties=java, reconsume_times=16),
        row(0, topic="orders"),
    ]
    found = [one.asDict(recursive=True) for one in dead_letters(frame(session, rows)).collect()]
    assert [(one["consumer_group"], one["origin_topic"], one["reason"], one["messages"]) for one in found] == [
        ("billing", "orders", "ValueError", 3),
        ("audit", "bills", None, 1),
        ("billing", "orders", "late", 1),
    ]
    assert found[0]["last_time"] - found[0]["first_time"] == timedelta(seconds=2)
    assert {one["message_id"] for one in found[0]["samples"]} >= {"id0", "id2"}
    names = ("topic", "queue_id", "message_id", "properties")
    listed = sorted((tuple(one) for one in replay_list(frame(session, rows)).select(*names).collect()), key=str)
    assert listed[0] == ("bills", 0, "java", {})
    assert [one[:3] for one in listed[1:]] == [("orders", 1, f"id{number}") for number in range(4)]
    assert listed[1][3] == {"Error": "ValueError: customer 0", "k": "v"}


def test_a_brokers_dead_letters_are_listed_and_replayed(
    session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a broker's store: dead letters with their cause, the group's lag, and a replay to the origin."""
    store, listed = tmp_path / "store", tmp_path / "list"
    with ferromq.embedded(store, flush="group") as mq:  # a log is read up to what is flushed
        with mq.admin() as admin:
            admin.create_group("billing", retries=0)
        with mq.producer() as producer:
            producer.send("orders", b"bad", keys="k1", properties={"error": "NoCustomer"})
        refuse(mq)
        assert cli.main(["pipeline", "dead-letters", "--log", str(store), "--replay-list", str(listed), "--json"]) == 1
        said = json.loads(capsys.readouterr().out)
        (cause,) = said["by_cause"]
        assert (cause["consumer_group"], cause["origin_topic"], cause["reason"]) == ("billing", "orders", "ValueError")
        words = ["replay", "--archive", str(listed), "--topic", "orders", "--to-endpoint", mq.endpoint]
        assert cli.main(["pipeline", *words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["sent"] == 1
        with mq.consumer("second", "orders") as consumer:
            bodies = {message.body: message for message in consumer.receive(10, wait=PATIENCE)}
        assert set(bodies) == {b"bad"}
    assert cli.main(["pipeline", "stats", "--log", str(store), "--topic", "orders", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["messages"] == 2
    assert [one.lag for one in lags(session, str(store), ["orders"]).where("consumer_group = 'billing'").collect()]


def refuse(mq: ferromq.Embedded) -> None:
    """Let the group billing fail at every message, until it has a dead letter."""
    with mq.consumer("billing", "orders") as consumer, mq.consumer("look", "%DLQ%billing") as look:

        def fail(_message: ferromq.MessageView) -> None:
            raise ValueError("no such customer")

        running = threading.Thread(target=consumer.run, args=(fail,))
        running.start()
        (message,) = look.receive(wait=PATIENCE)
        consumer.stop()
        running.join(PATIENCE)
    assert message.body == b"bad"


def test_brokers_are_queried_for_the_lag_of_a_group() -> None:
    """Over either protocol; queues without a committed offset are skipped."""
    with ferromq.embedded() as mq:
        with mq.admin() as admin:
            admin.create_topic("orders", 1)
        with mq.producer() as producer:
            producer.send_all("orders", [b"x"] * 5)
        dispatched(mq)
        with mq.consumer("billing", "orders") as consumer:
            (queue,) = consumer.queues()
            consumer.commit_offset(queue, 2)
        for where in (ClusterAddress(endpoint=mq.endpoint), ClusterAddress(namesrv=mq.namesrv)):
            assert group_lags.lags(where, ["orders"], ["billing", "nobody"]) == [("orders", "billing", 0, 2, 5, 3)]
