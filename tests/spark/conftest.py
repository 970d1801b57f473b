"""One Spark session for the tests of this folder, and brokers to read from."""

import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import ferromq

# Helpers of several test files, such as `pipeline_rows`.
sys.path.insert(0, str(Path(__file__).parent))

# For each Java process of Spark: its second compiler costs a test more time than it saves.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Files that start Java processes of their own and take long; they run first, so that workers end together.
_FIRST = ("test_cluster", "test_java_broker", "test_stream_kill", "test_write", "test_archive")
SETTINGS = {
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the session, and give them the time that Java needs."""
    items.sort(key=lambda item: item.path.stem not in _FIRST)
    for item in items:
        if "session" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def session() -> Iterator[Any]:
    """Start Spark once for all tests."""
    from ferromq import spark  # noqa: PLC0415 (only tests that start Spark need it)

    session = spark.session("local[2]", config=SETTINGS)
    yield session
    session.stop()


@pytest.fixture
def table() -> Callable[..., Any]:
    """Read a source as Spark's workers do, without Spark; returns an Arrow table."""
    import pyarrow as pa  # noqa: PLC0415
    from pyspark.sql.datasource import CaseInsensitiveDict  # noqa: PLC0415

    from ferromq.spark.arrow import arrow_schema  # noqa: PLC0415

    def read(source: type[Any], options: Mapping[str, object], filters: Sequence[Any] = ()) -> Any:
        given = source(CaseInsensitiveDict({name: str(value) for name, value in options.items()}))
        schema = given.schema()
        reader = given.reader(schema)
        read.left = list(reader.pushFilters(list(filters))) if filters else []  # type: ignore[attr-defined]
        # Spark pickles the reader before it asks for partitions.
        worker = pickle.loads(pickle.dumps(reader))
        read.partitions = pickle.loads(pickle.dumps(reader.partitions()))  # type: ignore[attr-defined]
        batches = [batch for part in read.partitions for batch in worker.read(part)]  # type: ignore[attr-defined]
        for batch in batches:
            batch.validate(full=True)
        return pa.Table.from_batches(batches, arrow_schema(schema))

    return read


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Serve an empty store until the test ends."""
    with ferromq.embedded() as mq:
        yield mq


@pytest.fixture
def begin() -> Callable[[Any], Any]:
    """
    Start a streaming query that is written, and again where it did not come to be.

    Spark gives the Python process of a source ten seconds to start, which a busy machine may not.
    """

    def start(writer: Any) -> Any:
        while True:
            query = writer.start()
            while query.isActive and query.status["message"].startswith("Initializing"):
                threading.Event().wait(0.02)
            if "failed to connect back" not in str(query.exception()):
                return query

    return start


@pytest.fixture
def again() -> Callable[[Callable[[], Any]], Any]:
    """Call a program that runs a streaming query, and once more each time the query did not come to be: see `begin`."""

    def call(program: Callable[[], Any]) -> Any:
        while True:
            try:
                return program()
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error):
                    raise

    return call
