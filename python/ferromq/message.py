"""
What a producer sends and gets back, and what a consumer receives.

`Message` and `MessageView` live in the Rust core, which encodes and decodes them by the batch; receipts are made when
they are looked at.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from ferromq._ferromq import Message, MessageIds, MessageView

__all__ = ["Message", "MessageView", "SendReceipt", "SendSummary"]


class SendReceipt(NamedTuple):
    """
    Says where a message was stored.

    The queue is the one that was asked for; RocketMQ's own proxy may choose another and does not tell.
    """

    message_id: str
    queue_id: int
    queue_offset: int


class Batch(NamedTuple):
    """The receipts of one request, not yet made."""

    ids: MessageIds
    queue_id: int
    queue_offsets: Sequence[int]

    def receipt(self, index: int) -> SendReceipt:
        """Make one."""
        return SendReceipt(self.ids[index], self.queue_id, self.queue_offsets[index])


class SendSummary(Sequence[SendReceipt]):
    """The receipts of many messages, in the order of sending; each is made when it is looked at."""

    def __init__(self, batches: Sequence[Batch]) -> None:
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
        number = bisect_right(self._ends, at)
        batch = self._batches[number]
        return batch.receipt(at - self._ends[number] + len(batch.ids))

    def __iter__(self) -> Iterator[SendReceipt]:
        for batch in self._batches:
            for index in range(len(batch.ids)):
                yield batch.receipt(index)

    def __repr__(self) -> str:
        return f"<SendSummary of {len(self)} messages>"
