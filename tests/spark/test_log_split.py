"""Large files of a store are split at records, whatever the bodies contain."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferromq.spark.log.files import LogPart
from ferromq.spark.log.split import split

FIXTURES = Path(__file__).parents[1] / "fixtures" / "store"


def records(name: str) -> list[int]:
    """Return the physical offsets of a fixture's records, as Java listed them."""
    lines = (FIXTURES / f"{name}.txt").read_text().splitlines()
    return [int(line.split("\t")[1]) for line in lines if line.startswith(("queued", "kept"))]


def parts_of(name: str) -> list[LogPart]:
    """Return the files of a fixture, unsplit."""
    files = sorted((FIXTURES / name / "commitlog").iterdir())
    return [
        LogPart(str(file), int(file.name), int(file.name), int(file.name) + file.stat().st_size, str(FIXTURES / name))
        for file in files
    ]


@pytest.mark.parametrize("name", ["stopped", "killed", "property-crc"])
@given(max_bytes=st.integers(300, 20_000))
@settings(deadline=None, max_examples=10)
def test_every_byte_is_in_one_part_and_every_part_begins_with_a_record(name: str, max_bytes: int) -> None:
    """With parts of any size, in a store of a Java broker, with queues of any length."""
    whole = parts_of(name)
    found = split(whole, max_bytes)
    for part in whole:
        pieces = [piece for piece in found if piece.url == part.url]
        assert [pieces[0].begin, *(piece.end for piece in pieces)] == [*(piece.begin for piece in pieces), part.end]
    starts = {*records(name), *(part.begin for part in whole)}
    assert {piece.begin for piece in found} <= starts
    if max_bytes < 4096:
        assert len(found) > len(whole)


def test_small_files_and_files_outside_a_store_are_not_split(tmp_path: Path) -> None:
    """Nothing is guessed from the bytes of a file."""
    whole = parts_of("stopped")
    assert split(whole, 16 << 10) == whole
    loose = [LogPart(part.url, part.first_offset, part.begin, part.end) for part in whole]
    assert split(loose, 100) == loose
    without_queues = [LogPart(part.url, part.first_offset, part.begin, part.end, str(tmp_path)) for part in whole]
    assert split(without_queues, 100) == without_queues
