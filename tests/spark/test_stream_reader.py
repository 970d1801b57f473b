"""The stream reader as Spark calls it, without Spark: calls of the driver and of a worker."""

import importlib.util
import pickle
import sys
from types import ModuleType
from typing import Any

import pytest
from dispatching import dispatched

import ferromq
from ferromq.errors import ConfigError
from ferromq.spark.schema import schema_of
from ferromq.spark.stream import reader as stream
from ferromq.spark.stream.plan import flat

limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="PySpark 4.1 has no limits")
ReadAllAvailable, ReadMaxRows = limits.ReadAllAvailable, limits.ReadMaxRows


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module as with a PySpark without admission control."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    spec = importlib.util.spec_from_file_location("ferromq_older_stream", stream.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def send(mq: ferromq.Embedded, count: int) -> None:
    """Send messages of two tags, and wait until they are readable."""
    with mq.producer() as producer:
        for number in range(count):
            producer.send("orders", b"%d" % number, tag="odd" if number % 2 else "even")
    dispatched(mq)


def bodies(reader: Any, start: Any, end: Any) -> list[int]:
    """Return the bodies of the batch, read by an unpickled copy of the reader, as in workers."""
    copy = pickle.loads(pickle.dumps(reader))
    batches = [batch for part in reader.partitions(start, end) for batch in copy.read(part)]
    return sorted(int(body) for batch in batches for body in batch.column("body").to_pylist())


def test_limits_and_the_end_are_as_spark_says(mq: ferromq.Embedded) -> None:
    """A limit, no limit, and the option's own; the default limit is never reached."""
    send(mq, 10)
    options = {"endpoint": mq.endpoint, "topic": "orders", "maxOffsetsPerTrigger": "4"}
    reader = stream.StreamReader(stream.parse_options(options), schema_of(["body"]))
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(4))
    assert len(bodies(reader, start, end)) == 4
    assert len(bodies(reader, end, reader.latestOffset(end, ReadAllAvailable()))) == 6
    assert sum(flat(reader.reportLatestOffset() or {}).values()) == 10
    reader.stop()


def test_columns_and_filters_of_the_options_count_for_streams(mq: ferromq.Embedded) -> None:
    """Rows are filtered before they reach Spark; the offsets of all messages count."""
    send(mq, 10)
    options = {"endpoint": mq.endpoint, "topic": "orders", "tags": "odd"}
    reader = stream.StreamReader(stream.parse_options(options), schema_of(["body", "tag"]))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sum(flat(end).values()) == 10
    assert bodies(reader, start, end) == [1, 3, 5, 7, 9]


def test_an_older_pyspark_reads_everything_and_rejects_limits(mq: ferromq.Embedded, older: ModuleType) -> None:
    """It asks for the latest offset without a start; an unsupported option is an error that names the version."""
    send(mq, 10)
    options = {"endpoint": mq.endpoint, "topic": "orders"}
    reader = older.StreamReader(older.parse_options(options), schema_of(["body"]))
    end = reader.latestOffset()
    assert bodies(reader, reader.initialOffset(), end) == list(range(10))
    assert reader.latestOffset() == end
    with pytest.raises(ConfigError, match=r"'maxOffsetsPerTrigger' is '4' and needs PySpark 4\.2"):
        older.parse_options({**options, "maxOffsetsPerTrigger": "4"})
