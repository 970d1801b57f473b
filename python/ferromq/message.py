"""
Messages that producers send and consumers receive, and the receipts of sends.

`Message` and `MessageView` are classes of the Rust core, which encodes and decodes them in batches.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Literal, NamedTuple, overload

from ferromq._ferromq import Message, MessageIds, MessageView

__all__ = ["Message", "MessageView", "Reply", "Resolution", "SendReceipt", "SendSummary"]


_SHOWN_RECEIPTS = 10
"""The most receipts that a notebook shows."""


Durability = Literal["written", "flushed"]
"""How safe a stored message is: in the broker's log in memory, or on its disk."""


class Resolution(Enum):
    """The answer of a transaction checker."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    """Not decided yet; the broker asks again later."""


class SendReceipt(NamedTuple):
    """
    The place of a stored message.

    RocketMQ's proxy may store the message in another queue than the receipt says.
    """

    message_id: str
    queue_id: int
    queue_offset: int
    topic: str = ""
    recall_handle: str | None = None
    """The argument for `Producer.recall`, if the message is timed."""
    broker_name: str = ""
    """The broker that stored it, by its route."""
    durability: Durability | None = None
    """
    What the broker promised with its answer: `"flushed"` is on disk, by the flush policies `group` and `each`;
    `"written"` is in the log in memory, at least. None: the server does not say it, as RocketMQ's proxy.
    """
    place: bytes | None = None
    """The bytes of `offset_message_id`."""

    @property
    def offset_message_id(self) -> str | None:
        """
        RocketMQ's second id of the message: the broker's address and the place in its log, in hexadecimal digits.

        None: the server does not say it, as RocketMQ's proxy; or it recognized a repetition of a stored message.
        """
        return None if self.place is None else self.place.hex().upper()

    def _repr_html_(self) -> str:
        from ferromq.terminal.objects import html_of  # noqa: PLC0415 (Spark's Python processes import this module)

        return html_of(self)


class Reply(NamedTuple):
    """The reply to a request, as `Producer.request` returns it. It was not stored in a queue, and has no lease."""

    topic: str
    """RocketMQ's topic of replies, `CLUSTER_REPLY_TOPIC`."""
    body: bytes
    """Decompressed."""
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    """Those that the replier gave."""
    message_id: str
    born_timestamp: int
    """When it was sent, by the replier's clock: milliseconds since 1970."""
    born_host: str
    """The replier's `host:port`."""

    def __repr__(self) -> str:
        return f"<Reply {self.message_id}: {len(self.body)} bytes>"

    def _repr_html_(self) -> str:
        from ferromq.terminal.objects import html_of  # noqa: PLC0415 (Spark's Python processes import this module)

        return html_of(self)


class Handles(NamedTuple):
    """Handles in a broker's answer: of a half message and of a timed message."""

    transaction_id: str
    recall_handle: str


_OFFSET_BYTES = 8
_UNKNOWN_OFFSET = b"\xff" * _OFFSET_BYTES


class Records(NamedTuple):
    """What an answer to a send says of its records in the broker's log."""

    durability: Durability | None = None
    store_host: bytes = b""
    """The broker's address, as message ids have it; empty if the answer does not have it."""
    physical_offsets: bytes = b""
    """One for each message, in 8 bytes, the lowest first."""

    def place(self, index: int) -> bytes | None:
        """Return the bytes of the second id of one message."""
        if not self.physical_offsets:
            return None
        offset = self.physical_offsets[index * _OFFSET_BYTES : (index + 1) * _OFFSET_BYTES]
        return None if offset == _UNKNOWN_OFFSET else self.store_host + offset[::-1]


class Batch(NamedTuple):
    """The receipts of one request, built when they are read."""

    ids: MessageIds
    queue_id: int
    queue_offsets: Sequence[int]
    topic: str = ""
    endpoint: str = ""
    handles: Mapping[int, Handles] = {}
    broker_name: str = ""
    records: Records = Records()

    def receipt(self, index: int) -> SendReceipt:
        """Build the receipt of one message."""
        handles = self.handles.get(index)
        recall_handle = handles.recall_handle or None if handles else None
        offset = self.queue_offsets[index]
        return SendReceipt(
            self.ids[index],
            self.queue_id,
            offset,
            self.topic,
            recall_handle,
            self.broker_name,
            self.records.durability,
            self.records.place(index),
        )


class SendSummary(Sequence[SendReceipt]):
    """The receipts of many messages, in the order of sending. Each is built when it is read."""

    def __init__(self, batches: Sequence[Batch], places: Sequence[int] | None = None) -> None:
        """*places*: the position of each message in the batches, if it differs from the order of sending."""
        self._places = places
        self._batches = batches
        self._ends: list[int] = []
        end = 0
        for batch in batches:
            end += len(batch.ids)
            self._ends.append(end)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> SendReceipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[SendReceipt]: ...
    def __getitem__(self, index: int | slice) -> SendReceipt | list[SendReceipt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"receipt {index} of {len(self)}")
        return self._at(at if self._places is None else self._places[at])

    def _at(self, place: int) -> SendReceipt:
        number = bisect_right(self._ends, place)
        batch = self._batches[number]
        return batch.receipt(place - self._ends[number] + len(batch.ids))

    def __iter__(self) -> Iterator[SendReceipt]:
        if self._places is not None:
            yield from map(self._at, self._places)
            return
        for batch in self._batches:
            for index in range(len(batch.ids)):
                yield batch.receipt(index)

    def __repr__(self) -> str:
        return f"<SendSummary of {len(self)} messages>"

    def _repr_html_(self) -> str:
        """Return the first receipts as a table, for notebooks."""
        from ferromq.terminal.objects import html  # noqa: PLC0415 (Spark's Python processes import this module)

        head = ("message id", "topic", "queue id", "queue offset")
        rows: list[tuple[object, ...]] = [
            (receipt.message_id, receipt.topic, receipt.queue_id, receipt.queue_offset)
            for receipt in self[:_SHOWN_RECEIPTS]
        ]
        if len(self) > _SHOWN_RECEIPTS:
            rows.append((f"and {len(self) - _SHOWN_RECEIPTS:,} more", "", "", ""))
        return html(f"SendSummary of {len(self):,} messages", head, rows)
