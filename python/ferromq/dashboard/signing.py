"""
Checks the name and the secret key of a user.

The brokers decide, not the dashboard. A key that is surely wrong asks for their addresses; where a server refuses
that, the given key does. A look at the options of a broker is signed with the given key, and before and after it with
keys that are surely wrong. A broker that takes a wrong key has no access control. If the given key gets the refusal of
the wrong ones, the broker does not know this user with this key. Another refusal means that the signature is right, and
that the user may not see the options. The wrong keys must get the same refusal both times, so that a change of the
users meanwhile does not look like a right key.
"""

import asyncio
import secrets
from collections.abc import Sequence

from ferromq.aio import Admin
from ferromq.dashboard.cluster import Cluster, Connect, Slots
from ferromq.errors import FerromqError, Forbidden, OutcomeUnknown

_NO_ACCESS_CONTROL = (
    "This cluster has no access control, so there are no users. Start the dashboard with --allow-changes to change it."
)
_UNSEEN = (
    "This user may not see the brokers of the cluster, so they cannot be asked about it. "
    "Give it Get or List on Cluster:* at the name servers."
)
_WRONG = "The cluster does not know this user with this secret key."
_UNCLEAR = "The broker did not answer the same question twice in the same way. Sign in again."


async def check_user(connect: Connect, slots: Slots, user: str, secret: str) -> str:
    """
    Return why a user may not sign in; empty if it may.

    Every broker that answers must have access control: a user could change the others without a right. Raises
    `OutcomeUnknown` if no broker answers, and `ConfigError` for a name that a request cannot carry.
    """
    stranger = Cluster(connect, slots, (user, secrets.token_hex()))
    own = Cluster(connect, slots, (user, secret)) if secret else None
    try:
        addresses = await _addresses_for(stranger, own)
        if isinstance(addresses, str):
            return addresses
        refusals = await _refusals(stranger, addresses)
        takers = [address for address, why in refusals.items() if why is None]
        if len(takers) == len(refusals):
            return _NO_ACCESS_CONTROL
        if takers:
            return f"The broker at {takers[0]} has no access control, so users cannot be checked there."
        if own is None:
            return _WRONG
        address, before = next(iter(refusals.items()))
        refusal = await _refusal(own, address)
        if await _refusal(stranger, address) != before:
            return _UNCLEAR
        return _WRONG if refusal == before else ""
    finally:
        stranger.close()
        if own is not None:
            own.close()


async def _addresses_for(stranger: Cluster, own: Cluster | None) -> list[str] | str:
    """Return the addresses of the brokers, or why the user gets none."""
    try:
        return await _addresses(stranger)
    except Forbidden as error:
        refusal = _said(error)
    if own is None:
        return _WRONG
    try:
        return await _addresses(own)
    except Forbidden as error:
        return _WRONG if _said(error) == refusal else _UNSEEN


async def has_access_control(cluster: Cluster) -> bool:
    """Whether a server refuses to show brokers or their options to a visitor who did not sign in."""
    try:
        refusals = await _refusals(cluster, await _addresses(cluster))
    except Forbidden:
        return True
    except FerromqError:
        return False
    return any(why is not None for why in refusals.values())


async def _addresses(cluster: Cluster) -> list[str]:
    """Return the addresses of the brokers. Raises `Forbidden` where access control refuses that."""
    return [broker.address for broker in await cluster.ask(lambda admin: admin.cluster(figures=False))]


async def _refusals(cluster: Cluster, addresses: Sequence[str]) -> dict[str, str | None]:
    """Return what each broker that answers says against a look at its options; None if it allows it."""
    answers = await cluster.ask_each(addresses, _options_at)
    found = {
        address: _said(answer) if isinstance(answer, Forbidden) else None
        for address, answer in zip(addresses, answers, strict=True)
        if isinstance(answer, Forbidden) or not isinstance(answer, FerromqError)
    }
    if not found:
        failures = (answer for answer in answers if isinstance(answer, FerromqError))
        raise next(failures, OutcomeUnknown("no broker is registered, so no user can be checked"))
    return found


async def _refusal(cluster: Cluster, address: str) -> str | None:
    try:
        await cluster.ask(lambda admin: _options_at(admin, address))
    except Forbidden as error:
        return _said(error)
    return None


async def _options_at(admin: Admin, address: str) -> dict[str, str]:
    """Return the options of a registered broker; this administrator may be refused a look whether it is registered."""
    return await asyncio.to_thread(admin._admin._options_at, address)  # noqa: SLF001 (the dashboard alone names addresses)


def _said(error: Forbidden) -> str:
    return error.remark or str(error)
