"""
A store of many regions, and faults to plant in them: one in each region, so that findings can be matched to faults.

A region is a topic whose records fill commit log files of their own; a fault changes only what belongs to its region.
"""

import json
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from ferromq import store_tools
from ferromq._ferromq import Clock, Store

LOG_FILE = 8 << 10
QUEUE_FILE = 40
RECORDS = 190
BODY_AT = 88
ENTRY = 20
SLOTS, ENTRIES = 50, 200
INDEX_HEAD = 40 + 4 * SLOTS

Pick = Callable[[int], int]
"""Chooses a number from 0 up to, not including, the given one."""


@dataclass(frozen=True)
class Record:
    """The position of a record and its entries."""

    topic: str
    queue_id: int
    queue_offset: int
    place: int
    size: int
    body_size: int


@dataclass(frozen=True)
class Expected:
    """A finding of one of *kinds* at this position."""

    kinds: Collection[str]
    place: dict[str, object]


def make(directory: Path, regions: int) -> None:
    """Make a closed store of *regions* regions, each with at least four files."""
    store = Store(
        str(directory),
        Clock.manual(1_700_000_000_000),
        commit_log_file_size=LOG_FILE,
        consume_queue_file_entries=QUEUE_FILE,
        index_slots=SLOTS,
        index_entries=ENTRIES,
        disk_reserve=0,
    )
    for region in range(regions):
        for number in range(RECORDS):
            properties = {"KEYS": f"k{number} all", "TAGS": ("even", "odd")[number % 2]}
            store.append(f"region{region:02}", number % 2, f"body {number:04} of {region:04}".encode(), properties)
    store.close()


class Region:
    """A topic of a store, to plant a fault in."""

    def __init__(self, directory: Path, topic: str, records: list[Record]) -> None:
        self.directory, self.topic = directory, topic
        mine = {record.place // LOG_FILE for record in records if record.topic == topic}
        others = {record.place // LOG_FILE for record in records if record.topic != topic}
        self.files = sorted(mine - others)
        """Numbers of the log files that hold nothing else."""
        self.records = [one for one in records if one.topic == topic and one.place // LOG_FILE in self.files]

    def log(self, number: int) -> Path:
        """Return a log file by its number."""
        return self.directory / "commitlog" / f"{number * LOG_FILE:020}"

    def any_record(self, pick: Pick) -> Record:
        """Choose a record that is neither the first nor the last of its file."""
        inner = [
            one
            for before, one, after in zip(self.records, self.records[1:], self.records[2:], strict=False)
            if before.place // LOG_FILE == one.place // LOG_FILE == after.place // LOG_FILE
        ]
        return inner[pick(len(inner))]

    def write(self, record: Record, at: int, data: bytes) -> None:
        """Write over bytes of a record."""
        write(self.log(record.place // LOG_FILE), record.place % LOG_FILE + at, data)

    def entry(self, record: Record) -> tuple[Path, int]:
        """Return the file and byte of a record's queue entry."""
        first = record.queue_offset // QUEUE_FILE * QUEUE_FILE * ENTRY
        path = self.directory / "consumequeue" / self.topic / str(record.queue_id) / f"{first:020}"
        return path, record.queue_offset % QUEUE_FILE * ENTRY

    def index_entry(self, pick: Pick) -> tuple[Path, int, int]:
        """Choose an index entry of a record of the region; return file, number, and the record's position."""
        places = {record.place for record in self.records}
        found = []
        for path in sorted((self.directory / "index").iterdir()):
            data = path.read_bytes()
            for number in range(1, struct.unpack_from(">i", data, 36)[0]):
                (place,) = struct.unpack_from(">q", data, INDEX_HEAD + number * ENTRY + 4)
                if place in places:
                    found.append((path, number, place))
        return found[pick(len(found))]


def write(path: Path, at: int, data: bytes) -> None:
    """Write over bytes of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int, bits: int) -> None:
    """Change bits of a byte."""
    write(path, at, bytes([path.read_bytes()[at] ^ bits]))


def at_queue_offset(record: Record, *kinds: str) -> Expected:
    """Expect a finding at the queue offset of a record."""
    place = {"topic": record.topic, "queue_id": record.queue_id, "queue_offset": record.queue_offset}
    return Expected(kinds, place)


def at_physical_offset(record: Record, *kinds: str) -> Expected:
    """Expect a finding at the physical offset of a record."""
    return Expected(kinds, {"physical_offset": record.place})


NO_RECORD = ("no-record", "record-lengths", "record-offset")


def body_byte(region: Region, pick: Pick) -> list[Expected]:
    """Change a byte of a body."""
    record = region.any_record(pick)
    at = record.place % LOG_FILE + BODY_AT + pick(record.body_size)
    flip(region.log(record.place // LOG_FILE), at, 1 << pick(8))
    return [Expected(["body-checksum"], {**at_queue_offset(record).place, "physical_offset": record.place})]


def header_byte(region: Region, pick: Pick) -> list[Expected]:
    """Change a byte of the magic code or of the physical offset."""
    record = region.any_record(pick)
    at = (4, 5, 6, 7, 31, 32, 33, 34, 35)[pick(9)]
    flip(region.log(record.place // LOG_FILE), record.place % LOG_FILE + at, 1 << pick(8))
    return [at_physical_offset(record, *NO_RECORD), at_queue_offset(record, "entry-without-record")]


def wrong_size(region: Region, pick: Pick) -> list[Expected]:
    """Make the size of a record larger or smaller than its fields."""
    record = region.any_record(pick)
    region.write(record, 0, struct.pack(">i", record.size + 1 + pick(20)))
    return [at_physical_offset(record, *NO_RECORD), at_queue_offset(record, "entry-without-record")]


def torn_record(region: Region, pick: Pick) -> list[Expected]:
    """Truncate a record in its body."""
    record = region.any_record(pick)
    at = BODY_AT + pick(record.body_size)
    region.write(record, at, bytes(record.size - at))
    return [at_physical_offset(record, "body-checksum", *NO_RECORD)]


def foreign_bytes(region: Region, pick: Pick) -> list[Expected]:
    """Overwrite a record with other bytes."""
    record = region.any_record(pick)
    region.write(record, 0, bytes(pick(255) + 1 for _ in range(record.size)))
    return [at_physical_offset(record, *NO_RECORD), at_queue_offset(record, "entry-without-record")]


def inserted_bytes(region: Region, pick: Pick) -> list[Expected]:
    """Insert bytes between two records, so that later records move."""
    record = region.any_record(pick)
    path, at = region.log(record.place // LOG_FILE), record.place % LOG_FILE
    data = path.read_bytes()
    path.write_bytes((data[:at] + bytes(pick(255) + 1 for _ in range(1 + pick(40))) + data[at:])[:LOG_FILE])
    return [at_physical_offset(record, *NO_RECORD), at_queue_offset(record, "entry-without-record")]


def wrong_queue_offset(region: Region, pick: Pick) -> list[Expected]:
    """Change the queue offset in a record."""
    record = region.any_record(pick)
    region.write(record, 20, struct.pack(">q", record.queue_offset + 100_000))
    return [at_queue_offset(record, "entry-of-other-record"), at_physical_offset(record, "record-without-entry")]


def second_record(region: Region, pick: Pick) -> list[Expected]:
    """Give two records the same queue offset."""
    record = region.any_record(pick)
    other = next(one for one in region.records if one.queue_id == record.queue_id and one.place != record.place)
    region.write(record, 20, struct.pack(">q", other.queue_offset))
    return [at_physical_offset(record, "duplicate-queue-offset"), at_queue_offset(record, "entry-of-other-record")]


def other_topic(region: Region, pick: Pick) -> list[Expected]:
    """Change the last letter of a record's topic."""
    record = region.any_record(pick)
    region.write(record, BODY_AT + record.body_size + len(region.topic), b"~")
    return [at_queue_offset(record, "entry-of-other-record"), at_physical_offset(record, "record-without-entry")]


def half_message(region: Region, pick: Pick) -> list[Expected]:
    """Mark a record that has an entry as a half message."""
    record = region.any_record(pick)
    region.write(record, 36, struct.pack(">i", 4))
    return [at_queue_offset(record, "transaction-flag")]


def entry_elsewhere(region: Region, pick: Pick) -> list[Expected]:
    """Point an entry to another record."""
    record = region.any_record(pick)
    other = next(one for one in region.records if one.place != record.place)
    write(*region.entry(record), struct.pack(">q", other.place))
    return [at_queue_offset(record, "entry-of-other-record"), at_physical_offset(record, "record-without-entry")]


def entry_inside(region: Region, pick: Pick) -> list[Expected]:
    """Point an entry into a record."""
    record = region.any_record(pick)
    write(*region.entry(record), struct.pack(">q", record.place + 1 + pick(record.size - 1)))
    return [at_queue_offset(record, "entry-without-record"), at_physical_offset(record, "record-without-entry")]


def entry_beyond(region: Region, pick: Pick) -> list[Expected]:
    """Point an entry behind the log."""
    record = region.any_record(pick)
    write(*region.entry(record), struct.pack(">q", 1 << 40))
    return [at_queue_offset(record, "entry-without-record"), at_physical_offset(record, "record-without-entry")]


def entry_size(region: Region, pick: Pick) -> list[Expected]:
    """Change the size in an entry."""
    record = region.any_record(pick)
    path, at = region.entry(record)
    write(path, at + 8, struct.pack(">i", record.size + 1 + pick(1000)))
    return [at_queue_offset(record, "entry-size")]


def entry_tag(region: Region, pick: Pick) -> list[Expected]:
    """Change the tag hash in an entry."""
    record = region.any_record(pick)
    path, at = region.entry(record)
    flip(path, at + 16 + pick(4), 1 << pick(8))
    return [at_queue_offset(record, "entry-tag-hash")]


def missing_entry(region: Region, pick: Pick) -> list[Expected]:
    """Zero an entry between others."""
    record = region.any_record(pick)
    path, at = region.entry(record)
    write(path, at, bytes(ENTRY))
    return [at_queue_offset(record, "record-without-entry"), at_queue_offset(record, "queue-gap")]


def filler_entry(region: Region, pick: Pick) -> list[Expected]:
    """Replace an entry between others by a filler."""
    record = region.any_record(pick)
    path, at = region.entry(record)
    write(path, at, struct.pack(">qiq", 0, 0x7FFFFFFF, 0))
    return [at_queue_offset(record, "record-without-entry"), at_queue_offset(record, "filler-inside")]


def entry_too_many(region: Region, pick: Pick) -> list[Expected]:
    """Add an entry after the last one of a queue."""
    last = Record(region.topic, pick(2), RECORDS // 2, 0, 0, 0)
    write(*region.entry(last), struct.pack(">qiq", 1 << 41, 130, 0))
    return [at_queue_offset(last, "entry-without-record")]


def swapped_entries(region: Region, pick: Pick) -> list[Expected]:
    """Swap two entries of a queue file."""
    record = region.any_record(pick)
    path, at = region.entry(record)
    data = path.read_bytes()
    other = at - ENTRY if at else ENTRY
    write(path, at, data[other : other + ENTRY])
    write(path, other, data[at : at + ENTRY])
    return [at_queue_offset(record, "entry-of-other-record"), Expected(["entry-order"], {"topic": region.topic})]


def missing_queue_file(region: Region, pick: Pick) -> list[Expected]:
    """Delete a queue file between others."""
    record = next(
        one for one in region.records if QUEUE_FILE <= one.queue_offset < 2 * QUEUE_FILE and one.queue_id == pick(2)
    )
    path, _ = region.entry(record)
    path.unlink()
    return [Expected(["missing-file"], {"file": str(path)}), at_queue_offset(record, "record-without-entry")]


def swapped_queues(region: Region, _: Pick) -> list[Expected]:
    """Swap files of two queues."""
    first, second = (next(one for one in region.records if one.queue_id == queue) for queue in range(2))
    (one, _), (other, _) = region.entry(first), region.entry(second)
    here, there = one.read_bytes(), other.read_bytes()
    one.write_bytes(there)
    other.write_bytes(here)
    return [at_queue_offset(record, "entry-of-other-record") for record in (first, second)]


def missing_log_file(region: Region, pick: Pick) -> list[Expected]:
    """Delete a log file between others."""
    number = region.files[pick(len(region.files))]
    region.log(number).unlink()
    lost = [record for record in region.records if record.place // LOG_FILE == number]
    return [
        Expected(["missing-file"], {"file": str(region.log(number)), "physical_offset": number * LOG_FILE}),
        *(at_queue_offset(record, "entry-without-record") for record in lost),
    ]


def short_log_file(region: Region, pick: Pick) -> list[Expected]:
    """Truncate a log file at a record."""
    record = region.any_record(pick)
    path = region.log(record.place // LOG_FILE)
    path.write_bytes(path.read_bytes()[: record.place % LOG_FILE])
    return [
        Expected(["missing-file"], {"physical_offset": record.place}),
        at_queue_offset(record, "entry-without-record"),
    ]


def swapped_log_files(region: Region, _: Pick) -> list[Expected]:
    """Swap two log files."""
    paths = [region.log(number) for number in region.files[:2]]
    data = [path.read_bytes() for path in paths]
    for path, other in zip(paths, reversed(data), strict=True):
        path.write_bytes(other)
    return [Expected(["record-offset"], {"file": str(path)}) for path in paths]


def index_slot(region: Region, pick: Pick) -> list[Expected]:
    """Point a slot to an entry other than its newest."""
    path, number, _ = region.index_entry(pick)
    slot = struct.unpack_from(">I", path.read_bytes(), INDEX_HEAD + number * ENTRY)[0] % SLOTS
    write(path, 40 + 4 * slot, struct.pack(">i", 0))
    return [Expected(["index-chain"], {"file": str(path)})]


def index_chain(region: Region, pick: Pick) -> list[Expected]:
    """Point an index entry to itself."""
    path, number, _ = region.index_entry(pick)
    write(path, INDEX_HEAD + number * ENTRY + 16, struct.pack(">i", number))
    return [Expected(["index-chain"], {"file": str(path)})]


def index_hash(region: Region, pick: Pick) -> list[Expected]:
    """Give an index entry the hash of another key."""
    path, number, place = region.index_entry(pick)
    flip(path, INDEX_HEAD + number * ENTRY + pick(4), 1 << pick(7))
    return [
        Expected(["index-other-key"], {"file": str(path), "physical_offset": place}),
        Expected(["key-not-indexed"], {"physical_offset": place}),
    ]


def index_place(region: Region, pick: Pick) -> list[Expected]:
    """Point an index entry to an offset where no record begins."""
    path, number, place = region.index_entry(pick)
    write(path, INDEX_HEAD + number * ENTRY + 4, struct.pack(">q", place + 1))
    return [
        Expected(["index-entry-without-record"], {"file": str(path), "physical_offset": place + 1}),
        Expected(["key-not-indexed"], {"physical_offset": place}),
    ]


def index_header(region: Region, pick: Pick) -> list[Expected]:
    """Change the last offset in the header."""
    path, _, _ = region.index_entry(pick)
    flip(path, 31, 1 << pick(8))
    return [Expected(["index-header"], {"file": str(path)})]


def group_offset(region: Region, pick: Pick) -> list[Expected]:
    """Commit an offset beyond the queue."""
    path, queue = region.directory / "config" / "consumerOffset.json", pick(2)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"offsetTable": {f"{region.topic}@readers": {str(queue): RECORDS}}}))
    return [Expected(["offset-beyond-queue"], {"topic": region.topic, "queue_id": queue, "queue_offset": RECORDS})]


FAULTS: tuple[Callable[[Region, Pick], list[Expected]], ...] = (
    *(body_byte, header_byte, wrong_size, torn_record, foreign_bytes, inserted_bytes, wrong_queue_offset),
    *(second_record, other_topic, half_message, entry_elsewhere, entry_inside, entry_beyond, entry_size, entry_tag),
    *(missing_entry, filler_entry, entry_too_many, swapped_entries, missing_queue_file, swapped_queues),
    *(missing_log_file, short_log_file, swapped_log_files),
    *(index_slot, index_chain, index_hash, index_place, index_header, group_offset),
)


def records_of(directory: Path) -> list[Record]:
    """Return all records of a sound store in the order of the log."""
    return [
        Record(one.topic, one.queue_id, one.queue_offset, one.physical_offset, len(one.raw), len(one.body))
        for path in sorted((directory / "commitlog").iterdir())
        for one in store_tools.read_log_file(path)
    ]
