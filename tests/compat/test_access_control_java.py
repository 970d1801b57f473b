"""Access control with RocketMQ's own programs: mqadmin makes users and policies, official clients sign."""

import json
from collections.abc import Iterator

import mqadmin_script
import pytest
from compat_peer import Clients, PeerError
from mqadmin_script import alike, own
from official_peer import Official

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.protocol.codes import RequestCode

ROOT = ("root", "a long secret")
ADA = ("ada", "ada-s-secret")


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


def test_our_mqadmin_prints_the_same_about_users(
    clients: Clients, mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both tools make the same user and policies, one after the other, and see them alike."""
    monkeypatch.setenv("FERROMQ_ACCESS_KEY", ROOT[0])
    monkeypatch.setenv("FERROMQ_SECRET_KEY", ROOT[1])

    def both(words: str) -> None:
        given = (*words.split(), "-n", mq.namesrv)
        expected = clients.signed_admin(ROOT, *given)
        assert mqadmin_script.FAILED not in expected
        assert alike(words, own(*given)) == alike(words, expected)

    place = f"-b {mq.remoting}"
    for words in (
        f"createUser -u cleo -p secrets -t Normal {place}",
        f"createAcl -s User:cleo -r Topic:a*,Group:* -a Pub,Sub -d Allow -i 10.0.0.1 {place}",
    ):
        clients.signed_admin(ROOT, *words.replace("cleo", "dora").split())
        assert "success" in own(*words.split())
    both(f"updateAcl -s User:cleo -r Topic:b -a All -d Deny {place}")
    both("updateUser -u cleo -t Super -c DefaultCluster")
    for words in (
        "getUser -u cleo -c DefaultCluster",
        "listUser -c DefaultCluster",
        f"listUser -f cle {place}",
        f"getAcl -s User:cleo {place}",
        "listAcl -c DefaultCluster",
        f"listAcl -s User:cleo -r Topic:b {place}",
        f"copyAcl -f {mq.remoting} -t {mq.remoting} -s User:cleo",
        f"deleteAcl -s User:cleo -r Topic:b {place}",
        f"getAcl -s User:cleo {place}",
    ):
        both(words)
    # RocketMQ's tool says success without the secret key, which the broker keeps back.
    assert f"{mqadmin_script.FAILED}: exit code 1" in own(
        "copyUser", "-f", mq.remoting, "-t", mq.remoting, "-u", "cleo"
    )
    shown = own("listAcl", "-b", mq.remoting)
    assert [line.replace("cleo", "dora") for line in shown.splitlines() if "cleo" in line] == [
        line for line in shown.splitlines() if "dora" in line
    ]
    assert "success" in own("deleteUser", "-u", "cleo", "-b", mq.remoting)
    assert "cleo" not in own("listUser", "-b", mq.remoting)
    monkeypatch.setenv("FERROMQ_SECRET_KEY", "another")
    assert mqadmin_script.FAILED in own("listUser", "-b", mq.remoting)


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
