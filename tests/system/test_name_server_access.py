"""Access control of a name server: who may register brokers, change routes, and look them up."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import ferromq
from ferromq._ferromq import RemotingClient, Server
from ferromq.broker.controller import BrokerController
from ferromq.cli.main import main
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import ConfigError, Forbidden
from ferromq.namesrv.server import NamesrvController
from ferromq.protocol.codes import RequestCode, ResponseCode

ROOT = ("root", "root's key")
BROKER = ("broker", "broker's key")
ADA = ("ada", "ada's key")
LOCAL = "127.0.0.1:0"
OF_ADMINISTRATORS = {
    RequestCode.REGISTER_BROKER: {
        "clusterName": "c",
        "brokerName": "b",
        "brokerId": "0",
        "brokerAddr": "127.0.0.1:9",
    },
    RequestCode.UNREGISTER_BROKER: {
        "clusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": "0",
        "brokerAddr": "127.0.0.1:9",
    },
    RequestCode.BROKER_HEARTBEAT: {"clusterName": "c", "brokerAddr": "127.0.0.1:9"},
    RequestCode.QUERY_DATA_VERSION: {"clusterName": "c", "brokerAddr": "127.0.0.1:9"},
    RequestCode.PUT_KV_CONFIG: {"namespace": "n", "key": "k", "value": "v"},
    RequestCode.DELETE_KV_CONFIG: {"namespace": "n", "key": "k"},
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: {"brokerName": "broker-a"},
    RequestCode.ADD_WRITE_PERM_OF_BROKER: {"brokerName": "broker-a"},
    RequestCode.DELETE_TOPIC_IN_NAMESRV: {"topic": "orders"},
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: {"topic": "orders"},
    RequestCode.UPDATE_NAMESRV_CONFIG: {},
    RequestCode.GET_NAMESRV_CONFIG: {},
    RequestCode.GET_BROKER_CLUSTER_INFO: {},
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: {},
    RequestCode.AUTH_CREATE_USER: {"username": "eve"},
}


def started(directory: Path) -> NamesrvController:
    """Start a name server that checks signatures and policies."""
    return NamesrvController(
        NameServerConfig.from_options(
            {
                "listen": LOCAL,
                "access_directory": str(directory),
                "authentication_enabled": True,
                "authorization_enabled": True,
                "initial_user": ":".join(ROOT),
                "inner_credentials": ":".join(BROKER),
            }
        )
    )


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[NamesrvController]:
    """Start a name server with a user that has no rights."""
    server = started(tmp_path / "users")
    assert ask(server, RequestCode.AUTH_CREATE_USER, {"username": ADA[0]}, {"password": ADA[1]})[0] == 0
    yield server
    server.close()


def ask(
    server: NamesrvController,
    code: int,
    fields: dict[str, str],
    body: object = None,
    who: tuple[str, str] | None = ROOT,
) -> Any:
    """Send a request of a user."""
    client = RemotingClient(credentials=who)
    try:
        return client.call(server.address, code, fields, b"" if body is None else json.dumps(body).encode())
    finally:
        client.close()


def allow(server: NamesrvController, resource: str, *actions: str) -> None:
    """Give `ada` a policy."""
    entry = {"resource": resource, "actions": list(actions), "decision": "Allow"}
    body = {"subject": "User:ada", "policies": [{"policyType": "Custom", "entries": [entry]}]}
    assert ask(server, RequestCode.AUTH_CREATE_ACL, {"subject": "User:ada"}, body)[0] == ResponseCode.SUCCESS


@pytest.mark.parametrize("who", [None, (ROOT[0], "another key"), ADA])
def test_strangers_and_users_without_rights_change_nothing(
    namesrv: NamesrvController, who: tuple[str, str] | None
) -> None:
    """Neither do they see the cluster; an administrator needs a policy for it."""
    for code, fields in OF_ADMINISTRATORS.items():
        answer, remark, _, _ = ask(namesrv, code, fields, {"password": "x"}, who=who)
        assert answer == ResponseCode.NO_PERMISSION, (code, remark)
    if who == ADA:
        allow(namesrv, "Cluster:*", "All")
        for code, fields in OF_ADMINISTRATORS.items():
            assert ask(namesrv, code, fields, {"password": "x"}, who=who)[0] != ResponseCode.NO_PERMISSION, code


def test_brokers_register_and_clients_look_up_what_policies_allow(
    namesrv: NamesrvController, tmp_path: Path, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """A broker signs with its inner credentials; a client needs Pub, Sub or Get on the topic."""
    options = {"namesrv": namesrv.address, "listen": LOCAL, "grpc_listen": LOCAL, "store": str(tmp_path / "store")}
    stranger = BrokerController(BrokerConfig.from_options(options))
    stranger.close()
    assert namesrv.routes.topics() == []
    broker = BrokerController(BrokerConfig.from_options({**options, "inner_credentials": ":".join(BROKER)}))
    try:
        broker.topics.ensure("orders", "test")
        route = {"topic": "orders"}
        # The broker announces a topic of first use without waiting for the name server.
        assert eventually(lambda: "orders" in namesrv.routes.topics())
        assert ask(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, route)[0] == ResponseCode.SUCCESS
        for who in (None, ADA):
            answer = ask(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, route, who=who)
            assert (answer[0], answer[3]) == (ResponseCode.NO_PERMISSION, b"")
        with (
            ferromq.connect(namesrv=namesrv.address, access_key=ADA[0], secret_key=ADA[1], timeout=5) as mq,
            mq.producer() as producer,
        ):
            with pytest.raises(Forbidden, match=r"Topic:orders"):
                producer.send("orders", b"one")
            allow(namesrv, "Topic:orders", "Pub")
            producer.send("orders", b"one")
    finally:
        broker.close()


def test_users_survive_a_restart_and_keys_are_not_shown(tmp_path: Path) -> None:
    """They are in the name server's own file."""
    server = started(tmp_path / "users")
    assert ask(server, RequestCode.AUTH_CREATE_USER, {"username": ADA[0]}, {"password": ADA[1]})[0] == 0
    shown = ask(server, RequestCode.GET_NAMESRV_CONFIG, {})[3]
    server.close()
    assert b"authorizationEnabled=true" in shown
    assert f"authConfigPath={tmp_path / 'users'}".encode() in shown
    assert not any(key.encode() in shown for _, key in (ROOT, BROKER, ADA))
    server = started(tmp_path / "users")
    users = json.loads(ask(server, RequestCode.AUTH_LIST_USER, {})[3])
    server.close()
    assert [user["username"] for user in users] == ["ada", "broker", "root"]


def test_users_need_a_directory() -> None:
    """Otherwise a restart would lose them."""
    with pytest.raises(ConfigError, match="access_directory"):
        NameServerConfig.from_options({"authentication_enabled": True, "initial_user": "root:key"})


def test_every_request_of_a_name_server_is_listed(tmp_path: Path) -> None:
    """A request without an entry would be for super users alone."""
    server = NamesrvController(NameServerConfig(listen=LOCAL))
    try:
        assert [code for code in server._requests.table() if not Server.lists_access(int(code))] == []
    finally:
        server.close()


def test_a_start_that_fails_leaves_no_threads(tmp_path: Path) -> None:
    """A damaged table of users stops it before anything runs."""
    script = """
import pathlib, sys, threading
from ferromq.config.namesrv import NameServerConfig
from ferromq.errors import CorruptStore
from ferromq.namesrv.server import NamesrvController
options = {"listen": "127.0.0.1:0", "access_directory": sys.argv[1], "authentication_enabled": True}
try:
    NamesrvController(NameServerConfig.from_options(options))
except CorruptStore as error:
    found = error  # whose traceback keeps the half-made server
def handlers():
    names = (path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm"))
    return [name for name in names if name == "ferromq-handler"]
for _ in range(200):
    if handlers():
        threading.Event().wait(0.01)
print(handlers())
"""
    (tmp_path / "access.json").write_text("{")
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_an_open_name_server_is_reloaded_from_its_own_machine() -> None:
    """As a broker is; here the answer is that there is no file."""
    with contextlib.closing(NamesrvController(NameServerConfig(listen=LOCAL))) as server:
        with contextlib.closing(RemotingClient()) as client:
            code, remark, _, _ = client.call(server.address, RequestCode.RELOAD_CONFIG)
        assert (code, "without a configuration file" in str(remark)) == (ResponseCode.INVALID_PARAMETER, True)


def test_users_of_a_name_server_are_made_by_commands(
    namesrv: NamesrvController, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By its address in place of a broker's, without a secret in the words; no broker needs to be registered."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name, value in zip(("FERROMQ_ACCESS_KEY", "FERROMQ_SECRET_KEY"), ROOT, strict=True):
        monkeypatch.setenv(name, value)
    place = ("--namesrv", namesrv.address, "--broker", namesrv.address)
    with CliRunner().isolation("a secret\n") as (out, _, _):
        assert main(("user", "create", "bob", "--secret-file", "-", *place)) == 0
        assert main(("acl", "create", "bob", "--resource", "Topic:orders", "--action", "Sub", *place)) == 0
        assert main(("user", "show", "bob", *place)) == 0
        assert "Topic:orders" in out.getvalue().decode()
    with ferromq.Admin(namesrv.address, access_key="bob", secret_key="a secret") as admin, pytest.raises(Forbidden):
        admin.users(broker=namesrv.address)
    with ferromq.Admin(namesrv.address, access_key=ROOT[0], secret_key=ROOT[1]) as admin:
        admin.delete_user("bob", broker=namesrv.address)
        assert [user.name for user in admin.users(broker=namesrv.address)] == ["ada", "broker", "root"]
