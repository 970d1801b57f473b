"""`ferromq pipeline audit`: no finding in a sound store, and each planted fault with its kind and position."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import store_faults
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ferromq._ferromq import Clock, Store
from ferromq.cli import main as cli
from ferromq.pipeline.audit import audit

FIXTURES = Path(__file__).parents[1] / "fixtures" / "store"
ROUNDS = int(os.environ.get("FERROMQ_AUDIT_ROUNDS", "0"))
"""How many stores with faults at random places are audited; 0: one, always the same."""
WRITER = """
import sys
from ferromq._ferromq import Clock, Store
store = Store(sys.argv[1], Clock.system(), commit_log_file_size=1 << 20, disk_reserve=0)
for number in range(100_000):
    store.append("live", number % 3, b"body" * 20, {"KEYS": f"k{number}", "TAGS": "live"})
    if number == 1000:
        print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with a region for each fault and one more."""
    directory = tmp_path_factory.mktemp("audit") / "store"
    store_faults.make(directory, len(store_faults.FAULTS) + 1)
    return directory


def test_a_sound_store_has_no_findings(session: Any, sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, and the figures count everything in it."""
    assert cli.main(["pipeline", "audit", str(sound), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    count = store_faults.RECORDS * (len(store_faults.FAULTS) + 1)
    assert (said["findings"], said["records"], said["queue_entries"], said["index_entries"]) == (
        0,
        count,
        count,
        2 * count,
    )


@pytest.mark.parametrize("name", ["stopped", "killed"])
def test_a_store_of_rocketmq_has_no_findings(name: str, session: Any) -> None:
    """Half messages, rolled-back ones, index entries of tags, a kill: all of it is legal."""
    assert audit(session, FIXTURES / name).collect() == []


def test_an_open_store_has_no_findings(session: Any, tmp_path: Path) -> None:
    """Records that its broker has not yet flushed or dispatched are skipped."""
    directory = tmp_path / "store"
    command = [sys.executable, "-c", WRITER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            assert audit(session, directory).collect() == []
            assert writer.poll() is None
        finally:
            writer.kill()


def test_keys_are_not_missed_where_no_index_was_built(session: Any, tmp_path: Path) -> None:
    """Keys before and after that range are checked."""
    options = {"commit_log_file_size": 1 << 20, "index_slots": 100, "index_entries": 400, "disk_reserve": 0}
    for enabled in (True, False, True):
        store = Store(str(tmp_path), Clock.system(), index_enabled=enabled, **options)
        for number in range(20):
            store.append("t", 0, b"body", {"KEYS": f"k{number}"})
        store.close()
    assert audit(session, tmp_path).collect() == []
    (index,) = (tmp_path / "index").iterdir()
    index.unlink()
    # Only some keys of the preceding message may be in the index.
    assert [row.kind for row in audit(session, tmp_path).collect()] == ["key-not-indexed"] * 39


@pytest.mark.timeout(300 * max(ROUNDS, 1))
@settings(
    max_examples=ROUNDS or 1,
    derandomize=not ROUNDS,
    database=None,
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**64 - 1))
def test_each_planted_fault_is_found_where_it_is(session: Any, sound: Path, seed: int) -> None:
    """All kinds of faults at random positions, each in a region of its own; the last region stays sound."""
    directory = sound.parent / "faulty"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(sound, directory)
    records = store_faults.records_of(directory)

    pick = random.Random(seed).randrange
    planted = {}
    for number, fault in enumerate(store_faults.FAULTS):
        region = store_faults.Region(directory, f"region{number:02}", records)
        planted[fault.__name__] = fault(region, pick)
    found = [row.asDict() for row in audit(session, directory).collect()]
    missed = [
        (name, expected)
        for name, expectations in planted.items()
        for expected in expectations
        if not any(row["kind"] in expected.kinds and row.items() >= expected.place.items() for row in found)
    ]
    assert missed == []
    assert [row for row in found if row["topic"] == f"region{len(store_faults.FAULTS):02}"] == []
