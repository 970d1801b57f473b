"""The audit log: a line for each administrative change, and none for what clients do all day."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq._proto import messages as pb
from ferromq.broker import rpc
from ferromq.broker.administration import log_level
from ferromq.process import logs
from ferromq.process.logs import JsonLine
from ferromq.protocol import audit
from ferromq.protocol.codes import RequestCode

ROOT = ("root", "root's key")
SECRET = "not for logs"
FIELDS = {
    **dict.fromkeys(("topic", "group", "groupName", "consumerGroup", "srcGroup", "destGroup"), "gone\nuser=eve"),
    **dict.fromkeys(("username", "namespace", "brokerName", "key"), "some"),
    "value": SECRET,
    "state": "asleep",
    "subject": "User:some",
    "readable": "true",
}
BODY = {
    "password": SECRET,
    "groupName": "some",
    "topic": "some",
    "topicConfigList": [{"topicName": "some"}],
    "groupConfigList": [{"groupName": "some"}],
    "subject": "User:some",
}
OPTIONS = (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG)
WHOLE = (
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.RELOAD_CONFIG,
)
"""Requests about the whole server."""
OF_CLIENTS = {
    RequestCode.END_TRANSACTION,
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.RECALL_MESSAGE,
    RequestCode.ACK_LITE_MESSAGE,
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.LITE_SUBSCRIPTION_CTL,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
    RequestCode.TRIGGER_LITE_DISPATCH,
}
"""Requests that change what clients do or have; those about lite topics are always refused."""
OF_BROKERS = {RequestCode.REGISTER_BROKER, RequestCode.BROKER_HEARTBEAT}
"""Requests that brokers repeat all the time."""
READING = ("GET_", "QUERY_", "VIEW_", "SEARCH_", "CHECK_", "INVOKE_BROKER_TO_GET_", "AUTH_GET_", "AUTH_LIST_")


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ferromq.Embedded]:
    """Start a broker that checks signatures."""
    with ferromq.embedded(tmp_path, authentication_enabled=True, initial_user=":".join(ROOT)) as embedded:
        yield embedded


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of the lines so far."""
    records = [record for record in caplog.records if record.name == "ferromq.audit"]
    return [json.loads(JsonLine().format(record))["fields"] for record in records]


def test_each_change_has_a_line(mq: ferromq.Embedded, caplog: pytest.LogCaptureFixture) -> None:
    """It names the user that signed, its address, the subject and the outcome, whether it was carried out or not."""
    caplog.set_level(logging.INFO, "ferromq.audit")
    client = RemotingClient(credentials=ROOT)
    for code in audit.CHANGES:
        body = f"initial_user=root:{SECRET}\n".encode() if code in OPTIONS else json.dumps(BODY).encode()
        for server in (mq.remoting, mq.namesrv):
            answer = client.call(server, code, FIELDS, body)[0]
            if answer != 3:
                break
        (line,) = lines(caplog)
        assert line["request"] == code.name
        assert line["user"] == (ROOT[0] if server == mq.remoting else "-")
        assert line["peer"].startswith("127.0.0.1:")
        assert (line["subject"] == "-") == (code in WHOLE), line
        assert not any(
            "\n" in text for text in (caplog.records[-1].getMessage(), JsonLine().format(caplog.records[-1]))
        )
        caplog.clear()
    client.close()
    assert SECRET not in caplog.text


def test_a_line_says_what_a_policy_grants(mq: ferromq.Embedded, caplog: pytest.LogCaptureFixture) -> None:
    """Resource, actions, sources and decision of each entry stand together."""
    caplog.set_level(logging.INFO, "ferromq.audit")
    with ferromq.Admin(mq.namesrv, access_key=ROOT[0], secret_key=ROOT[1]) as admin:
        admin.create_user("ada", SECRET)
        caplog.clear()
        admin.create_acl("ada", ["Topic:pay", "Group:payers"], ["Pub", "Sub"], sources=["10.0.0.0/8", "10.1.0.1"])
        admin.update_acl("ada", "Topic:pay", "Get", allow=False)
    granted = "actions=Pub,Sub sources=10.0.0.0/8,10.1.0.1 decision=Allow"
    subjects = [line["subject"] for line in lines(caplog)]
    assert subjects == [
        f"subject=User:ada policyType=Custom resource=Topic:pay {granted} resource=Group:payers {granted}",
        "subject=User:ada policyType=Custom resource=Topic:pay actions=Get decision=Deny",
    ]
    caplog.clear()
    client = RemotingClient(credentials=ROOT)
    for policies in ("text", [None, {"entries": "text"}, {"entries": ["text", {"resource": {}, "actions": [1]}]}]):
        body = json.dumps({"policies": policies}).encode()
        client.call(mq.remoting, RequestCode.AUTH_CREATE_ACL, {"subject": "User:ada"}, body)
    client.close()
    assert [line["subject"] for line in lines(caplog)] == ["subject=User:ada"] * 2


def test_a_change_of_the_log_level_has_a_line_whatever_the_level(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a change of the level would hide what follows."""
    monkeypatch.setattr(logging.getLogger(), "level", logging.CRITICAL)
    caplog.set_level(logging.INFO, "ferromq.audit")  # as in a server process
    levels = list[str]()
    monkeypatch.setattr(logs, "change", levels.append)
    body = pb.ChangeLogLevelRequest(level=pb.ChangeLogLevelRequest.Level.ERROR).SerializeToString()
    request: Any = SimpleNamespace(user="ada", certificate=None, peer="10.0.0.9:1", body=body)
    log_level.change_log_level(request)
    assert levels == ["error"]
    (line,) = lines(caplog)
    assert line == {
        "request": "ChangeLogLevel",
        "user": "ada",
        "certificate": "-",
        "peer": "10.0.0.9:1",
        "subject": "level=ERROR",
        "outcome": "SUCCESS",
    }


def test_each_request_is_a_change_or_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new request without a decision fails here."""
    routes, table = set[int | str](), rpc.table

    def noting(*arguments: Any) -> Any:
        made = table(*arguments)
        routes.update(made)
        return made

    monkeypatch.setattr(rpc, "table", noting)
    with ferromq.embedded(tmp_path) as mq:
        routes.update(mq._name_server._requests.table())
    undecided = [
        RequestCode(code).name
        for code in routes
        if isinstance(code, int)
        and RequestCode(code) not in {*audit.CHANGES, *OF_CLIENTS, *OF_BROKERS}
        and not RequestCode(code).name.startswith(READING)
    ]
    assert undecided == []
    assert set(audit.CHANGES) <= routes


def test_what_servers_do_by_themselves_has_no_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broker tells name servers its gRPC address, and that it stops; of others, the same is a change."""
    caplog.set_level(logging.INFO, "ferromq.audit")
    with ferromq.embedded(tmp_path) as mq:
        assert lines(caplog) == []
        client = RemotingClient()
        for value in ("10.0.0.66:8081", "gone"):
            fields = {"namespace": "FERROMQ_GRPC", "key": mq.broker.identity.name, "value": value}
            client.call(mq.namesrv, RequestCode.PUT_KV_CONFIG, fields)
        leaving = {"clusterName": "DefaultCluster", "brokerName": "a", "brokerId": "0", "brokerAddr": "10.0.0.66:10911"}
        client.call(mq.namesrv, RequestCode.UNREGISTER_BROKER, leaving)
        client.close()
        assert [line["request"] for line in lines(caplog)] == ["PUT_KV_CONFIG", "PUT_KV_CONFIG", "UNREGISTER_BROKER"]
        caplog.clear()
    assert lines(caplog) == []


def test_a_program_decides_the_level_of_the_lines() -> None:
    """A server process always writes them, unless its filter names them."""
    script = """
import logging, sys
from ferromq.process import logs
from ferromq.protocol import audit
found = logging.getLogger("ferromq.audit")
assert found.level == logging.NOTSET
logs.install(sys.argv[1])
print(found.getEffectiveLevel())
"""
    for levels, level in (("error", logging.INFO), ("info,ferromq::audit=off", logging.CRITICAL + 1)):
        command = [sys.executable, "-c", script, levels]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert int(done.stdout) == level
