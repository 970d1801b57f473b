"""`replay`: messages are sent again in order, and twice only if their progress was not saved."""

import json
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pipeline_rows import frame, row
from pyspark.errors import PythonException

import ferromq
from ferromq.errors import ConfigError
from ferromq.pipeline.replay import ORIGIN, replay


def rows(count: int, queues: int = 3) -> list[dict[str, Any]]:
    """Return messages of several queues that differ in every field."""
    rng = random.Random(1)
    return [
        row(
            number // queues,
            at=number / 100,
            queue_id=number % queues,
            message_id=f"id-{number}",
            keys=[f"k{number}", "all"][: number % 3],
            tag=f"t{number % 4}" if number % 5 else None,
            properties={"n": str(number)} if number % 2 else {},
            body=b"%d " % number + rng.randbytes(20),
        )
        for number in range(count)
    ]


def received(mq: ferromq.Embedded, topic: str, count: int) -> list[Any]:
    """Return the first *count* messages of *topic*."""
    found: list[Any] = []
    with mq.consumer("readers", topic) as consumer:
        for message in consumer:
            found.append(message)
            message.ack()
            if len(found) == count:
                return found
    raise AssertionError(found)


def test_a_replayed_message_is_unchanged(session: Any, mq: ferromq.Embedded) -> None:
    """Body, keys, tag and properties; properties describe the original; queues keep their order."""
    given = rows(300)
    report = replay(frame(session, given), mq.endpoint, to="again")
    assert {(one.queue_id, one.sent, one.sent_before, one.next_offset) for one in report.collect()} == {
        (queue, 100, 0, 100) for queue in range(3)
    }
    by_id = {made["message_id"]: made for made in given}
    queues: dict[tuple[int, str], list[int]] = defaultdict(list)
    for message in sorted(received(mq, "again", 300), key=lambda message: message.queue_offset):
        made = by_id.pop(message.properties[f"{ORIGIN}ID"])
        assert message.body == made["body"]
        assert (list(message.keys), message.tag) == (made["keys"], made["tag"])
        properties = dict(message.properties)
        origin = {name: properties.pop(f"{ORIGIN}{name}") for name in ("ID", "TOPIC", "HOST", "BORN", "STORED")}
        queue, offset = properties.pop(f"{ORIGIN}QUEUE"), int(properties.pop(f"{ORIGIN}OFFSET"))
        assert properties == made["properties"]
        assert (origin["TOPIC"], origin["HOST"]) == ("orders", "127.0.0.1:10911")
        assert int(origin["STORED"]) == round(made["store_timestamp"].timestamp() * 1000)
        assert int(origin["BORN"]) == int(origin["STORED"]) - 1000
        queues[message.queue_id, queue].append(offset)
    assert not by_id
    assert sorted(queues.values()) == [list(range(100))] * 3, "each queue went to one queue, in order"


def test_a_replay_keeps_the_intervals_of_store_times(session: Any, mq: ferromq.Embedded) -> None:
    """At half the speed, forty messages take twice as long; the order is that of store times."""
    given = rows(40, queues=1)
    begin = time.monotonic()
    replay(frame(session, given), mq.endpoint, to="rhythm", speed=0.5)
    assert time.monotonic() - begin >= 0.76
    messages = sorted(received(mq, "rhythm", 40), key=lambda message: message.queue_offset)
    assert [int(message.properties[f"{ORIGIN}OFFSET"]) for message in messages] == list(range(40))


def test_a_replay_that_ended_early_resumes(session: Any, mq: ferromq.Embedded, tmp_path: Path) -> None:
    """Messages recorded as sent are skipped, all others sent, within the rate."""
    given = rows(90)
    state = tmp_path / "state"
    first = replay(frame(session, given[:30]), mq.endpoint, to="again", state=str(state))
    assert sum(one.sent for one in first.collect()) == 30
    noted = [json.loads(path.read_text())["positions"] for path in state.glob("*.json")]
    assert sorted(position for task in noted for position in task) == [
        ["orders", "127.0.0.1:10911", queue, 10] for queue in range(3)
    ]
    begin = time.monotonic()
    second = replay(frame(session, given), mq.endpoint, to="again", rate=100, state=str(state))
    assert time.monotonic() - begin >= 0.58
    assert sorted((one.sent, one.sent_before, one.next_offset) for one in second.collect()) == [(20, 10, 30)] * 3
    ids = [message.properties[f"{ORIGIN}ID"] for message in received(mq, "again", 90)]
    assert sorted(ids) == sorted(made["message_id"] for made in given)
    with pytest.raises(ConfigError, match="allowed: the same replay"):
        replay(frame(session, given), mq.endpoint, to="elsewhere", state=str(state))


def test_wrong_arguments_name_what_is_allowed(session: Any, mq: ferromq.Embedded) -> None:
    """Before anything is sent; a message that cannot be sent is named by its position."""
    given = frame(session, rows(3))
    for wrong in ({"rate": 0}, {"speed": -1}, {"to": "no blanks"}):
        with pytest.raises((ConfigError, ferromq.IllegalName)):
            replay(given, mq.endpoint, **wrong)
    place = "topic 'orders', store host 127.0.0.1:10911, queue 0, queue offset 7"
    with pytest.raises(PythonException, match=f"{place}: the body is empty"):
        replay(frame(session, [row(7, body=b"")]), mq.endpoint)
