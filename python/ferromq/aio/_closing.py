"""Closes clients on an event loop, all at once; the synchronous twin is `ferromq.client.closing`."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from ferromq.client.connection import remaining


class Closes(Protocol):
    """A client that is closed by awaiting."""

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109 (as the synchronous one)
        """End within about *timeout* seconds."""


async def close_all(clients: Sequence[Closes], until: float) -> None:
    """Close clients by *until* (monotonic): one whose broker hangs takes no time from the others."""
    ended = await asyncio.gather(*(client.close(remaining(until)) for client in clients), return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, BaseException):
            raise outcome
