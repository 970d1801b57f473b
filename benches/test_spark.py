"""How many rows of 1 KiB a second does Spark read and write? local[2], the broker in the driver's process."""

from typing import Any

import pytest

import ferromq

pytest.importorskip("pyspark")

ROWS = 200_000
BODY = b"x" * 1024
QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}


@pytest.fixture(scope="module")
def session() -> Any:
    """Start Spark once."""
    from ferromq import spark  # noqa: PLC0415 (only where there is PySpark)

    session = spark.session("local[2]", config=QUIET)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def mq() -> Any:
    """Serve a topic of eight queues."""
    with ferromq.embedded() as mq, mq.producer() as producer:
        producer.send_all("bench", (ferromq.Message(BODY, keys=f"k-{n}", tag="t") for n in range(ROWS)))
        yield mq


@pytest.mark.timeout(600)
def test_batch_read_through_the_broker(benchmark: Any, session: Any, mq: ferromq.Embedded) -> None:
    """Sum the lengths of all bodies, so that each one really arrives; spark-sql-kafka does 288,000 rows a second so."""
    topic = session.read.format("ferromq").option("endpoint", mq.endpoint).option("topic", "bench").load()
    sums = topic.selectExpr("count(1) AS count", "sum(length(body)) AS bytes")
    row = benchmark.pedantic(sums.first, warmup_rounds=1, rounds=5)
    assert (row["count"], row["bytes"]) == (ROWS, ROWS * len(BODY))
    benchmark.extra_info["rows a second"] = round(ROWS / benchmark.stats.stats.median)
    print(f"\n{benchmark.extra_info['rows a second']:,} rows a second")


EXACTLY_ONCE = {"delivery": "exactly-once"}
PLAIN = "to_binary(repeat('x', 1024), 'utf-8') body"
FULL = (
    PLAIN,
    "concat('k-', id) keys",
    "concat('tag', id % 5) tag",
    "map('region', concat('r', id % 9), 'carrier', 'AA') properties",
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("columns", "delivery"), [((PLAIN,), {}), (FULL, {}), ((PLAIN,), EXACTLY_ONCE)], ids=["body", "all", "once"]
)
def test_batch_write(
    benchmark: Any, session: Any, mq: ferromq.Embedded, columns: tuple[str, ...], delivery: dict[str, str]
) -> None:
    """Write rows that Spark makes, in four partitions: the body alone, with keys, tag and properties, exactly once."""
    frame = session.range(0, ROWS, 1, 4).selectExpr(*columns)
    rounds = iter(range(100))

    def write() -> None:
        options = {"endpoint": mq.endpoint, "topic": "written", **delivery}
        if delivery:
            options["writerId"] = f"round-{next(rounds)}"
        frame.write.format("ferromq").options(**options).mode("append").save()

    before = mq.store.stats()["appended"]
    benchmark.pedantic(write, warmup_rounds=1, rounds=3)
    assert mq.store.stats()["appended"] - before == 4 * ROWS
    benchmark.extra_info["rows a second"] = round(ROWS / benchmark.stats.stats.median)
    print(f"\n{benchmark.extra_info['rows a second']:,} rows a second")
