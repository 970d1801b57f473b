"""Who may drain, stop and reload a server where no policy is checked."""

from types import SimpleNamespace
from typing import Any

import pytest

from ferromq.access.own_machine import OwnMachine
from ferromq.config.access import AccessConfig
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.remoting import success

FAR = "10.0.0.1:4000"
SIGNED: dict[str, Any] = {"authentication_enabled": True}
GUARDED: dict[str, Any] = {**SIGNED, "authorization_enabled": True}


def ask(peer: str, *, user: str | None = None, is_open: bool = False, **options: Any) -> bool:
    """Send a request of a user, of whom root is super; return whether it was answered."""
    users: Any = SimpleNamespace(get=lambda name: SimpleNamespace(is_super=name == "root"))
    config = AccessConfig.from_options(options)
    own_machine = OwnMachine(users if config.authentication_enabled else None, config, lambda: is_open)
    request: Any = SimpleNamespace(peer=peer, user=user, route=int(RequestCode.CHANGE_BROKER_STATE))
    code, remark, _, _ = own_machine.guarded(lambda _request: success())(request)
    assert code == ResponseCode.SUCCESS or (code == ResponseCode.NO_PERMISSION and "own machine" in (remark or ""))
    return code == ResponseCode.SUCCESS


@pytest.mark.parametrize("peer", ["127.0.0.1:4000", "127.8.8.8:4000", "[::1]:4000", "[::ffff:127.0.0.1]:4000"])
def test_the_own_machine_may(peer: str) -> None:
    """By any address of its loopback, also as a user without rights."""
    assert ask(peer)
    assert ask(peer, user="ada", **SIGNED)


@pytest.mark.parametrize("peer", [FAR, "[2001:db8::1]:4000", "[::ffff:10.0.0.1]:4000", "unix", ""])
def test_other_machines_may_not(peer: str) -> None:
    """Unless an option allows it."""
    assert not ask(peer)
    assert ask(peer, is_open=True)


def test_a_signature_is_not_enough() -> None:
    """Without authorization, a super user may; with it, the policies of the transport decide."""
    assert not ask(FAR, user="ada", **SIGNED)
    assert ask(FAR, user="root", **SIGNED)
    assert ask(FAR, user="ada", **GUARDED)


@pytest.mark.parametrize("code", ["9876001", "09876001"])
def test_a_white_list_opens_no_way_for_strangers(code: str) -> None:
    """It switches the check of policies off, and so this one on."""
    lists: dict[str, Any] = dict.fromkeys(("authentication_whitelist", "authorization_whitelist"), (code,))
    assert not ask(FAR, **GUARDED, **lists)
    assert not ask(FAR, user="ada", **GUARDED, **lists)
    assert ask(FAR, user="root", **GUARDED, **lists)
    assert ask("127.0.0.1:4000", **GUARDED, **lists)
