"""One Spark session for the tests of this folder, and brokers to read from."""

from collections.abc import Iterator
from typing import Any

import pytest

import ferromq

SETTINGS = {
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes the session, and give it the time that Java needs."""
    for item in items:
        if "session" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def session() -> Iterator[Any]:
    """Start Spark once; every test reads through it."""
    from ferromq import spark  # noqa: PLC0415 (only tests that start Spark need it)

    session = spark.session("local[2]", config=SETTINGS)
    yield session
    session.stop()


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Serve an empty store until the test ends."""
    with ferromq.embedded() as mq:
        yield mq
