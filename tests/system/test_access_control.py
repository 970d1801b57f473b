"""Access control: who is let in by which way, what policies allow, and requests 3001 to 3010."""

import asyncio
import json
import logging
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest

import ferromq
from ferromq import aio
from ferromq._ferromq import RemotingClient, Server
from ferromq.broker import rpc
from ferromq.client.connection import Channels
from ferromq.errors import ConfigError, Forbidden
from ferromq.protocol.codes import RequestCode, ResponseCode

ROOT = ("root", "root's key")
ADA = ("ada", "ada's key")
Ask = Callable[..., tuple[int, str | None, dict[str, str], bytes]]


class Keys(TypedDict, total=False):
    """The options of a client for access control."""

    access_key: str
    secret_key: str


def keys(pair: tuple[str, str]) -> Keys:
    """Return the options of a client."""
    return {"access_key": pair[0], "secret_key": pair[1]}


def started(directory: Path, **options: Any) -> ferromq.Embedded:
    """Start a broker that checks signatures and policies."""
    whole = {"authentication_enabled": True, "authorization_enabled": True, "initial_user": ":".join(ROOT), **options}
    return ferromq.embedded(directory, **whole)


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ferromq.Embedded]:
    """Start a broker that checks signatures and policies."""
    with started(tmp_path / "store") as embedded:
        yield embedded


@pytest.fixture
def ask(mq: ferromq.Embedded) -> Iterator[Ask]:
    """Return a function that sends a request of a user over remoting."""
    clients: list[RemotingClient] = []

    def call(code: int, fields: dict[str, str], body: object = None, who: tuple[str, str] | None = ROOT) -> Any:
        client = RemotingClient(credentials=who)
        clients.append(client)
        return client.call(mq.remoting, code, fields, b"" if body is None else json.dumps(body).encode())

    yield call
    for client in clients:
        client.close()


def create(ask: Ask, user: tuple[str, str] = ADA, **fields: str) -> None:
    """Create a user."""
    code, remark, _, _ = ask(RequestCode.AUTH_CREATE_USER, {"username": user[0]}, {"password": user[1], **fields})
    assert code == ResponseCode.SUCCESS, remark


def allow(ask: Ask, resource: str, *actions: str, decision: str = "Allow", sources: tuple[str, ...] = ()) -> None:
    """Give the user `ada` a policy."""
    entry = {"resource": resource, "actions": list(actions), "decision": decision, "sourceIps": list(sources)}
    subject = f"User:{ADA[0]}"
    body = {"subject": subject, "policies": [{"policyType": "Custom", "entries": [entry]}]}
    code, remark, _, _ = ask(RequestCode.AUTH_CREATE_ACL, {"subject": subject}, body)
    assert code == ResponseCode.SUCCESS, remark


def test_clients_with_the_right_keys_send_and_receive(mq: ferromq.Embedded) -> None:
    """Sends, receives and acknowledgements over a socket, in frames."""
    with ferromq.connect(mq.endpoint, **keys(ROOT)) as here, here.producer() as producer:
        producer.send("orders", b"one")
        producer.submit("orders", b"two").result(10)
        producer.send_all("orders", [b"three"])
        with here.consumer("billing", "orders", begin="first") as consumer:
            received = consumer.receive_many(3, wait=10)
            assert sorted(message.body for message in received) == [b"one", b"three", b"two"]
            consumer.ack(received)
        with here.reader("orders", begin="first") as reader:
            assert len(list(reader.messages(until="end"))) == 3
        assert "orders" in here.admin().topics()


def test_asyncio_clients_sign(mq: ferromq.Embedded) -> None:
    """Sends and receives of `ferromq.aio`."""

    async def use() -> None:
        async with aio.connect(mq.endpoint, **keys(ROOT)) as here, here.producer() as producer:
            await producer.send("orders", b"one")
            async with here.consumer("billing", "orders", begin="first") as consumer:
                (message,) = await consumer.receive(1, wait=10)
                await consumer.ack([message])

    asyncio.run(use())


@pytest.mark.parametrize("given", [{}, keys((ROOT[0], "another key")), keys(("stranger", ROOT[1]))])
def test_clients_without_the_right_keys_are_refused(mq: ferromq.Embedded, given: Keys) -> None:
    """Each of them is Forbidden, over gRPC, in frames, over remoting and for administrators."""
    with ferromq.connect(mq.endpoint, timeout=5, **given) as stranger:
        with pytest.raises(Forbidden, match=r"credentials|secret key"):
            stranger.producer().send("orders", b"one")
        with pytest.raises(Forbidden, match=r"credentials|secret key"):
            stranger.consumer("billing", "orders").receive(1, wait=1)
        with pytest.raises(Forbidden, match=r"credentials|secret key"):
            stranger.admin().create_topic("more")
    with ferromq.connect(namesrv=mq.namesrv, **keys(ROOT)) as here:
        here.admin().create_topic("orders")
    with (
        ferromq.connect(namesrv=mq.namesrv, timeout=5, **given) as stranger,
        pytest.raises(Forbidden, match=r"credentials|secret key"),
    ):
        stranger.producer().send("orders", b"one")


def test_clients_behind_name_servers_sign(mq: ferromq.Embedded) -> None:
    """Clients over remoting alone, which Python signs."""
    with ferromq.connect(namesrv=mq.namesrv, **keys(ROOT)) as here, here.producer() as producer:
        here.admin().create_topic("orders")
        producer.send("orders", b"\x00\xff")
        with here.consumer("billing", "orders", begin="first") as consumer:
            (message,) = consumer.receive(1, wait=10)
            consumer.ack([message])


def test_keys_of_the_environment_hold(mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are used where a client is given none, and half of them is an error."""
    monkeypatch.setenv("FERROMQ_ACCESS_KEY", ROOT[0])
    with pytest.raises(ConfigError, match="FERROMQ_SECRET_KEY"):
        ferromq.Producer(mq.endpoint)
    monkeypatch.setenv("FERROMQ_SECRET_KEY", ROOT[1])
    with ferromq.Producer(mq.endpoint) as producer:
        producer.send("orders", b"one")


def test_policies_decide_what_a_user_may_do(mq: ferromq.Embedded, ask: Ask) -> None:
    """A change holds from the next request on, on open connections, too."""
    create(ask)
    allow(ask, "Topic:orders", "Pub")
    with ferromq.connect(mq.endpoint, timeout=5, **keys(ADA)) as here, here.producer() as producer:
        producer.send("orders", b"one")
        with pytest.raises(Forbidden, match=r'"ada" may not .*Topic:accounts'):
            producer.send("accounts", b"one")
        with pytest.raises(Forbidden, match=r"Group:billing|Topic:orders"):
            here.consumer("billing", "orders").receive(1, wait=1)
        allow(ask, "Topic:orders", "Pub", "Sub")
        allow(ask, "Group:bill*", "Sub")
        with here.consumer("billing", "orders", begin="first") as consumer:
            (message,) = consumer.receive(1, wait=10)
            consumer.ack([message])
        allow(ask, "Topic:orders", "All", decision="Deny")
        with pytest.raises(Forbidden, match="a policy denies it"):
            producer.send("orders", b"two")
        allow(ask, "Topic:orders", "All", sources=("192.0.2.0/24",))
        with pytest.raises(Forbidden, match="no policy allows it"):
            producer.send("orders", b"two")
        ask(RequestCode.AUTH_UPDATE_USER, {"username": ADA[0]}, {"userStatus": "disable"})
        with pytest.raises(Forbidden, match="disabled"):
            producer.send("orders", b"two")


@pytest.mark.parametrize("is_framed", [True, False])
def test_a_reader_needs_its_topic_alone(
    mq: ferromq.Embedded, ask: Ask, monkeypatch: pytest.MonkeyPatch, *, is_framed: bool
) -> None:
    """It has no group; a pull of a consumer has one."""
    if not is_framed:
        monkeypatch.setattr(Channels, "is_framed", lambda *_: False)
    create(ask)
    allow(ask, "Topic:orders", "Sub")
    allow(ask, "Topic:secrets", "Pub", "Get")
    queue = ferromq.Queue(mq.broker.identity.name, 0)
    with ferromq.connect(mq.endpoint, **keys(ROOT)) as here, here.producer() as producer:
        for topic in ("orders", "secrets"):
            producer.send(topic, b"one")
    with ferromq.connect(mq.endpoint, timeout=5, **keys(ADA)) as here:
        with here.reader("orders", begin="first") as reader:
            assert next(iter(reader)).body == b"one"
        with (
            here.reader("secrets", begin="first") as reader,
            pytest.raises(Forbidden, match=r'"ada" may not Sub Topic:secrets'),
        ):
            next(iter(reader))
        with here.consumer("billing", "orders") as consumer:
            for read in (lambda: consumer.pull(queue, 0), lambda: consumer.receive(1, wait=1)):
                with pytest.raises(Forbidden, match=r'"ada" may not .*Group:billing'):
                    read()


@pytest.mark.parametrize("code", [RequestCode.CHANGE_BROKER_STATE, RequestCode.RELOAD_CONFIG])
def test_draining_and_reloading_need_a_policy_for_the_cluster(ask: Ask, code: RequestCode) -> None:
    """A policy for other resources, or for other actions, is not enough; no request without a signature passes."""
    create(ask)
    fields = {"state": "serving"}
    for resource, actions in (("Topic:*", ("All",)), ("Cluster:*", ("Create", "Get", "List"))):
        allow(ask, resource, *actions)
        assert ask(code, fields, None, ADA)[0] == ResponseCode.NO_PERMISSION
    assert ask(code, fields, None, None)[0] == ResponseCode.NO_PERMISSION
    allow(ask, "Cluster:DefaultCluster", "Update")
    for user in (ADA, ROOT):
        answer, remark, _, _ = ask(code, fields, None, user)
        allowed = {RequestCode.CHANGE_BROKER_STATE: ResponseCode.SUCCESS}.get(code, ResponseCode.INVALID_PARAMETER)
        assert answer == allowed, remark


def test_a_message_is_found_by_its_id_in_its_own_topic_alone(mq: ferromq.Embedded, ask: Ask) -> None:
    """A user who may read one topic cannot read others by their offsets."""
    create(ask)
    allow(ask, "Topic:mine", "Get")
    with ferromq.connect(mq.endpoint, **keys(ROOT)) as here, here.producer() as producer:
        message_id = producer.send("orders", b"secret").offset_message_id
    assert message_id is not None
    offset = {"offset": str(int(message_id[-16:], 16))}
    assert b"secret" in ask(RequestCode.VIEW_MESSAGE_BY_ID, {**offset, "topic": "orders"})[3]
    for topic in ("orders", "mine"):
        code, _, _, body = ask(RequestCode.VIEW_MESSAGE_BY_ID, {**offset, "topic": topic}, who=ADA)
        assert code != ResponseCode.SUCCESS
        assert body == b""
    remarks = [
        ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place, "topic": "mine"}, who=ADA)[1].replace(place, "N")
        for place in (offset["offset"], "999999")
    ]
    assert remarks[0] == remarks[1], "whether there is a message of another topic is not told"


def test_a_message_is_given_back_by_readers_of_its_topic_alone(mq: ferromq.Embedded, ask: Ask) -> None:
    """Otherwise a user could have any message copied into the retries of its own group."""
    create(ask)
    allow(ask, "Group:billing", "Sub")
    allow(ask, "Topic:orders", "Sub")
    offsets = {}
    with ferromq.connect(mq.endpoint, **keys(ROOT)) as here, here.producer() as producer:
        here.admin().create_group("billing")
        for topic in ("orders", "secret"):
            message_id = producer.send(topic, b"body").offset_message_id
            assert message_id is not None
            offsets[topic] = str(int(message_id[-16:], 16))
    for topic, wanted in (("secret", ResponseCode.NO_PERMISSION), ("orders", ResponseCode.SUCCESS)):
        fields = {"group": "billing", "offset": offsets[topic], "delayLevel": "0", "originTopic": "orders"}
        code, remark, _, _ = ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields, who=ADA)
        assert code == wanted, remark
        assert "secret" not in (remark or "")


@pytest.mark.parametrize("white_list", ["", "37"])
def test_a_transaction_is_ended_by_users_who_may_send_to_its_topic(tmp_path: Path, white_list: str) -> None:
    """Old clients name no topic, and others could name another one; a white list holds here, too."""
    with started(tmp_path, authorization_whitelist=white_list) as mq:
        root, ada = RemotingClient(credentials=ROOT), RemotingClient(credentials=ADA)
        with ferromq.connect(mq.endpoint, **keys(ROOT)) as here:
            here.admin().create_topic("orders")
        body = json.dumps({"password": ADA[1]}).encode()
        root.call(mq.remoting, RequestCode.AUTH_CREATE_USER, {"username": ADA[0]}, body)
        entry = {"resource": "Topic:mine", "actions": ["Pub"], "decision": "Allow"}
        policies = json.dumps({"policies": [{"entries": [entry]}]}).encode()
        root.call(mq.remoting, RequestCode.AUTH_CREATE_ACL, {"subject": "User:ada"}, policies)
        half = {
            "a": "payers",
            "b": "orders",
            "e": "0",
            "f": "4",
            "g": "1",
            "i": "TRAN_MSG\x01true\x02PGROUP\x01payers\x02",
        }
        stored = root.call(mq.remoting, 310, {**half, "c": "TBW102", "d": "1", "h": "0", "j": "0"}, b"paid")
        assert stored[0] == ResponseCode.SUCCESS, stored[1]
        end = {
            "producerGroup": "payers",
            "tranStateTableOffset": stored[2]["queueOffset"],
            "commitLogOffset": str(int(stored[2]["msgId"][16:], 16)),
            "commitOrRollback": "8",
        }
        wanted = ResponseCode.SUCCESS if white_list else ResponseCode.NO_PERMISSION
        for named in ({}, {"topic": "mine"}):
            assert ada.call(mq.remoting, RequestCode.END_TRANSACTION, {**end, **named})[0] == wanted
        assert root.call(mq.remoting, RequestCode.END_TRANSACTION, end)[0] == ResponseCode.SUCCESS
        root.close()
        ada.close()


def test_requests_that_name_little_reach_no_other_topic(mq: ferromq.Embedded, ask: Ask) -> None:
    """A reply is not stored in any topic, and no other topic's message is passed on to a client."""
    create(ask)
    allow(ask, "Group:billing", "Sub")
    with ferromq.connect(mq.endpoint, **keys(ROOT)) as here, here.producer() as producer:
        message_id = producer.send("orders", b"secret").offset_message_id
    assert message_id is not None
    for code, field in ((RequestCode.SEND_REPLY_MESSAGE, "topic"), (RequestCode.SEND_REPLY_MESSAGE_V2, "b")):
        refused, remark, _, _ = ask(code, {field: "orders"}, {}, who=ADA)
        assert refused == ResponseCode.NO_PERMISSION
        assert remark is not None
        assert "Topic:orders" in remark
    fields = {"consumerGroup": "billing", "clientId": "ada", "msgId": message_id}
    refused, remark, _, _ = ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, who=ADA)
    assert refused != ResponseCode.SUCCESS
    assert remark is not None
    assert "no message of" in remark


def test_a_body_of_many_values_is_refused_before_it_is_read(ask: Ask) -> None:
    """They would take many times its bytes."""
    create(ask)
    body = [{"": 0}] * (1 << 18)
    code, remark, _, _ = ask(RequestCode.HEART_BEAT, {}, body, who=ADA)
    assert code == ResponseCode.NO_PERMISSION
    assert remark is not None
    assert "1048576" in remark


def test_the_last_super_user_stays(ask: Ask) -> None:
    """Whatever the change; another one makes way for it."""
    create(ask)
    changes = [
        ({"userStatus": "disable"}, RequestCode.AUTH_UPDATE_USER),
        ({"userType": "Normal"}, RequestCode.AUTH_UPDATE_USER),
    ]
    for body, request in [*changes, (None, RequestCode.AUTH_DELETE_USER)]:
        code, remark, _, _ = ask(request, {"username": ROOT[0]}, body)
        assert code != ResponseCode.SUCCESS
        assert remark is not None
        assert "super user" in remark
    assert ask(RequestCode.AUTH_UPDATE_USER, {"username": ADA[0]}, {"userType": "Super"})[0] == ResponseCode.SUCCESS
    assert ask(RequestCode.AUTH_DELETE_USER, {"username": ROOT[0]})[0] == ResponseCode.SUCCESS


def test_users_are_created_changed_shown_and_deleted(ask: Ask) -> None:
    """Passwords are never shown; an update without one keeps it, and a user without one is refused."""
    create(ask, userType="normal")
    code, _, _, body = ask(RequestCode.AUTH_GET_USER, {"username": ADA[0]})
    assert code == ResponseCode.SUCCESS
    assert json.loads(body) == {"username": "ada", "userType": "Normal", "userStatus": "enable"}
    assert ask(RequestCode.AUTH_GET_USER, {"username": "nobody"})[0::3] == (ResponseCode.SUCCESS, b"")
    _, _, _, body = ask(RequestCode.AUTH_LIST_USER, {"filter": ""})
    assert [user["username"] for user in json.loads(body)] == ["ada", "root"]
    assert b"password" not in body
    code, remark, _, _ = ask(RequestCode.AUTH_CREATE_USER, {"username": "bob"}, {"password": " "})
    assert code == ResponseCode.NO_PERMISSION
    assert remark is not None
    assert "password" in remark
    assert ask(RequestCode.AUTH_CREATE_USER, {"username": ADA[0]}, {"password": "x"})[0] == ResponseCode.NO_PERMISSION
    assert ask(RequestCode.AUTH_UPDATE_USER, {"username": ADA[0]}, {"userType": "Super"})[0] == ResponseCode.SUCCESS
    assert ask(RequestCode.AUTH_LIST_USER, {}, who=ADA)[0] == ResponseCode.SUCCESS, "with the old key"
    assert ask(RequestCode.AUTH_DELETE_USER, {"username": ADA[0]})[0] == ResponseCode.SUCCESS
    assert ask(RequestCode.AUTH_LIST_USER, {}, who=ADA)[0] == ResponseCode.NO_PERMISSION


def test_policies_are_shown_as_they_were_given(ask: Ask) -> None:
    """By user, and by filters; a deletion takes one entry, or all."""
    create(ask)
    allow(ask, "topic:orders", "pub", "Get", sources=("10.0.0.0/8",))
    allow(ask, "Group:*", "Sub", decision="deny")
    subject = {"subject": "User:ada"}
    entries = json.loads(ask(RequestCode.AUTH_GET_ACL, subject)[3])["policies"][0]["entries"]
    assert entries == [
        {"resource": "Topic:orders", "actions": ["Pub", "Get"], "sourceIps": ["10.0.0.0/8"], "decision": "Allow"},
        {"resource": "Group:*", "actions": ["Sub"], "decision": "Deny"},
    ]
    (found,) = json.loads(ask(RequestCode.AUTH_LIST_ACL, {"resourceFilter": "Group"})[3])
    assert [entry["resource"] for entry in found["policies"][0]["entries"]] == ["Group:*"]
    assert ask(RequestCode.AUTH_LIST_ACL, {"subjectFilter": "bob"})[3] == b""
    assert ask(RequestCode.AUTH_DELETE_ACL, {**subject, "resource": "Topic:orders"})[0] == ResponseCode.SUCCESS
    assert len(json.loads(ask(RequestCode.AUTH_GET_ACL, subject)[3])["policies"][0]["entries"]) == 1
    assert ask(RequestCode.AUTH_DELETE_ACL, subject)[0] == ResponseCode.SUCCESS
    assert ask(RequestCode.AUTH_GET_ACL, subject)[3] == b""


@pytest.mark.parametrize("resource", ["Topic:*", "Cluster:DefaultCluster"])
def test_users_need_a_policy_for_the_cluster_to_administer_users(ask: Ask, resource: str) -> None:
    """And even then they cannot touch super users."""
    create(ask)
    allow(ask, resource, "All")
    may = resource.startswith("Cluster")
    wanted = ResponseCode.SUCCESS if may else ResponseCode.NO_PERMISSION
    assert ask(RequestCode.AUTH_LIST_USER, {}, who=ADA)[0] == wanted
    assert ask(RequestCode.AUTH_CREATE_USER, {"username": "bob"}, {"password": "x"}, who=ADA)[0] == wanted
    for code, body in (
        (RequestCode.AUTH_CREATE_USER, {"password": "x", "userType": "Super"}),
        (RequestCode.AUTH_UPDATE_USER, {"userType": "Super"}),
        (RequestCode.AUTH_UPDATE_USER, {"password": "mine"}),
        (RequestCode.AUTH_DELETE_USER, None),
    ):
        answer, _, _, _ = ask(code, {"username": "root"}, body, who=ADA)
        assert answer in {ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR}


def test_without_authorization_users_may_all_but_administer_users(tmp_path: Path) -> None:
    """Signatures are checked, policies are not."""
    with started(tmp_path, authorization_enabled=False) as mq:
        root, ada = RemotingClient(credentials=ROOT), RemotingClient(credentials=ADA)
        body = json.dumps({"password": ADA[1]}).encode()
        assert root.call(mq.remoting, RequestCode.AUTH_CREATE_USER, {"username": "ada"}, body)[0] == 0
        with ferromq.Producer(mq.endpoint, **keys(ADA)) as producer:
            producer.send("orders", b"one")
        for code in (RequestCode.AUTH_LIST_USER, RequestCode.AUTH_GET_ACL):
            assert ada.call(mq.remoting, code, {"subject": "User:ada"})[0] == ResponseCode.NO_PERMISSION
        root.close()
        ada.close()


def test_while_it_is_off_users_cannot_be_planted(tmp_path: Path) -> None:
    """A request for users is refused, and says what to do."""
    with ferromq.embedded(tmp_path) as mq:
        client = RemotingClient()
        body = json.dumps({"password": "x", "userType": "Super"}).encode()
        code, remark, _, _ = client.call(mq.remoting, RequestCode.AUTH_CREATE_USER, {"username": "eve"}, body)
        client.close()
        assert code == ResponseCode.SYSTEM_ERROR
        assert remark is not None
        assert "authentication_enabled" in remark
    assert not (tmp_path / "ferromq" / "access.json").exists()


def test_users_survive_a_restart_in_a_file_of_their_owner(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the file's permissions nor the logs give a key away."""
    caplog.set_level(logging.DEBUG)
    with started(tmp_path) as mq, ferromq.Producer(mq.endpoint, **keys(ROOT)) as producer:
        producer.send("orders", b"one")
        assert ROOT[1] not in repr(producer) + repr(mq) + repr(mq.broker.config)
        client = RemotingClient(credentials=ROOT)
        shown = client.call(mq.remoting, RequestCode.GET_BROKER_CONFIG)[3]
        client.close()
        assert b"authenticationEnabled=true" in shown
        assert ROOT[1].encode() not in shown
    path = tmp_path / "ferromq" / "access.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with started(tmp_path, initial_user="root:a later key") as mq, ferromq.Producer(mq.endpoint, **keys(ROOT)) as again:
        again.send("orders", b"two")
    assert ROOT[1] not in caplog.text


def test_a_white_list_lets_requests_pass(tmp_path: Path) -> None:
    """By code, and by the name of a gRPC request; an unknown name is an error."""
    unsigned = "30,apache.rocketmq.v2.QueryRouteRequest"
    with started(tmp_path, authentication_whitelist=unsigned, authorization_whitelist=unsigned) as mq:
        client = RemotingClient()
        offset = client.call(mq.remoting, RequestCode.GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"})
        other = client.call(mq.remoting, RequestCode.GET_MIN_OFFSET, {"topic": "TBW102", "queueId": "0"})
        client.close()
        assert offset[0] != ResponseCode.NO_PERMISSION
        assert other[0] == ResponseCode.NO_PERMISSION
    with pytest.raises(ConfigError, match="NoSuchRequest"):
        started(tmp_path, authorization_whitelist="apache.rocketmq.v2.NoSuchRequest")


def test_a_broker_without_any_user_does_not_start(tmp_path: Path) -> None:
    """No client could connect."""
    with pytest.raises(ConfigError, match="initial_user"):
        ferromq.embedded(tmp_path, authentication_enabled=True)
    with pytest.raises(ConfigError, match="needs authentication_enabled"):
        ferromq.embedded(tmp_path, authorization_enabled=True)


def test_super_users_see_passwords_where_the_option_says_so(tmp_path: Path) -> None:
    """As RocketMQ shows them."""
    with started(tmp_path, show_passwords=True) as mq:
        client = RemotingClient(credentials=ROOT)
        assert json.loads(client.call(mq.remoting, RequestCode.AUTH_GET_USER, {"username": "root"})[3])["password"]
        client.close()


def test_every_request_of_the_broker_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request without an entry would be for super users alone."""
    routes, table = list[int | str](), rpc.table

    def noting(*arguments: Any) -> Any:
        made = table(*arguments)
        routes.extend(made)
        return made

    monkeypatch.setattr(rpc, "table", noting)
    with ferromq.embedded(tmp_path):
        assert [route for route in (*routes, "Telemetry") if not Server.lists_access(route)] == []
