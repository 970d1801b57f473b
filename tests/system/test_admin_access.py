"""Users and policies through `Admin`: of one broker, of all brokers of a cluster, and asked again after a failure."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from fault_proxy import FaultProxy
from ports import kept_port

import ferromq
from ferromq import aio
from ferromq.broker.controller import BrokerController
from ferromq.cli import main as cli
from ferromq.config.broker import BrokerConfig
from ferromq.embedding import SMALL_FILES
from ferromq.errors import (
    AlreadyExists,
    ConfigError,
    Forbidden,
    OutcomeUnknown,
    PolicyNotFound,
    ServerError,
    UserNotFound,
)

ROOT = {"access_key": "root", "secret_key": "a long secret"}
OPTIONS = {"authentication_enabled": True, "authorization_enabled": True, "initial_user": "root:a long secret"}
SECRET = "bob's key"


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ferromq.Embedded]:
    """Start a broker that checks signatures and policies."""
    with ferromq.embedded(tmp_path / "store", **OPTIONS) as embedded:  # type: ignore[arg-type]
        yield embedded


def test_a_user_is_made_changed_and_deleted(mq: ferromq.Embedded) -> None:
    """What it may do follows at once."""
    with ferromq.Admin(mq.namesrv, **ROOT) as admin:
        admin.create_topic("orders")
        admin.create_user("bob", SECRET)
        with pytest.raises(AlreadyExists, match="update_user"):
            admin.create_user("bob", SECRET)
        (bob,) = admin.users("bob")
        assert (bob.name, bob.kind, bob.enabled, bob.brokers) == ("bob", "Normal", True, (mq.remoting,))
        assert [user.name for user in admin.users()] == ["bob", "root"]
        bobs = ferromq.Admin(mq.namesrv, access_key="bob", secret_key=SECRET)
        with closing(bobs):
            with pytest.raises(Forbidden):
                bobs.create_topic("bills")
            admin.create_acl("bob", "Topic:bills", ["Create", "Get"])
            bobs.create_topic("bills")
            with pytest.raises(Forbidden):
                bobs.users()
            admin.update_user("bob", super_user=True)
            assert [user.kind for user in bobs.users()] == ["Super", "Super"]
            admin.update_user("bob", secret_key="another", enabled=False)
            with pytest.raises(Forbidden):
                bobs.users()
        admin.delete_user("bob")
        for call in (admin.users, admin.delete_user, admin.acls):
            with pytest.raises(UserNotFound, match="no user bob"):
                call("bob")
        with pytest.raises(UserNotFound):
            admin.update_user("bob", enabled=True)
        with pytest.raises(ValueError, match="nothing to update"):
            admin.update_user("root")


def test_policies_are_made_changed_and_deleted(mq: ferromq.Embedded) -> None:
    """An equal entry stays, another one for the same resource is replaced by an update alone."""
    with ferromq.Admin(endpoint=mq.endpoint, **ROOT) as admin:
        admin.create_user("bob", SECRET)
        for _ in range(2):
            admin.create_acl("bob", ("topic:orders", "Group:b*"), ("Pub", "sub"), sources="10.0.0.0/8")
        admin.create_acl("bob", "Topic:orders", ("Sub", "Pub"), sources="10.0.0.0/8")  # in another order
        with pytest.raises(AlreadyExists, match="update_acl replaces"):
            admin.create_acl("bob", "Topic:orders", "Pub")
        admin.update_acl("bob", "Topic:orders", "All", allow=False, policy="Default")
        admin.update_acl("bob", "Topic:orders", "Pub")
        found = [
            (each.policy, each.resource, each.actions, each.sources, each.allow) for each in admin.acls("User:bob")
        ]
        assert found == [
            ("Custom", "Group:b*", ("Pub", "Sub"), ("10.0.0.0/8",), True),
            ("Custom", "Topic:orders", ("Pub",), (), True),
            ("Default", "Topic:orders", ("All",), (), False),
        ]
        assert admin.acls() == admin.acls("bob")
        admin.delete_acl("bob", resource="topic:orders")
        with pytest.raises(PolicyNotFound, match="no entry for Topic:orders in Custom"):
            admin.delete_acl("bob", resource="Topic:orders")
        with pytest.raises(ValueError, match="give resource="):
            admin.delete_acl("bob", policy="Default")
        assert len(admin.acls("bob")) == 2
        admin.delete_acl("bob")
        assert admin.acls("bob") == []
        with pytest.raises(UserNotFound):
            admin.create_acl("eve", "*", "All")


def test_a_broker_without_access_control_says_so() -> None:
    """And the option that turns it on."""
    with ferromq.embedded() as mq, mq.admin() as admin, pytest.raises(ServerError, match="authentication_enabled"):
        admin.users()


def test_a_change_that_failed_halfway_is_finished_by_asking_again(mq: ferromq.Embedded, tmp_path: Path) -> None:
    """With the second secret key everywhere; differences between brokers are shown."""
    with kept_port() as listen, FaultProxy(listen) as proxy:
        given = {"store": tmp_path / "b", "name": "b", "namesrv": mq.namesrv, "grpc_listen": "127.0.0.1:0"}
        given |= {"listen": listen, "fast_listen": "off", **SMALL_FILES, **OPTIONS}
        given |= {"inner_credentials": "root:a long secret", "advertise": proxy.address}
        with (
            closing(BrokerController(BrokerConfig.from_options(given))),
            ferromq.Admin(mq.namesrv, timeout=3.0, **ROOT) as admin,
        ):
            admin.create_user("bob", "the first", broker=mq.remoting)
            assert [user.brokers for user in admin.users("bob")] == [(mq.remoting,)]
            admin.create_user("bob", SECRET)
            (bob,) = admin.users("bob")
            assert len(bob.brokers) == 2
            with ferromq.Admin(mq.namesrv, access_key="bob", secret_key=SECRET) as bobs, pytest.raises(Forbidden):
                bobs.users()
            admin.update_user("bob", enabled=False, broker="b")
            assert {user.enabled for user in admin.users("bob")} == {True, False}
            with pytest.raises(ConfigError, match="neither name nor address"):
                admin.users(broker="c")
            proxy.refuse()
            with pytest.raises(OutcomeUnknown):
                admin.users()
            with pytest.raises(OutcomeUnknown):
                admin.delete_user("bob")
            assert admin.users("bob", broker=mq.remoting)


def test_the_same_methods_for_asyncio(mq: ferromq.Embedded) -> None:
    """They return the same."""

    async def run() -> None:
        async with aio.Admin(mq.namesrv, **ROOT) as admin:
            await admin.create_user("bob", SECRET, super_user=True)
            await admin.create_acl("bob", "*", "All")
            assert [user.kind for user in await admin.users("bob")] == ["Super"]
            assert [entry.resource for entry in await admin.acls()] == ["*"]
            await admin.delete_acl("bob", resource="*")
            await admin.delete_user("bob")

    asyncio.run(run())


def ran(*words: str, stdin: str = "") -> tuple[int, str, str]:
    """Run a command in this process; return exit code, output and errors."""
    with CliRunner().isolation(stdin) as (out, error, _):
        return cli.main(words), out.getvalue().decode(), error.getvalue().decode()


@pytest.fixture
def as_root(mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sign the commands of a test, and tell them the cluster."""
    for name, value in {"ACCESS_KEY": "root", "SECRET_KEY": "a long secret", "ENDPOINT": mq.endpoint}.items():
        monkeypatch.setenv(f"FERROMQ_{name}", value)


@pytest.mark.usefixtures("as_root")
def test_the_commands_make_show_change_and_delete_users(mq: ferromq.Embedded, tmp_path: Path) -> None:
    """The secret key comes from stdin or a file, and is never printed."""
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    assert ran("user", "create", "bob", "--secret-file", "-", stdin="first\n")[:2] == (0, "created user bob\n")
    assert ran("user", "create", "bob", "--secret-file", str(file))[0] == 1
    assert ran("user", "update", "bob", "--secret-file", str(file), "--disable")[0] == 0
    assert json.loads(ran("user", "list", "--json")[1])[0] == {
        "name": "bob",
        "kind": "Normal",
        "enabled": False,
        "brokers": [mq.remoting],
    }
    assert ran("user", "update", "bob", "--enable", "--type", "super")[0] == 0
    with ferromq.Admin(mq.namesrv, access_key="bob", secret_key=SECRET) as bobs:
        assert len(bobs.users()) == 2
    resources = ("--resource", "topic:orders", "--resource", "Group:*")
    assert ran("acl", "create", "bob", *resources, "--action", "sub", "--source", "10.0.0.1")[0] == 0
    assert ran("acl", "create", "bob", *resources, "--action", "pub")[0] == 1
    assert ran("acl", "update", "bob", *resources[:2], "--action", "pub", "--deny")[0] == 0
    shown = ran("acl", "show", "bob")[1].splitlines()
    assert shown[1].split() == ["bob", "Custom", "Group:*", "Sub", "allow", "10.0.0.1", mq.remoting]
    assert shown[2].split() == ["bob", "Custom", "Topic:orders", "Pub", "deny", "all", mq.remoting]
    assert [each["resource"] for each in json.loads(ran("acl", "list", "--resource", "rders", "--json")[1])] == [
        "Topic:orders"
    ]
    whole = ran("user", "show", "bob")
    assert (whole[0], "Topic:orders" in whole[1], SECRET in "".join(map(str, whole))) == (0, True, False)
    assert ran("acl", "delete", "bob", "--resource", "Topic:orders", "--yes")[0] == 0
    assert ran("acl", "delete", "bob", "--resource", "Topic:orders", "--yes")[0] == 3
    assert ran("user", "delete", "bob", "--yes")[:2] == (0, "deleted user bob\n")
    missing = ran("user", "show", "bob")
    assert (missing[0], "ferromq user create" in missing[2]) == (3, True)


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize(
    ("words", "stdin", "told"),
    [
        (("user", "create", "bob"), "", "--secret-file FILE, or - for stdin"),
        (("user", "create", "bob", "--secret-file", "-"), "\n", "the secret key is blank"),
        (("user", "create", "bob", "--secret-file", "-"), 5000 * "x", "longer than 4096 bytes"),
        (("user", "create", "bob", "--secret-file", "gone"), "", "gone"),
        (("user", "create", "bob", "its-secret"), "", "unknown argument its-secret"),
        (("user", "update", "root"), "", "give what to change"),
        (("user", "delete", "root"), "", "give --yes"),
        (("acl", "delete", "root", "--policy", "Default", "--yes"), "", "--policy belongs to --resource"),
        (("acl", "create", "root", "--resource", "orders", "--action", "Pub"), "", "the resource is 'orders'"),
        (("acl", "create", "root", "--resource", "*", "--action", "send"), "", "'send' is not one of"),
    ],
)
def test_wrong_usage_of_them_ends_with_two(words: tuple[str, ...], stdin: str, told: str) -> None:
    """Before a broker is asked."""
    code, out, error = ran(*words, stdin=stdin)
    assert (code, out) == (2, "")
    assert told in error
