"""
Messages of every kind, how either side stores them, and the expected reads.

The expectation is made from the messages and the bytes of the log files, never by a reader of ours.
"""

import hashlib
import ipaddress
import random
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ferromq._ferromq import Clock, Store

V4, V6 = "10.1.2.3:40001", "[2001:db8::7]:40002"
COMMITTED, HALF, ROLLED_BACK = 8, 4, 12
# Compressed, several tags, to be unwrapped, and the numbers of the ways to compress; 16 and 32 come with the hosts.
SYS_FLAGS = (0, 1, 2, 1 | 1 << 8, 1 | 2 << 8, 1 | 3 << 8, 64, COMMITTED, COMMITTED | 1, HALF, ROLLED_BACK, HALF | 2)
LONG_TOPICS = tuple(f"long-{length}-".ljust(length, "x") for length in (127, 128, 200, 255))
_BORN = 1_700_000_000_000


@dataclass(frozen=True)
class Message:
    """A message to store."""

    topic: str
    queue_id: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    body_length: int = 10
    body_byte: int = 65
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = _BORN
    born_host: str = V4
    reconsume_times: int = 0
    prepared: int = 0

    @property
    def body(self) -> bytes:
        """The body: one byte, repeated."""
        return bytes([self.body_byte]) * self.body_length

    @property
    def is_queued(self) -> bool:
        """Whether it enters its queue."""
        return self.sys_flag & ROLLED_BACK in (0, COMMITTED)

    @property
    def keys(self) -> list[str]:
        """What it is found by."""
        if self.sys_flag & ROLLED_BACK == ROLLED_BACK:
            return []
        unique = self.properties.get("UNIQ_KEY")
        return ([unique] if unique else []) + [key for key in self.properties.get("KEYS", "").split(" ") if key]

    @property
    def property_text(self) -> str:
        """The properties as they are stored."""
        return "".join(f"{name}\x01{value}\x02" for name, value in self.properties.items())

    def line(self, store_host: str) -> str:
        """Return the Java side's input for it."""
        body = (str(self.body_length), str(self.body_byte))
        numbers = (self.queue_id, self.flag, self.sys_flag, self.born_timestamp)
        return "\t".join(
            (
                self.topic,
                *map(str, numbers),
                _host(self.born_host),
                _host(store_host),
                str(self.reconsume_times),
                str(self.prepared),
                self.property_text.encode().hex(),
                *body,
            )
        )


@dataclass(frozen=True)
class Placed:
    """A message that was stored, and where."""

    message: Message
    store_host: str
    queue_offset: int
    physical_offset: int
    has_property_crc: bool = False


def bulk(count: int, *, topic: str = "bulk", queues: int = 4, seed: int = 1) -> Iterator[Message]:
    """Make many small messages with keys, tags and unique keys."""
    chance = random.Random(seed)
    for number in range(count):
        properties = {"KEYS": f"k{number} every{number % 1000}", "TAGS": f"t{number % 7}", "who": "bulk ä€😀"}
        if number % 3 == 0:
            properties["UNIQ_KEY"] = f"{topic}-{seed}-{number:010X}"
        yield Message(
            topic,
            chance.randrange(queues),
            properties,
            chance.randrange(200),
            number % 256,
            flag=number,
            born_timestamp=_BORN + number,
        )


def odd_ones() -> Iterator[Message]:
    """Make messages of every kind: flags, hosts, long topics, bodies of all sizes, properties up to the limit."""
    number = 0
    for sys_flag in SYS_FLAGS:
        for host in (V4, V6):
            for topic in ("odd", "%RETRY%group", *LONG_TOPICS):
                number += 1
                yield Message(
                    topic,
                    number % 3,
                    {"KEYS": f"odd{number}", "UNIQ_KEY": f"U{number:032X}", "TAGS": "", "EMPTY": "x" * (number % 50)},
                    number,
                    number % 256,
                    flag=-number,
                    sys_flag=sys_flag,
                    born_timestamp=_BORN - number,
                    born_host=host,
                    reconsume_times=number % 5,
                    prepared=number if sys_flag & ROLLED_BACK else 0,
                )
    for length in (0, 1, 511, 4095, 4096, 65_536, 1 << 20, (4 << 20) - 1, 4 << 20):
        yield Message("sizes", 0, {"KEYS": f"size{length}"}, length)
    for length in (0, 1, 32_000):
        yield Message("sizes", 1, {"filler": "p" * length} if length else {}, 0)


def rounds_of(count: int, rounds: int) -> Iterator[list[Message]]:
    """Make the messages of a writer that works in rounds; the first one has every kind."""
    for number in range(rounds):
        yield [*bulk(count, seed=number), *(odd_ones() if number == 0 else ())]


def store_ours(store: Store, messages: Iterable[Message], options: Mapping[str, Any]) -> list[Placed]:
    """Append *messages* to our store, opened with *options*."""
    placed = []
    for message in messages:
        queue_offset, physical_offset = store.append(
            message.topic,
            message.queue_id,
            message.body,
            message.properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared,
        )
        host, crc = options.get("store_host", "127.0.0.1:10911"), bool(options.get("property_crc"))
        placed.append(Placed(message, host, queue_offset, physical_offset, crc))
    return placed


class Log:
    """The bytes of a directory's commit log."""

    def __init__(self, *directories: Path) -> None:
        found = (path for directory in directories for path in directory.iterdir() if path.is_file())
        self._files = sorted((int(path.name), path.read_bytes()) for path in found)

    def record(self, physical_offset: int) -> bytes:
        """Return the record's bytes."""
        base, content = next((base, content) for base, content in reversed(self._files) if base <= physical_offset)
        at = physical_offset - base
        return content[at : at + struct.unpack_from(">I", content, at)[0]]


def line_of(placed: Placed, record: bytes) -> str:
    """Return the expected line of the Java side for a message: its place, its bytes, and each field."""
    message = placed.message
    born_v6, store_v6 = message.born_host.startswith("["), placed.store_host.startswith("[")
    properties = {name: value for name, value in message.properties.items() if value}
    if placed.has_property_crc:
        properties["__CRC32#"] = record[-11:-1].decode()
    text = "".join(f"{name}\x01{value}\x02" for name, value in sorted(properties.items()))
    return "\t".join(
        (
            str(placed.physical_offset),
            _sha(record),
            message.topic,
            str(message.queue_id),
            str(placed.queue_offset),
            str(len(record)),
            str(message.flag),
            str(message.sys_flag | 16 * born_v6 | 32 * store_v6),
            str(message.born_timestamp),
            _host(message.born_host),
            str(struct.unpack_from(">q", record, 68 if born_v6 else 56)[0]),
            _host(placed.store_host),
            str(message.reconsume_times),
            str(message.prepared),
            str(message.body_length),
            _sha(message.body),
            _sha(text.encode()),
        )
    )


def lines_by_queue(placed: Iterable[Placed], log: Log, made: Mapping[int, str] | None = None) -> list[str]:
    """Return the expected lines of every queue; *made* has lines by physical offset that exist already."""
    queued = [one for one in placed if one.message.is_queued]
    queued.sort(key=lambda one: (one.message.topic, one.message.queue_id, one.queue_offset))
    lines = []
    for one in queued:
        place = f"{one.message.topic}\t{one.message.queue_id}\t{one.queue_offset}"
        line = made[one.physical_offset] if made else line_of(one, log.record(one.physical_offset))
        lines.append(f"{place}\t{line}")
    return lines


def places_by_key(placed: Iterable[Placed]) -> dict[tuple[str, str], list[int]]:
    """Return the physical offsets of the messages of each topic and key."""
    places: dict[tuple[str, str], list[int]] = {}
    for one in placed:
        for key in one.message.keys:
            places.setdefault((one.message.topic, key), []).append(one.physical_offset)
    return {key: sorted(where) for key, where in places.items()}


def java_hash(text: str) -> int:
    """Return the hash an index file keeps of a key: the absolute value of Java's."""
    value = 0
    for character in text:
        value = (value * 31 + ord(character)) & 0xFFFF_FFFF
    return abs(value - (value >> 31 << 32))


def read_ours(store: Store) -> list[str]:
    """Read every queue of our store and return the lines that Java returns for the same messages."""
    lines = []
    for topic, queues in sorted(store.queues().items()):
        for queue_id in sorted(queues):
            at, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            while at < end:
                _, messages, at = store.get(topic, queue_id, at, 500)
                lines += [f"{topic}\t{queue_id}\t{one.queue_offset}\t{_line_of_stored(one)}" for one in messages]
    return lines


def _line_of_stored(stored: Any) -> str:
    placed = Placed(
        Message(
            stored.topic,
            stored.queue_id,
            {name: value for name, value in stored.properties.items() if name != "__CRC32#"},
            flag=stored.flag,
            sys_flag=stored.sys_flag & ~48,
            born_timestamp=stored.born_timestamp,
            born_host=stored.born_host,
            reconsume_times=stored.reconsume_times,
            prepared=stored.prepared_transaction_offset,
        ),
        stored.store_host,
        stored.queue_offset,
        stored.physical_offset,
        "__CRC32#" in stored.properties,
    )
    words = line_of(placed, stored.raw).split("\t")
    words[10] = str(stored.store_timestamp)
    words[14:16] = str(len(stored.body)), _sha(stored.body)
    return "\t".join(words)


def open_ours(directory: Path, options: Mapping[str, Any]) -> Store:
    """Open our store with the machine's clock."""
    return Store(str(directory), Clock.system(), **options)


def with_crc(placed: Iterable[Placed]) -> list[Placed]:
    """Return the same messages, as stored with a property CRC."""
    return [replace(one, has_property_crc=True) for one in placed]


def _host(text: str) -> str:
    address, _, port = text.rpartition(":")
    return f"{ipaddress.ip_address(address.strip('[]')).packed.hex()}:{port}"


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).digest()[:12].hex()
