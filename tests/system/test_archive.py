"""The archive hook: it gets each file before deletion, and a file that it did not take stays."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ferromq
from ferromq._ferromq import Store, decode_records
from ferromq.broker import controller

START = 1_700_000_000_000
Eventually = Callable[[Callable[[], bool]], bool]
SMALL = {"commit_log_file_size": 64 << 10, "default_queues": 1, "retention_age": "1h"}


def fill(mq: ferromq.Embedded, wait: Eventually) -> None:
    """Send messages that fill several files, and let them expire."""
    with mq.producer() as producer:
        producer.send_all("orders", [b"%-1000d" % number for number in range(300)])
    # Files that are not yet in the queues are not looked at.
    assert wait(lambda: mq.store.stats()["dispatched_offset"] == mq.store.stats()["max_physical_offset"])
    mq.clock.advance(hours=2)


def test_each_file_is_taken_whole_before_it_is_deleted(tmp_path: Path, eventually: Eventually) -> None:
    """The copied files together hold every message that is no longer served."""
    kept = tmp_path / "kept"
    kept.mkdir()
    taken: list[ferromq.ExpiredFile] = []

    def archive(file: ferromq.ExpiredFile) -> None:
        shutil.copy(file.path, kept)
        taken.append(file)

    with ferromq.embedded(tmp_path / "store", clock=ferromq.Clock.manual(START), archive=archive, **SMALL) as mq:
        fill(mq, eventually)
        report = mq.store.clean()
        gone = mq.store.min_offset("orders", 0)
        first = mq.store.message_at(report["min_physical_offset"])
    assert taken
    assert first is not None
    assert [(file.begin, file.path.name) for file in taken] == [
        (number * (64 << 10), f"{number * (64 << 10):020d}") for number in range(len(taken))
    ]
    assert taken[-1].end == first.physical_offset
    assert not any(file.path.exists() for file in taken)
    offsets = [message.queue_offset for path in sorted(kept.iterdir()) for message in decode_records(records(path))]
    assert offsets == list(range(gone))


def records(path: Path) -> bytes:
    """Return the records of a file, without the blank one at its end."""
    content = path.read_bytes()
    offset = 0
    while int.from_bytes(content[offset + 4 : offset + 8]) == 0xDAA320A7:
        offset += int.from_bytes(content[offset : offset + 4])
    return content[:offset]


def test_a_hook_that_fails_keeps_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    """The error is logged and named in the report; the file goes once the hook takes it."""
    fails = True

    def archive(_file: ferromq.ExpiredFile) -> None:
        if fails:
            raise OSError("the archive is away")

    with ferromq.embedded(tmp_path, clock=ferromq.Clock.manual(START), archive=archive, **SMALL) as mq:
        fill(mq, eventually)
        report = mq.store.clean(now=True)
        assert (report["removed_files"], report["refused_files"]) == (0, 1)
        assert "the archive is away" in report["failure"]
        assert mq.store.min_offset("orders", 0) == 0
        fails = False
        mq.store.clean(now=True)
        assert mq.store.min_offset("orders", 0) > 0
    assert any("archive hook failed" in record.message for record in caplog.records)


def test_without_a_hook_nothing_is_deleted_where_files_are_to_be_archived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, eventually: Eventually
) -> None:
    """The start fails with that reason."""
    options = {**SMALL, "retention_on_expiry": "archive"}
    with ferromq.embedded(tmp_path, clock=ferromq.Clock.manual(START), **options) as mq:
        fill(mq, eventually)
        assert "no archive hook" in mq.store.clean(now=True)["failure"]
        assert mq.store.min_offset("orders", 0) == 0
    assert any("no archive hook is set" in record.message for record in caplog.records)


@pytest.mark.parametrize("name", ["nowhere:take", "json:nothing", "json:decoder.NaN", "no name"])
def test_a_hook_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    """A server finds its hook by MODULE:FUNCTION."""
    from ferromq.broker.controller import BrokerController  # noqa: PLC0415

    config = ferromq.BrokerConfig(store=str(tmp_path), archive=name)
    with pytest.raises(ferromq.ConfigError, match=name):
        BrokerController(config)
    with pytest.raises(ferromq.ConfigError, match=name):
        ferromq.embedded(tmp_path, archive=name)


def test_a_hook_is_found_by_its_name_in_embedded_too(tmp_path: Path) -> None:
    """As a broker finds it; a value that is neither a name nor a function is refused."""
    with ferromq.embedded(tmp_path, archive="json:loads") as mq:
        assert mq.store.options()["retention_on_expiry"] == "archive"
    with pytest.raises(ferromq.ConfigError, match="archive is 5"):
        ferromq.embedded(tmp_path, archive=5)  # type: ignore[arg-type] # what is tested


def test_cleaning_during_the_start_waits_for_the_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """A store cleans from the moment it is open; the hook gets an expired file before its deletion."""
    with ferromq.embedded(tmp_path, clock=ferromq.Clock.manual(START), **{**SMALL, "retention_age": "forever"}) as mq:
        fill(mq, eventually)
    opened = controller.open_store
    removed: list[int] = []

    def open_and_clean(*arguments: Any, **options: Any) -> Store:
        store = opened(*arguments, **options)
        assert eventually(lambda: store.stats()["dispatched_offset"] == store.stats()["max_physical_offset"])
        removed.append(store.clean(now=True)["removed_files"])
        return store

    monkeypatch.setattr(controller, "open_store", open_and_clean)
    taken: list[ferromq.ExpiredFile] = []
    clock = ferromq.Clock.manual(START + 2 * 3_600_000)
    with ferromq.embedded(tmp_path, clock=clock, archive=taken.append, **SMALL) as mq:
        mq.store.clean(now=True)
        assert mq.store.min_offset("orders", 0) > 0
    assert removed == [0]
    assert taken
