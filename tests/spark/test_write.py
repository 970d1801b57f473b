"""`df.write.format("ferromq")` and `writeStream`: the topic has the rows of the DataFrame, once with exactly-once."""

import json
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dispatching import dispatched

import ferromq

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_write.py"
KILLED = Path(__file__).with_name("killed_writer.py")


def bodies(mq: ferromq.Embedded, topic: str) -> list[str]:
    """Return the bodies of all messages of a topic, once all are dispatched."""
    dispatched(mq)
    found: list[str] = []
    with mq.consumer("checker", topic) as consumer:
        for queue in consumer.queues():
            offset, end = 0, consumer.offset_at(queue, "end")
            while offset < end:
                messages, offset = consumer.pull(queue, offset, 1000)
                found += [message.body.decode() for message in messages]
    return found


def write(frame: Any, mq: ferromq.Embedded, **options: str) -> None:
    """Append a DataFrame to a topic, and return once it can be read."""
    frame.write.format("ferromq").options(endpoint=mq.endpoint, **options).mode("append").save()
    dispatched(mq)


def test_written_rows_are_read_back(session: Any, mq: ferromq.Embedded) -> None:
    """Body, keys, tag and properties, from the topics that the rows name."""
    rows = [("one", ["k1", "k2"], "a", {"x": "1"}, "first"), ("zwei", [], None, {}, None)]
    frame = session.createDataFrame(
        rows, "body string, keys array<string>, tag string, properties map<string,string>, topic string"
    )
    write(frame, mq, topic="second")
    columns = "keys,tag,properties,body"
    reader = session.read.format("ferromq").options(endpoint=mq.endpoint, columns=columns)
    found = {topic: reader.option("topic", topic).load().collect() for topic in ("first", "second")}
    assert [tuple(row) for row in found["first"]] == [(["k1", "k2"], "a", {"x": "1"}, bytearray(b"one"))]
    assert [tuple(row) for row in found["second"]] == [([], None, {}, bytearray(b"zwei"))]


def test_a_batch_written_again_with_its_writer_id_is_stored_once(session: Any, mq: ferromq.Embedded) -> None:
    """Without an id everything is stored again; the broker counts the duplicates."""
    frame = session.range(0, 3000, 1, 3).selectExpr("cast(id as string) body", "concat('k', id) keys")
    once = {"topic": "once", "delivery": "exactly-once", "writerId": "job-1"}
    for _ in range(2):
        write(frame, mq, **once)
        write(frame, mq, topic="each")
    assert sorted(map(int, bodies(mq, "once"))) == list(range(3000))
    assert Counter(map(int, bodies(mq, "each"))) == dict.fromkeys(range(3000), 2)
    write(frame, mq, **{**once, "writerId": "job-2"})
    assert len(bodies(mq, "once")) == 6000


def test_the_example_sums_what_it_wrote_twice(session: Any) -> None:
    """examples/spark_write.py stores each sale once."""
    main = runpy.run_path(str(EXAMPLE))["main"]
    assert main() == {"tea": 8, "coffee": 5, "milk": 2}


@pytest.mark.parametrize("delivery", [{}, {"delivery": "exactly-once", "writerId": "w"}])
def test_a_row_that_is_refused_fails_the_job_and_is_named(
    session: Any, mq: ferromq.Embedded, delivery: dict[str, str]
) -> None:
    """The error has the row and the column."""
    frame = session.range(0, 20, 1, 1).selectExpr("cast(id as string) body", "if(id = 13, 'a|b', 'a') tag")
    with pytest.raises(Exception, match="row 13: column 'tag'"):
        write(frame, mq, topic="refused", **delivery)
    large = session.range(0, 3, 1, 1).selectExpr("if(id = 2, repeat('x', 5000000), 'x') body")
    with pytest.raises(Exception, match=r"row 2.*'body'.*5000000 bytes"):
        write(large, mq, topic="refused", **delivery)
    with pytest.raises(Exception, match="overwrite"):
        frame.write.format("ferromq").options(endpoint=mq.endpoint, topic="x").mode("overwrite").save()


def run(*words: object) -> dict[str, Any]:
    """Run the program whose writer is killed; return its output, or nothing if it was killed."""
    done = subprocess.run([sys.executable, str(KILLED), *map(str, words)], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        assert done.returncode == -9, done.stderr[-4000:]
        return {}
    said: dict[str, Any] = json.loads(lines[-1])
    return said


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_writer_killed_while_it_writes_stores_each_row_once(mq: ferromq.Embedded, tmp_path: Path) -> None:
    """Spark runs the task again: exactly-once stores each row once, at-least-once some rows twice."""
    said = run("batch", mq.endpoint, tmp_path)
    assert said == {"killed": 2}
    assert sorted(map(int, bodies(mq, "once"))) == list(range(4000))
    each = Counter(map(int, bodies(mq, "each")))
    assert sorted(each) == list(range(4000))
    assert max(each.values()) == 2


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_stream_whose_driver_is_killed_in_an_epoch_stores_each_row_once(mq: ferromq.Embedded, tmp_path: Path) -> None:
    """
    It is started again from its checkpoint, and the epoch is written again: the rows that were there stay single.

    Queues that were added meanwhile change nothing: the epoch keeps to those it was begun with.
    """
    for number in range(3):
        lines = "".join(f"{number * 1000 + line}\n" for line in range(1000))
        source = tmp_path / "source"
        source.mkdir(exist_ok=True)
        (source / f"{number}.txt").write_text(lines)
    assert run("stream", mq.endpoint, tmp_path) == {}
    before = len(bodies(mq, "stream"))
    assert 1000 < before < 2000, "killed in the middle of the second epoch"
    with mq.admin() as admin:
        admin.alter_topic("stream", queues=4 * mq.broker.config.default_queues)
    assert run("stream", mq.endpoint, tmp_path) == {"batch": 2}
    assert sorted(map(int, bodies(mq, "stream"))) == list(range(3000))
