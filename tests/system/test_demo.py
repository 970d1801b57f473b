"""The demo's steps on a small slice, and that each notices what is wrong. With Spark: tests/spark."""

from dataclasses import replace
from pathlib import Path

import pytest

import ferromq
from ferromq.demo import flights as data
from ferromq.demo import killed_broker as kill
from ferromq.demo import main as demo

ROWS = 2000


@pytest.fixture(scope="module")
def flights() -> data.Flights:
    """Read the slice once."""
    return data.load(ROWS)


def test_rows_go_round_unchanged(flights: data.Flights) -> None:
    """Sent, consumed, found by key and by id: each step compares with the table itself."""
    with ferromq.embedded() as mq:
        message_ids, sent = demo.send(mq, flights)
        consumed = demo.consume(mq, flights, message_ids)
        queried = demo.query(mq, flights, message_ids)
    assert [sent.count, consumed.count, queried.count] == [ROWS, ROWS, 2]


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_acknowledged_rows_survive_the_kill(flights: data.Flights, tmp_path: Path) -> None:
    """The child is killed, and every acknowledged row is there; a fast one may have sent them all before."""
    step = demo.survive_kill(flights, tmp_path)
    assert ROWS // 10 <= step.count <= ROWS


def test_a_changed_row_is_noticed(flights: data.Flights) -> None:
    """The error names the row."""
    bodies = [*flights.bodies]
    bodies[7] = bodies[7].replace(b'"origin":"', b'"origin":"X')
    with pytest.raises(data.Mismatch, match="1 rows differ, the first is row 7"):
        flights.compare(bodies)


def test_a_missing_row_is_noticed(flights: data.Flights) -> None:
    """Fewer rows are not the table."""
    with pytest.raises(data.Mismatch, match=f"rows: {ROWS - 1}, not {ROWS}"):
        flights.compare(flights.bodies[1:])


def test_a_wrong_mean_is_noticed(flights: data.Flights) -> None:
    """Counts and means are compared for each carrier; unknown delays do not count."""
    groups = flights.table.groupby("carrier").dep_delay
    found = {carrier: (len(delays), float(delays.dropna().mean())) for carrier, delays in groups}
    flights.compare_carriers(found)
    count, mean = found["UA"]
    for wrong in [(count + 1, mean), (count, mean + 1e-3), (count, None)]:
        with pytest.raises(data.Mismatch, match="UA"):
            flights.compare_carriers({**found, "UA": wrong})


def test_a_lost_message_is_noticed(flights: data.Flights) -> None:
    """Consuming ends with the count of what never came."""
    with ferromq.embedded() as mq:
        message_ids, _ = demo.send(mq, flights)
        more = replace(flights, bodies=[*flights.bodies, b"{}"], tags=[*flights.tags, ""], keys=[*flights.keys, ""])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo, "PATIENCE", demo.PATIENCE * 0)
            with pytest.raises(data.Mismatch, match=f"rows received: {ROWS}, not {ROWS + 1}"):
                demo.consume(mq, more, [*message_ids, "never stored"])


def test_a_hole_after_the_kill_is_noticed(flights: data.Flights) -> None:
    """Every acknowledged row at its place, offsets without a gap, rows of a queue in order."""
    with (
        ferromq.embedded() as mq,
        mq.producer() as producer,
        mq.consumer("after-kill", kill.TOPIC) as consumer,
    ):
        messages = [
            ferromq.Message(body, properties={"row": str(row)}) for row, body in enumerate(flights.bodies[:200])
        ]
        receipts = [
            receipt for at in range(0, 200, 50) for receipt in producer.send_all(kill.TOPIC, messages[at : at + 50])
        ]
        acknowledged = {(r.queue_id, r.queue_offset): (row, r.message_id) for row, r in enumerate(receipts)}
        found: dict[tuple[int, int], ferromq.MessageView] = {}
        for message in demo.until_quiet(consumer, lambda: len(found) == 200):
            found[message.queue_id, message.queue_offset] = message
    kill.compare(flights, acknowledged, found)

    first, second = sorted(found)[:2]
    with pytest.raises(data.Mismatch, match="was acknowledged at"):
        kill.compare(flights, acknowledged, {place: m for place, m in found.items() if place != first})
    with pytest.raises(data.Mismatch, match="message id at"):
        kill.compare(flights, acknowledged, {**found, first: found[second]})
    with pytest.raises(data.Mismatch, match="queue offsets of queue"):
        kill.compare(flights, {}, {place: m for place, m in found.items() if place != first})
    with pytest.raises(data.Mismatch, match="not in the order"):
        kill.compare(flights, {}, {**found, first: found[second], second: found[first]})
