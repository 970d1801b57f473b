"""Retention: a file is deleted when every message in it is old enough, and protected files stay."""

import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import ferromq

START = 1_700_000_000_000
SMALL = {"commit_log_file_size": 64 << 10, "consume_queue_file_entries": 50, "default_queues": 1}
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def clock() -> ferromq.Clock:
    """Return a clock that only the test moves."""
    return ferromq.Clock.manual(START)


@pytest.fixture
def mq(tmp_path: Path, clock: ferromq.Clock) -> Iterator[ferromq.Embedded]:
    """Start a broker with small files, whose messages live for an hour."""
    with ferromq.embedded(tmp_path, clock=clock, retention_age="1h", **SMALL) as embedded:
        yield embedded


def fill(mq: ferromq.Embedded, topic: str, count: int = 300) -> list[ferromq.SendReceipt]:
    """Send *count* messages of 1000 bytes; 60 of them fill a file."""
    with mq.producer() as producer:
        receipts = list(producer.send_all(topic, [b"%-1000d" % number for number in range(count)]))
    # Files that are not yet in the queues are not looked at.
    assert dispatched(mq)
    return receipts


def dispatched(mq: ferromq.Embedded) -> bool:
    """Wait until all that is stored is in the queues."""
    pause = threading.Event()

    def is_done() -> bool:
        stats = mq.store.stats()
        return stats["dispatched_offset"] == stats["max_physical_offset"]

    return any(is_done() or pause.wait(0.01) for _ in range(1000))


def logs(mq: ferromq.Embedded) -> list[str]:
    """Return the names of the commit log's files."""
    return sorted(path.name for path in (Path(mq.broker.config.store) / "commitlog").iterdir())


def minimum(mq: ferromq.Embedded, topic: str) -> int:
    """Return the first queue offset kept."""
    return mq.store.min_offset(topic, 0)


def test_files_of_old_messages_go_and_young_ones_stay(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Queue offsets stay, the min offset moves, and deleted messages are not served."""
    fill(mq, "orders")
    mq.clock.advance(minutes=50)
    young = fill(mq, "orders", 200)
    before = logs(mq)
    mq.clock.advance(minutes=20)
    assert eventually(lambda: minimum(mq, "orders") > 0 and logs(mq)[0] > before[0])
    mq.store.clean()  # the pass has ended
    # The file of the first young message holds old ones, too.
    assert 0 < minimum(mq, "orders") <= young[0].queue_offset
    assert mq.store.get("orders", 0, 0)[0] == "OFFSET_TOO_SMALL"
    with mq.consumer("late", "orders") as consumer:
        (first,) = consumer.receive(1, wait=5)
    assert first.queue_offset == minimum(mq, "orders")
    status, messages, _ = mq.store.get("orders", 0, young[0].queue_offset, 200)
    assert (status, len(messages)) == ("FOUND", 200)


def test_deleted_files_stay_deleted_after_a_restart(tmp_path: Path, clock: ferromq.Clock) -> None:
    """Offsets go on where they were."""
    with ferromq.embedded(tmp_path, clock=clock, retention_age="1h", **SMALL) as mq:
        fill(mq, "orders")
        clock.advance(hours=2)
        assert mq.store.clean()["failure"] is None
        minimum_before = minimum(mq, "orders")
        assert minimum_before > 0
    with ferromq.embedded(tmp_path, clock=clock, retention_age="1h", **SMALL) as mq:
        assert minimum(mq, "orders") == minimum_before
        assert fill(mq, "orders", 1)[0].queue_offset == 300


def test_a_topic_with_an_age_of_its_own_keeps_the_files_it_is_in(tmp_path: Path, clock: ferromq.Clock) -> None:
    """A file goes when every topic in it allows it."""
    with ferromq.embedded(
        tmp_path, clock=clock, retention_age="1h", retention_age_by_topic={"audit": "30d"}, **SMALL
    ) as mq:
        fill(mq, "orders")
        fill(mq, "audit", 1)
        fill(mq, "orders")
        clock.advance(hours=2)
        mq.store.clean()
        assert 0 < minimum(mq, "orders") < 300
        assert minimum(mq, "audit") == 0
        clock.advance(days=30)
        mq.store.clean()
        assert minimum(mq, "audit") == 1


def test_the_oldest_files_go_above_the_total_size(tmp_path: Path, clock: ferromq.Clock) -> None:
    """However young they are."""
    with ferromq.embedded(
        tmp_path, clock=clock, retention_age="forever", retention_total_bytes="256KiB", **SMALL
    ) as mq:
        fill(mq, "orders", 600)
        mq.store.clean()
        assert len(logs(mq)) <= 4
        assert minimum(mq, "orders") > 0


def test_files_wait_for_their_hour_unless_an_administrator_asks(mq: ferromq.Embedded) -> None:
    """In local time; `Admin.clean` deletes what has expired at whatever hour."""
    now = datetime.fromtimestamp(mq.clock.now_ms() / 1000)  # noqa: DTZ006 (local time is meant)
    mq.configure(retention_hours=[(now.hour + 5) % 24])
    fill(mq, "orders")
    mq.clock.advance(hours=2)
    mq.store.clean()
    assert minimum(mq, "orders") == 0
    with mq.admin() as admin:
        admin.clean()
    assert minimum(mq, "orders") > 0
    fill(mq, "orders")
    before = minimum(mq, "orders")
    mq.clock.advance(hours=3)
    mq.store.clean()
    assert minimum(mq, "orders") > before


def test_retention_changes_while_the_broker_runs(mq: ferromq.Embedded) -> None:
    """From the next check on; a fixed option is refused by name."""
    mq.configure(retention_age="10h")
    fill(mq, "orders")
    mq.clock.advance(hours=2)
    mq.store.clean()
    assert minimum(mq, "orders") == 0
    mq.configure(retention_age=timedelta(hours=1))
    mq.store.clean()
    assert minimum(mq, "orders") > 0
    assert mq.store.options()["retention_age"] == timedelta(hours=1)
    with pytest.raises(ferromq.ConfigError, match="commit_log_file_size cannot change while the store is open"):
        mq.configure(commit_log_file_size="1MiB")
    with pytest.raises(ferromq.ConfigError, match="did you mean retention_age"):
        mq.configure(retention_aeg="1h")


@pytest.mark.parametrize(
    ("option", "value", "off"),
    [
        ("retention_age", "5h", None),
        ("retention_total_bytes", "1GiB", None),
        ("retention_disk_usage", (75, 85, 90), None),
        ("retention_hours", (4, 5), ()),
        ("retention_age_by_topic", {"orders": "2h"}, {}),
        ("flush_every", {"orders": 5}, {}),
    ],
)
def test_none_switches_an_option_off(mq: ferromq.Embedded, option: str, value: object, off: object) -> None:
    """While the broker runs."""
    mq.configure(**{option: value})
    assert mq.store.options()[option] not in (off, None)  # type: ignore[literal-required]
    mq.configure(**{option: None})
    assert mq.store.options()[option] == off  # type: ignore[literal-required]


def test_without_an_age_no_file_is_deleted_for_its_age(mq: ferromq.Embedded) -> None:
    """However old it is."""
    mq.configure(retention_age=None)
    fill(mq, "orders")
    mq.clock.advance(days=30)
    mq.store.clean(now=True)
    assert minimum(mq, "orders") == 0


@pytest.mark.parametrize("option", ["flush", "retention_on_expiry"])
def test_a_required_option_cannot_be_switched_off(mq: ferromq.Embedded, option: str) -> None:
    """By name, and nothing changes."""
    before = mq.store.options()
    with pytest.raises(ferromq.ConfigError, match=f"{option} is None"):
        mq.configure(**{option: None})
    assert mq.store.options() == before


def test_only_what_changed_is_logged(mq: ferromq.Embedded, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing if nothing changed."""
    caplog.set_level("INFO", logger="ferromq.broker")
    mq.configure()
    mq.configure(retention_age="1h")
    mq.configure(retention_age="1h", retention_hours=[4])
    lines = [record.getMessage() for record in caplog.records if record.name == "ferromq.broker"]
    assert [line for line in lines if "changed" in line] == ["options changed retention_hours=(4,)"]
