"""
Reads one partition of a stream across restarts of its broker; runs in a worker.

After a failure it continues after the last row that Spark has, so no row is repeated.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ferromq.errors import DataLost, FerromqError, RequestError
from ferromq.spark.arrow import record_batch
from ferromq.spark.options import ClusterAddress
from ferromq.spark.read.plan import Queue, QueueRange
from ferromq.spark.stream.plan import Bounds, Loss, key_of
from ferromq.spark.stream.queue_monitor import RETRIED, RetryDeadline, masters, unreachable
from ferromq.spark.topics import Topics

_log = logging.getLogger("ferromq.spark")

_OFFSETS = pa.schema([("queue_offset", pa.int64())])

Columns = Mapping[str, Any]
Pull = Callable[[QueueRange], Iterator[tuple[int, Columns]]]
Ask = Callable[[ClusterAddress, Topics], Sequence[Queue]]


class RetryingReader:
    """Reads ranges. It retries an unreachable broker; if messages are gone it raises or logs, as the options say."""

    def __init__(
        self,
        address: ClusterAddress,
        deadline: RetryDeadline,
        *,
        fail_on_data_loss: bool,
        pull_range: Pull,
        ask: Ask = masters,
    ) -> None:
        self._address = address
        self._deadline = deadline
        self._fail = fail_on_data_loss
        self._pull = pull_range
        self._ask = ask

    def read(self, wanted: QueueRange) -> Iterator[tuple[int, Columns]]:
        """
        Yield the messages of *wanted* as (number of rows, columns), `queue_offset` among them.

        Raises `DataLost` if some of them are gone, unless losses are only logged, and `ConnectionFailed` if the broker
        stays unreachable.
        """
        while True:
            try:
                for rows, columns in self._pull(wanted):
                    self._deadline.renew()
                    if rows:
                        wanted = replace(wanted, start=last_offset(columns, rows) + 1)
                        yield rows, columns
            except (*RETRIED, RequestError) as error:
                wanted = self._after(error, wanted)
                if not wanted:
                    return
            else:
                return

    def _after(self, error: FerromqError, wanted: QueueRange) -> QueueRange:
        """Return the rest of the range after *error*, from the queue's current broker and offsets."""
        queue = self._find(wanted)
        if queue is not None:
            wanted = replace(wanted, endpoint=queue.endpoint)
            low = min(max(wanted.start, queue.min_offset), wanted.end)
            if low > wanted.start or queue.max_offset < wanted.end:
                rest = replace(wanted, start=low, end=max(low, min(wanted.end, queue.max_offset)))
                self._lose(wanted, rest, queue, error)
                return rest
        if not isinstance(error, RETRIED):
            raise error
        if not self._deadline.is_left():
            raise unreachable(str(wanted), self._deadline.seconds, error) from error
        return wanted

    def _find(self, wanted: QueueRange) -> Queue | None:
        try:
            queues = self._ask(self._address, Topics.named([wanted.topic]))
        except (*RETRIED, RequestError):
            return None
        key = (wanted.broker_name, wanted.queue_id)
        return next((queue for queue in queues if (queue.broker_name, queue.queue_id) == key), None)

    def _lose(self, wanted: QueueRange, rest: QueueRange, queue: Queue, error: FerromqError) -> None:
        bounds = Bounds(queue.min_offset, queue.max_offset)
        loss = Loss((wanted.topic, key_of(queue)), wanted.start, bounds, len(wanted) - len(rest))
        if self._fail:
            raise DataLost(
                f"data loss while a batch was read up to queue offset {wanted.end}: {loss}. "
                "Set option 'failOnDataLoss' to 'false' to continue with what is left"
            ) from error
        _log.warning("rows lost while a batch was read rows=%d: %s", loss.rows, loss)


def last_offset(columns: Columns, rows: int) -> int:
    """Return the queue offset of the last of *rows* rows."""
    return int(record_batch(columns, rows, _OFFSETS).column(0)[rows - 1].as_py())
