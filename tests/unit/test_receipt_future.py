"""The future of a submitted message is one of the standard library's, without what most never need."""

import asyncio
import gc
import threading
from concurrent.futures import CancelledError, Future, InvalidStateError, as_completed, wait
from concurrent.futures import TimeoutError as FutureTimeout

import pytest

from ferromq._ferromq import MessageIds
from ferromq.client.receipt_future import ReceiptFuture, end_unseen
from ferromq.message import Batch

PATIENCE = 20.0
LOCK = threading.Lock()


def batch(count: int) -> Batch:
    """Return the receipts of a request."""
    return Batch(MessageIds.reserve(b"12345678", 0, count), 3, range(count))


def end(*futures: ReceiptFuture, outcome: Batch | Exception | None = None) -> None:
    """End futures as the senders do."""
    outcome = outcome or batch(len(futures))
    for index, future in end_unseen(futures, LOCK, outcome):
        if not future.set_running_or_notify_cancel():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome.receipt(index))


def test_a_future_that_ended_has_its_own_receipt() -> None:
    """The same one each time, and no exception."""
    futures = [ReceiptFuture(LOCK) for _ in range(3)]
    assert not any(future.done() or future.running() or future.cancelled() for future in futures)
    end(*futures)
    assert all(future.done() for future in futures)
    assert [future.result().queue_offset for future in futures] == [0, 1, 2]
    assert len({future.result().message_id for future in futures}) == 3
    assert futures[0].result() is futures[0].result(0)
    assert futures[0].exception() is None
    assert "finished" in repr(futures[0])


def test_a_failure_is_raised_at_the_result() -> None:
    """And returned as the exception."""
    one, other = ReceiptFuture(LOCK), ReceiptFuture(LOCK)
    end(one, other, outcome=ValueError("refused"))
    for future in (one, other):
        with pytest.raises(ValueError, match="refused"):
            future.result()
        assert isinstance(future.exception(), ValueError)


@pytest.mark.parametrize("outcome", [None, ValueError("refused")])
def test_a_thread_that_waits_is_woken(outcome: Exception | None) -> None:
    """Also beside futures that no thread waits for."""
    futures = [ReceiptFuture(LOCK) for _ in range(3)]
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(futures[1].exception(PATIENCE) or futures[1].result()))
    waiting.start()
    end(*futures, outcome=outcome)
    waiting.join(PATIENCE)
    assert [type(each).__name__ for each in found] == ["ValueError" if outcome else "SendReceipt"]


def test_a_wait_ends_after_its_time() -> None:
    """The message is still under way then, and its future ends later."""
    future = ReceiptFuture(LOCK)
    with pytest.raises(FutureTimeout):
        future.result(0)
    end(future)
    assert future.result(0).queue_id == 3


def test_callbacks_are_called_once_before_and_after_the_end() -> None:
    """With the future, whose result is there."""
    future = ReceiptFuture(LOCK)
    seen: list[int] = []
    future.add_done_callback(lambda ended: seen.append(ended.result().queue_id))
    end(future)
    future.add_done_callback(lambda ended: seen.append(-ended.result().queue_id))
    assert seen == [3, -3]
    late, unseen = ReceiptFuture(LOCK), list[Future[object]]()
    end(late)
    late.add_done_callback(unseen.append)
    assert unseen == [late]


def test_a_cancelled_future_stays_cancelled() -> None:
    """One that ended cannot be cancelled, and does not end twice."""
    future, ended = ReceiptFuture(LOCK), ReceiptFuture(LOCK)
    assert future.cancel()
    end(future, ended)
    assert future.cancelled()
    with pytest.raises(CancelledError):
        future.result()
    assert not ended.cancel()
    with pytest.raises(InvalidStateError):
        ended.set_result(batch(1).receipt(0))


def test_the_functions_of_the_standard_library_take_them() -> None:
    """`wait`, `as_completed`, and futures of an event loop."""
    futures = [ReceiptFuture(LOCK) for _ in range(4)]
    end(*futures[:2])
    assert wait(futures, timeout=0).done == {*futures[:2]}
    ends = threading.Thread(target=end, args=futures[2:])
    ends.start()
    assert {future.result().queue_id for future in as_completed(futures, PATIENCE)} == {3}
    ends.join(PATIENCE)

    async def program() -> int:
        future = ReceiptFuture(LOCK)
        wrapped = asyncio.wrap_future(future)
        end(future)
        return (await wrapped).queue_id

    assert asyncio.run(program()) == 3


def test_a_result_that_is_asked_for_while_its_future_ends_is_the_receipt() -> None:
    """Whichever of the two threads is first."""
    for _ in range(300):
        futures = [ReceiptFuture(LOCK) for _ in range(8)]
        ends = threading.Thread(target=end, args=futures)
        ends.start()
        assert [future.result(PATIENCE).queue_offset for future in futures] == list(range(8))
        ends.join(PATIENCE)


def test_a_future_has_no_condition_before_one_is_needed() -> None:
    """The garbage collector visits each object of each message under way."""

    def made() -> int:
        return sum(isinstance(each, threading.Condition) for each in gc.get_objects())

    gc.collect()
    before = made()
    futures = [ReceiptFuture(LOCK) for _ in range(100)]
    end(*futures)
    assert all(future.done() and future.result() for future in futures)
    assert made() <= before
