"""Receives while acknowledgements are on their way; the synchronous twin is `ferromq.client.direct_receives`."""

import asyncio
from collections.abc import Callable
from typing import Any

from ferromq.aio._ahead import ReceiveAhead
from ferromq.aio._connection import AsyncClient
from ferromq.aio._leases import Leases
from ferromq.core import receive_plans
from ferromq.core.receive_plans import Wish
from ferromq.core.requests import Decoded
from ferromq.core.subscriptions import Subscription


class DirectReceives:
    """Receives for a group that keeps no order and receives nothing ahead."""

    def __init__(self, client: AsyncClient, subscription: Subscription, leases: Leases, ahead: ReceiveAhead) -> None:
        self._client = client
        self._subscription = subscription
        self._leases = leases
        self._ahead = ahead

    async def receive(
        self, max_messages: int, until: float, invisible: float, decode: Callable[..., Decoded[Any]]
    ) -> Any | None:
        """Receive messages until a time (monotonic) behind acknowledgements on their way; None: they are awaited."""
        common = self._client.common
        if self._ahead.has_messages or self._client.base.settings.subscription.fifo or not self._takes_records():
            return None
        self._leases.send_now()
        await asyncio.sleep(0)  # which begins them
        wish = Wish.before(until, common.now(), max_messages, invisible, decode)
        return await self._client.run(receive_plans.receive(common, self._subscription, wish, self._leases))

    def _takes_records(self) -> bool:
        """Say whether all brokers are known to take acknowledgements in frames, one behind the other."""
        common = self._client.common
        routes = [common.routes.fresh(topic) for topic in self._subscription.filters]
        return all(route is not None and all(map(common.takes_records, route.readable)) for route in routes)
