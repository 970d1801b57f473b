"""
The administrator for asyncio; see `ferromq.admin.admin`, whose names and promises it has.

Requests are rare and short, so each call runs on a thread.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from ferromq._ferromq import StoredMessage
from ferromq.admin import Admin as BlockingAdmin
from ferromq.admin import DeadLetter, MessageType, ResentLetter
from ferromq.client.tls import Tls, TlsFile

__all__ = ["Admin"]


class Admin:
    """
    Creates, alters and deletes topics and consumer groups, and finds messages, without blocking the event loop.

    The arguments are those of `ferromq.Admin`, and so are the errors. Use it in an `async with`, or await `close`. A
    call that is cancelled goes on until it ends by itself, at most for *timeout*.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        endpoint: str | None = None,
        timeout: timedelta | float = 10.0,
        tls: bool | TlsFile | Tls = False,
        namespace: str = "",
    ) -> None:
        self._admin = BlockingAdmin(namesrv, endpoint=endpoint, timeout=timeout, tls=tls, namespace=namespace)

    async def topics(self) -> list[str]:
        """Return the names of all topics, RocketMQ's own included, sorted."""
        return await asyncio.to_thread(self._admin.topics)

    async def create_topic(
        self,
        name: str,
        queues: int | None = None,
        *,
        message_type: MessageType | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a topic on every master of a cluster; see `ferromq.Admin.create_topic`."""
        await asyncio.to_thread(self._admin.create_topic, name, queues, message_type=message_type, cluster=cluster)

    async def alter_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        message_type: MessageType | None = None,
        cluster: str | None = None,
    ) -> None:
        """Change the given settings of a topic; see `ferromq.Admin.alter_topic`."""
        alter = self._admin.alter_topic
        await asyncio.to_thread(alter, name, queues=queues, message_type=message_type, cluster=cluster)

    async def delete_topic(self, name: str, *, cluster: str | None = None) -> None:
        """Delete a topic and its messages; see `ferromq.Admin.delete_topic`."""
        await asyncio.to_thread(self._admin.delete_topic, name, cluster=cluster)

    async def order_configurations(self) -> dict[str, dict[str, int]]:
        """Return the order configurations; see `ferromq.Admin.order_configurations`."""
        return await asyncio.to_thread(self._admin.order_configurations)

    async def take_out_broker(self, name: str) -> list[str]:
        """Remove a broker that will not come back; see `ferromq.Admin.take_out_broker`."""
        return await asyncio.to_thread(self._admin.take_out_broker, name)

    async def clean(self, *, cluster: str | None = None) -> None:
        """Delete the expired files of the store; see `ferromq.Admin.clean`."""
        await asyncio.to_thread(self._admin.clean, cluster=cluster)

    async def clean_unused_queues(self, *, cluster: str | None = None) -> None:
        """Delete the queues of unknown topics; see `ferromq.Admin.clean_unused_queues`."""
        await asyncio.to_thread(self._admin.clean_unused_queues, cluster=cluster)

    async def create_group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        retries: int | None = None,
        retry_delays: Sequence[timedelta | float] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a consumer group; see `ferromq.Admin.create_group`."""
        create = self._admin.create_group
        await asyncio.to_thread(create, name, fifo=fifo, retries=retries, retry_delays=retry_delays, cluster=cluster)

    async def alter_group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        retries: int | None = None,
        retry_delays: Sequence[timedelta | float] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Change the given settings of a consumer group; see `ferromq.Admin.alter_group`."""
        alter = self._admin.alter_group
        await asyncio.to_thread(alter, name, fifo=fifo, retries=retries, retry_delays=retry_delays, cluster=cluster)

    async def query_by_key(self, topic: str, key: str, max_messages: int = 32) -> list[StoredMessage]:
        """Return messages of *topic* that were sent with *key*, newest first; see `ferromq.Admin.query_by_key`."""
        return await asyncio.to_thread(self._admin.query_by_key, topic, key, max_messages)

    async def query_by_id(self, topic: str, message_id: str) -> StoredMessage | None:
        """Return the message with this id, if it is stored; see `ferromq.Admin.query_by_id`."""
        return await asyncio.to_thread(self._admin.query_by_id, topic, message_id)

    async def dead_letters(self, group: str, *, newest_first: bool = True) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters of a consumer group; see `ferromq.Admin.dead_letters`."""
        letters = await asyncio.to_thread(self._admin.dead_letters, group, newest_first=newest_first)
        while (letter := await asyncio.to_thread(next, letters, None)) is not None:
            yield letter

    async def resend_dead_letters(
        self, letters: Iterable[DeadLetter], *, topic: str | None = None
    ) -> list[ResentLetter]:
        """Send dead letters again and return what became of each; see `ferromq.Admin.resend_dead_letters`."""
        return await asyncio.to_thread(self._admin.resend_dead_letters, list(letters), topic=topic)

    async def close(self, timeout: timedelta | float = 5.0) -> None:  # noqa: ASYNC109 (as the synchronous one)
        """
        Take no more calls, wait up to *timeout* (float: seconds) for those under way, and end. Idempotent.

        Calls that take longer raise `ClientClosed` or an `OutcomeUnknown`.
        """
        await asyncio.to_thread(self._admin.close, timeout)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._admin.closed

    def __repr__(self) -> str:
        return repr(self._admin).replace("<", "<aio.", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
