"""Sends of single messages through the Rust core, awaited; see `ferromq.client.direct_sends`."""

from ferromq._ferromq import Message, Sends
from ferromq.aio._connection import AsyncClient
from ferromq.client.direct_sends import Attempts
from ferromq.core import send_plans
from ferromq.errors import OutcomeUnknown
from ferromq.message import SendReceipt


class DirectSends:
    """Sends single messages for a producer, on its loop."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._attempts = Attempts(client.base)

    async def send(self, topic: str, message: Message, timeout: float | None) -> SendReceipt:  # noqa: ASYNC109
        """Send a message within *timeout* seconds; None: the client's timeout."""
        common, sends = self._client.common, self._client.base.channels.sends
        limit = common.timeout if timeout is None else timeout
        after: send_plans.Earlier | None = None
        if sends is not None and sends.has_route(common.whole(topic)):
            begun = common.now()
            sent = await self._send(sends, topic, message, min(limit, common.attempt_timeout))
            if isinstance(sent, SendReceipt):
                return sent
            after = sent
            limit = self._attempts.left(limit - (common.now() - begun), after)
        plan = send_plans.send(common, topic, [message], timeout=limit, after=after)
        receipt = (await self._client.run(plan)).receipt(0)
        self._attempts.put_route(topic)
        return receipt

    async def _send(
        self,
        sends: Sends,
        topic: str,
        message: Message,
        timeout: float,  # noqa: ASYNC109
    ) -> SendReceipt | send_plans.Earlier | None:
        """Return the receipt, or what a plan must know of an attempt. Raises its error if it is not repeated."""
        completions = self._client.completions
        number, future = completions.expect(timeout)
        try:
            common = self._client.common
            whole = common.whole(topic)
            started = sends.start(whole, message, common.wall(), timeout, completions.queue, number)
        except BaseException:
            completions.forget(number)
            raise
        if started is None:
            completions.forget(number)
            self._client.base.channels.reopen()
            return None
        ids, endpoint = started
        try:
            sent = await future
        except OutcomeUnknown as error:
            return self._attempts.unanswered(topic, message, send_plans.Earlier(ids, endpoint, error))
        if isinstance(sent, SendReceipt):
            return self._attempts.receipt(topic, sent)
        return self._attempts.failed(topic, message, sent, timeout)
