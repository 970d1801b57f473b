"""
Checks the name and the secret key of a user.

The brokers decide, not the dashboard. A look at the options of a broker is signed with the given key, and before and
after it with keys that are surely wrong. A broker that takes a wrong key has no access control. If the given key gets
the refusal of the wrong ones, the broker does not know this user with this key. Another refusal means that the
signature is right, and that the user may not see the options. The wrong keys must get the same refusal both times, so
that a change of the users meanwhile does not look like a right key.
"""

import secrets

from ferromq.dashboard.cluster import Cluster, Connect, Slots
from ferromq.errors import FerromqError, Forbidden, OutcomeUnknown

_NO_ACCESS_CONTROL = (
    "This cluster has no access control, so there are no users. Start the dashboard with --allow-changes to change it."
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
    try:
        refusals = await _refusals(stranger)
        takers = [address for address, why in refusals.items() if why is None]
        if len(takers) == len(refusals):
            return _NO_ACCESS_CONTROL
        if takers:
            return f"The broker at {takers[0]} has no access control, so users cannot be checked there."
        if not secret:
            return _WRONG
        address, before = next(iter(refusals.items()))
        own = Cluster(connect, slots, (user, secret))
        try:
            refusal = await _refusal(own, address)
        finally:
            own.close()
        if await _refusal(stranger, address) != before:
            return _UNCLEAR
        return _WRONG if refusal == before else ""
    finally:
        stranger.close()


async def has_access_control(cluster: Cluster) -> bool:
    """Whether a broker refuses to show its options to a visitor who did not sign in."""
    try:
        return any(why is not None for why in (await _refusals(cluster)).values())
    except FerromqError:
        return False


async def _refusals(cluster: Cluster) -> dict[str, str | None]:
    """Return what each broker that answers says against a look at its options; None if it allows it."""
    brokers = await cluster.ask(lambda admin: admin.cluster(figures=False))
    addresses = [broker.address for broker in brokers]
    answers = await cluster.ask_each(addresses, lambda admin, address: admin.broker_config(address))
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
        await cluster.ask(lambda admin: admin.broker_config(address))
    except Forbidden as error:
        return _said(error)
    return None


def _said(error: Forbidden) -> str:
    return error.remark or str(error)
