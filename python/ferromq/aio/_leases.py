"""Ends the leases of a consumer on an event loop; the synchronous twin is `ferromq.client.leases.Leases`."""

import asyncio
import logging
import time
import weakref
from collections.abc import Container, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from ferromq._ferromq import AckQueue, InUse, any_settled, settle_all, unsettle_all
from ferromq.aio._connection import AsyncClient
from ferromq.client.connection import remaining
from ferromq.client.renewing import LeaseCalls
from ferromq.core import plans
from ferromq.core.leases import (
    FLUSH_AFTER,
    FLUSH_COUNT,
    MAX_IN_REQUEST,
    MAX_WAITING_ACKS,
    Refusals,
    check_returned,
    ended,
    left_to_return,
    unsettle,
)
from ferromq.core.requests import seconds
from ferromq.core.retry import Cause, InOrder
from ferromq.core.subscriptions import Subscription
from ferromq.errors import FerromqError
from ferromq.message import MessageView

if TYPE_CHECKING:
    from concurrent.futures import Future

_log = logging.getLogger("ferromq.client")


class Leases:
    """Ends leases: acknowledgements together and in the background, changes of duration when awaited."""

    def __init__(self, client: AsyncClient, subscription: Subscription) -> None:
        self._client = client
        self._subscription = subscription
        self.calls = LeaseCalls(client.base, subscription)
        """What threads call, for which a blocked loop is no obstacle."""
        self.refusals = Refusals()
        self.in_use = InUse()
        """What is in use, and renewed meanwhile."""
        self.renewals: dict[MessageView, Future[None]] = {}
        """The renewals under way; what ends a lease needs the receipt handle they bring."""
        self._in_order: InOrder | None = None
        grown = weakref.WeakMethod(self._grown)
        self.acks = AckQueue(
            client.check,
            lambda endpoint: (left := grown()) and left(endpoint),
            self.in_use,
            full=FLUSH_COUNT,
            most=MAX_WAITING_ACKS,
            waits=False,
        )
        """Takes the acknowledgements of messages; it does not wait for renewals, which a loop awaits."""
        self._under_way = 0
        self._timer: asyncio.TimerHandle | None = None
        # Each with the broker and how many it sends.
        self._sending: dict[asyncio.Task[None], tuple[str, int]] = {}

    def ack_later(self, message: MessageView) -> None:
        """Take a message's acknowledgement."""
        message.ack()

    def keep_order(self, in_order: InOrder) -> None:
        """Tell *in_order*, what loops that keep order know of the messages they used, of each acknowledgement."""
        self._in_order = in_order
        self.acks.keep_order(in_order)

    def _grown(self, endpoint: str) -> None:
        if self.acks.count(endpoint) >= FLUSH_COUNT:
            self._send_soon()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_AFTER, self._send_soon)

    async def ack(self, messages: Sequence[MessageView]) -> None:
        """Acknowledge messages at once, unless they are already; raises the first refusal."""
        timeout = self._client.common.timeout
        until = time.monotonic() + timeout
        if any_settled(messages):
            # One of them may be on its way.
            waiting = await self.flush(until, {message.endpoint for message in messages})
            if waiting:
                raise plans.no_answer("sending the acknowledgements before", timeout)
        for message in messages if len(self.in_use) else ():
            self._leave(message)
        refused = await self._send(settle_all(messages), until)
        if refused:
            raise refused[0][1]

    async def change_invisible_duration(self, message: MessageView, duration: timedelta | float) -> None:
        """Change a lease; called by the message, too."""
        self._client.check()
        length = seconds(duration)
        held = self.in_use.get(message)
        was_over = held is not None and held.is_over
        self._leave(message)
        try:
            await self._renewals_of([message])
            await self.change(message, length)
        except BaseException:  # the lease there was is renewed as before
            if held is not None:
                held.is_over = was_over or message.is_settled
            raise
        if held is not None and length:  # it is renewed again when this one is about to end
            held.renewed(time.monotonic(), length, 2 / 3)
            held.is_over = message.is_settled

    async def change(self, message: MessageView, duration: float, *, suspend: bool = False) -> None:
        """Change a lease that is not renewed meanwhile; *duration* in seconds."""
        common = self._client.common
        await self._client.run(
            plans.change_invisible_duration(common, self._subscription, message, duration, suspend=suspend)
        )

    async def change_all(
        self, messages: Sequence[MessageView], duration: float, until: float, *, suspend: bool = False
    ) -> dict[MessageView, FerromqError]:
        """Change leases that are not renewed, by *until* (monotonic), and return what those failed with that did."""
        changing = {
            message: asyncio.create_task(self._failure_of_change(message, duration, suspend=suspend))
            for message in messages
        }
        try:
            if changing:
                await asyncio.wait(changing.values(), timeout=remaining(until))
        finally:
            outcomes = {
                message: task.result() if task.done() else plans.not_changed() for message, task in changing.items()
            }
            for task in changing.values():
                task.cancel()
        return {message: error for message, error in outcomes.items() if error is not None}

    async def _failure_of_change(self, message: MessageView, duration: float, *, suspend: bool) -> FerromqError | None:
        try:
            await self.change(message, duration, suspend=suspend)
        except FerromqError as error:
            return error
        return None

    async def return_all(self, messages: Sequence[MessageView]) -> None:
        """End the leases of messages, used or not, without counting an attempt; raises the first failure."""
        given = left_to_return(messages)
        for message in given:
            self._leave(message)
        await self._renewals_of(given)
        check_returned(await self.change_all(given, 0.0, time.monotonic() + self._client.common.timeout, suspend=True))

    def _leave(self, message: MessageView) -> None:
        """Let a lease be renewed no more."""
        held = self.in_use.get(message)
        if held is not None:
            held.is_over = True

    async def _renewals_of(self, messages: Sequence[MessageView]) -> None:
        found = [self.renewals.get(message) for message in messages]
        under_way = [asyncio.wrap_future(renewal) for renewal in found if renewal is not None]
        if under_way:
            await asyncio.wait(under_way)

    async def forward_to_dead_letter(self, message: MessageView, cause: Cause) -> None:
        """Put a message into the dead letter queue. Raises `LeaseExpired` if its life in the group has ended."""
        self._leave(message)
        if not settle_all([message]):
            raise ended(message)
        try:
            await self._renewals_of([message])
            common, subscription = self._client.common, self._subscription
            await self._client.run(plans.forward_to_dead_letter(common, subscription, message, cause))
        except BaseException:
            unsettle_all([message])
            raise
        self._is_done([message])

    async def give_back(self, messages: Sequence[MessageView], until: float) -> None:
        """End the leases of messages that were not used, without counting an attempt; after *until* they expire."""
        if not messages:
            return
        giving = {asyncio.create_task(self._give_back_one(message)) for message in messages}
        _, late = await asyncio.wait(giving, timeout=remaining(until))
        for task in late:
            task.cancel()

    async def _give_back_one(self, message: MessageView) -> None:
        try:
            self._leave(message)
            await self._renewals_of([message])
            await self.change(message, 0.0, suspend=True)
        except FerromqError as error:
            _log.debug("not given back, the lease expires message_id=%s: %s", message.message_id, error)

    async def _send(self, brokers: Mapping[str, list[MessageView]], until: float) -> list[tuple[int, FerromqError]]:
        """Send acknowledgements, to all brokers at once, and return each failure and how many messages it concerns."""
        results = await asyncio.gather(*(self._send_to(endpoint, some, until) for endpoint, some in brokers.items()))
        return [failure for result in results for failure in result]

    async def _send_to(
        self, endpoint: str, messages: list[MessageView], until: float | None = None
    ) -> list[tuple[int, FerromqError]]:
        try:
            await self._renewals_of(messages)
            timeout = None if until is None else remaining(until)
            plan = plans.ack(self._client.common, self._subscription, endpoint, messages, timeout=timeout)
            refused = await self._client.run(plan)
        except FerromqError as error:
            unsettle_all(messages)
            return [(len(messages), error)]
        except BaseException:  # cancelled: nothing is known
            unsettle_all(messages)
            raise
        finally:
            self._is_done(messages)
        unsettle(messages, (message_id for message_id, _ in refused))
        return [(1, error) for _, error in refused]

    def _is_done(self, messages: list[MessageView]) -> None:
        if self._in_order is not None:
            for message in messages:
                self._in_order.acknowledged(message)

    def send_now(self) -> None:
        """Begin to send what waits."""
        while self.acks.endpoints():
            self._send_soon()

    async def flush(self, until: float, endpoints: Container[str] | None = None) -> int:
        """
        Have sent what there is now, at most *until* (monotonic), and return how many of it are not through.

        *endpoints* limits it to these brokers; None means all.
        """
        self.send_now()
        sending = {
            task: count
            for task, (endpoint, count) in self._sending.items()
            if endpoints is None or endpoint in endpoints
        }
        if not sending:
            return 0
        _, late = await asyncio.wait(sending, timeout=remaining(until))
        return sum(sending[task] for task in late)

    async def keep_pace(self) -> None:
        """Wait while very many acknowledgements are under way."""
        while self._under_way >= MAX_WAITING_ACKS:
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)

    def stop(self) -> None:
        """Send no more; what is not sent counts as refused."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.acks.close()
        left = [each for place in self.acks.endpoints() for each in self.acks.take(place, MAX_WAITING_ACKS)]
        if left:
            unsettle_all(left)
            self.refusals.add([(len(left), plans.no_answer("sending acknowledgements", 0))])
        self.refusals.end()
        for task in self._sending:
            task.cancel()

    def take_failure(self) -> FerromqError | None:
        """Return the first refusal since the last call."""
        return self.refusals.take()

    def _send_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for endpoint in self.acks.endpoints():
            some = self.acks.take(endpoint, MAX_IN_REQUEST)
            self._under_way += len(some)
            task = asyncio.create_task(self._send_taken(endpoint, some))
            self._sending[task] = endpoint, len(some)
            task.add_done_callback(self._sending.pop)

    async def _send_taken(self, endpoint: str, messages: list[MessageView]) -> None:
        try:
            self.refusals.add(await self._send_to(endpoint, messages))
        except asyncio.CancelledError:  # by `stop`, or with the channel
            self.refusals.add([(len(messages), plans.no_answer("sending acknowledgements", 0))])
            raise
        finally:
            self._under_way -= len(messages)
