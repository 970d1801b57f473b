"""Access control with RocketMQ's own programs: mqadmin makes users and policies, official clients sign."""

import json
from collections.abc import Iterator

import pytest
from compat_peer import Clients, PeerError
from official_peer import Official

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.protocol.codes import RequestCode

ROOT = ("root", "a long secret")
ADA = ("ada", "ada-s-secret")
pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ferromq.Embedded]:
    """Start a broker that checks signatures and policies."""
    with ferromq.embedded(
        tmp_path_factory.mktemp("store"),
        authentication_enabled=True,
        authorization_enabled=True,
        initial_user=":".join(ROOT),
    ) as embedded:
        client = RemotingClient(credentials=ROOT)
        policy = {"resource": "Topic:orders", "actions": ["Pub", "Sub"], "decision": "Allow"}
        group = {**policy, "resource": "Group:billing"}
        body = json.dumps({"policies": [{"entries": [policy, group]}]}).encode()
        password = json.dumps({"password": ADA[1]}).encode()
        assert client.call(embedded.remoting, RequestCode.AUTH_CREATE_USER, {"username": ADA[0]}, password)[0] == 0
        assert client.call(embedded.remoting, RequestCode.AUTH_CREATE_ACL, {"subject": "User:ada"}, body)[0] == 0
        client.close()
        with ferromq.connect(embedded.endpoint, access_key=ROOT[0], secret_key=ROOT[1]) as here:
            for topic in ("orders", "accounts"):
                here.admin().create_topic(topic)
        yield embedded


def test_mqadmin_makes_users_and_policies(clients: Clients, mq: ferromq.Embedded) -> None:
    """It sees them as it made them, without their passwords; unsigned it may do nothing."""
    broker = ("-b", mq.remoting)

    def signed(*words: str) -> str:
        return clients.signed_admin(ROOT, *words, "-b", mq.remoting)

    assert "success" in signed("createUser", "-u", "bob", "-p", "bob-s-secret")
    assert "success" in signed("createAcl", "-s", "User:bob", "-r", "Topic:a*,Group:*", "-a", "Pub,Sub", "-d", "Allow")
    shown = signed("listUser")
    assert "bob" in shown
    assert "bob-s-secret" not in shown
    shown = signed("getAcl", "-s", "User:bob")
    assert "Topic:a*" in shown
    assert "Allow" in shown
    assert "success" in signed("updateUser", "-u", "bob", "-t", "Super")
    assert "Super" in signed("getUser", "-u", "bob")
    assert "success" in signed("deleteUser", "-u", "bob")
    assert "bob" not in signed("listUser")
    assert "credentials" in clients.admin("listUser", *broker)
    assert "may not" in clients.signed_admin(ADA, "listUser", *broker)


def test_an_official_client_sends_and_receives_with_its_keys(official: Official, mq: ferromq.Embedded) -> None:
    """Its producer and its consumer, as a user with policies."""
    security = f"plain:{ADA[0]}:{ADA[1]}"
    official.producer("signed", mq.endpoint, "orders", security=security)
    official.send("signed", [("orders", "two teas", {})])
    official.simple("reading", mq.endpoint, "billing", "orders", security=security)
    (got,) = official.receive_until("reading", bool)
    assert got.body == "two teas"
    official.ask("close", "signed")
    official.ask("close", "reading")


@pytest.mark.parametrize("security", ["plain", "plain:ada:another", "plain:stranger:ada-s-secret"])
def test_an_official_client_without_its_keys_is_refused(
    official: Official, mq: ferromq.Embedded, security: str
) -> None:
    """It does not even start."""
    with pytest.raises(PeerError):
        official.producer(f"refused-{security}", mq.endpoint, "orders", security=security)


def test_an_official_client_is_refused_what_no_policy_allows(official: Official, mq: ferromq.Embedded) -> None:
    """A topic of others."""
    security = f"plain:{ADA[0]}:{ADA[1]}"
    with pytest.raises(PeerError):
        official.producer("others", mq.endpoint, "accounts", security=security)
    official.producer("signed-again", mq.endpoint, "orders", security=security)
    with pytest.raises(PeerError):
        official.send("signed-again", [("accounts", "two teas", {})])
