"""Users and policies of RocketMQ's own broker, by the administrator and the command line."""

import contextlib
from collections.abc import Iterator

import pytest
from dashboards import Visitor, served
from java_processes import JavaBroker, JavaNameServer, access_options

import ferromq
from ferromq.admin import PolicyEntry, User
from ferromq.cli import main as cli

PATIENCE = 60.0
ROOT = ("root", "a long secret")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Run RocketMQ's servers with access control; yield the addresses of name server and broker."""
    directory = tmp_path_factory.mktemp("servers")
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(JavaNameServer(directory / "namesrv"))
        broker = stack.enter_context(JavaBroker(directory / "broker", names.address, **access_options(ROOT)))
        yield names.address, broker.address


def test_users_and_policies_of_a_java_broker(servers: tuple[str, str]) -> None:
    """The same calls and errors as with a broker of ferromq; RocketMQ answers passwords, which are dropped."""
    namesrv, broker = servers
    with ferromq.Admin(namesrv, timeout=PATIENCE, access_key=ROOT[0], secret_key=ROOT[1]) as admin:
        assert admin.users() == [User("root", "Super", enabled=True, brokers=(broker,))]
        admin.create_user("bob", "bob's key")
        with pytest.raises(ferromq.AlreadyExists):
            admin.create_user("bob", "bob's key")
        assert admin.users("bob") == [User("bob", "Normal", enabled=True, brokers=(broker,))]
        for _ in range(2):
            admin.create_acl("bob", ("Topic:orders*", "Group:*"), ("Pub", "Sub"), sources="10.0.0.0/8")
        with pytest.raises(ferromq.AlreadyExists):
            admin.create_acl("bob", "Topic:orders*", "Pub")
        admin.update_acl("bob", "Topic:orders*", "Get", allow=False)
        assert admin.acls("bob") == [
            PolicyEntry("bob", "Custom", "Group:*", ("Pub", "Sub"), ("10.0.0.0/8",), brokers=(broker,)),
            PolicyEntry("bob", "Custom", "Topic:orders*", ("Get",), (), allow=False, brokers=(broker,)),
        ]
        assert admin.acls() == admin.acls("bob")
        with (
            ferromq.Admin(namesrv, timeout=PATIENCE, access_key="bob", secret_key="bob's key") as bobs,
            pytest.raises(ferromq.Forbidden),
        ):
            bobs.users()
        admin.delete_acl("bob", resource="Topic:orders*")
        with pytest.raises(ferromq.PolicyNotFound):
            admin.delete_acl("bob", resource="Topic:orders*")
        admin.delete_acl("bob")
        assert admin.acls("bob") == []
        admin.update_user("bob", super_user=True, secret_key="another", enabled=False)
        assert admin.users("bob", broker=broker) == [User("bob", "Super", enabled=False, brokers=(broker,))]
        admin.delete_user("bob")
        for call in (admin.users, admin.acls, admin.delete_user):
            with pytest.raises(ferromq.UserNotFound):
                call("bob")


def test_the_commands_work_there(
    servers: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Signed with the keys of the environment."""
    for name, value in zip(("ACCESS_KEY", "SECRET_KEY"), ROOT, strict=True):
        monkeypatch.setenv(f"FERROMQ_{name}", value)
    assert cli.main(["user", "list", "--namesrv", servers[0], "--timeout", str(PATIENCE)]) == 0
    assert capsys.readouterr().out.split()[4:7] == ["root", "Super", "yes"]


def test_users_of_a_java_broker_sign_in_at_the_dashboard(servers: tuple[str, str]) -> None:
    """A right key enters, whatever its user may do; a wrong key or an unknown user does not."""
    namesrv, _ = servers
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(
            ferromq.Admin(namesrv, timeout=PATIENCE, access_key=ROOT[0], secret_key=ROOT[1]),
        )
        admin.create_user("eve", "eve's key")
        stack.callback(admin.delete_user, "eve")
        visitor = stack.enter_context(Visitor(stack.enter_context(served(namesrv, timeout=PATIENCE))))
        for user, key, status in (
            (*ROOT, 303),
            ("eve", "eve's key", 303),
            (ROOT[0], "eve's key", 403),
            ("eve", "", 403),
            ("mallory", "eve's key", 403),
        ):
            assert visitor.sign_in(user, key).status_code == status, (user, key)
