"""Sends of single messages through the Rust core, awaited; see `ferromq.client.direct_sends`."""

from ferromq._ferromq import Message
from ferromq.aio._connection import AsyncClient
from ferromq.client.direct_sends import Attempts
from ferromq.core import send_plans
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
        if sends is not None:
            begun, wall = common.now(), common.wall()
            most = min(limit, common.attempt_timeout)
            sending = self._client.completions.start(
                lambda completions, number: sends.start(topic, message, wall, most, completions, number)
            )
            if sending is not None:
                sent = await sending
                if isinstance(sent, tuple):
                    ids, queue_id, queue_offset, _ = sent
                    return SendReceipt(ids[0], queue_id, queue_offset, topic)
                after = self._attempts.failed(topic, message, sent, limit)
                limit = max(0.0, limit - (common.now() - begun))
        plan = send_plans.send(common, topic, [message], timeout=limit, after=after)
        receipt = (await self._client.run(plan)).receipt(0)
        self._attempts.put_route(topic)
        return receipt
