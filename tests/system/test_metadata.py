"""The metadata of a cluster, exported and imported into another one."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ferromq
from ferromq.admin.metadata import Metadata
from ferromq.broker.controller import BrokerController
from ferromq.cli.main import main
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.protocol.codes import RequestCode

FREE = "127.0.0.1:0"
ROOT = {"access_key": "root", "secret_key": "long secret"}


class Cluster:
    """A name server and brokers."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack, *names: str, **options: Any) -> None:
        self.name_server = stack.enter_context(contextlib.closing(NamesrvController(NameServerConfig(listen=FREE))))
        self.address = self.name_server.address
        self.brokers = {}
        for name in names:
            given = {"store": directory / name, "name": name, "namesrv": self.address, "commit_log_file_size": "1MiB"}
            given |= {"listen": FREE, "grpc_listen": FREE, "fast_listen": "off", **options}
            self.brokers[name] = stack.enter_context(
                contextlib.closing(BrokerController(BrokerConfig.from_options(given)))
            )
        keys = ROOT if "initial_user" in options else {}
        self.admin = stack.enter_context(ferromq.Admin(self.address, **keys))


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """Close everything at the end."""
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.fixture
def one(tmp_path: Path, stack: contextlib.ExitStack) -> Cluster:
    """Run a cluster with something of each kind."""
    found = Cluster(tmp_path / "one", stack, "a", "b")
    admin = found.admin
    admin.create_topic("orders", queues=3)
    admin.create_topic("accounts", queues=2, message_type="FIFO")
    admin.create_group("billing", fifo=True, retries=3, retry_delays=[1, 10])
    admin.configure_broker("a", {"transactionCheckMax": "7"})
    admin.configure_name_servers({"waitSecondsForService": "46"})
    put(admin, "OURS", "colour", "red")
    with ferromq.Producer(found.brokers["a"].endpoint) as producer:
        for _ in range(6):
            producer.send("orders", b"x")
    while admin.describe_topic("orders").messages < 6:
        pass
    admin.reset_offsets("billing", "orders", "end")
    return found


def put(admin: ferromq.Admin, namespace: str, key: str, value: str) -> None:
    """Write a value of the name servers' table, as an operator does."""
    fields = {"namespace": namespace, "key": key, "value": value}
    admin._cluster.everywhere(RequestCode.PUT_KV_CONFIG, fields)  # type: ignore[union-attr] # it has name servers


def test_another_cluster_becomes_the_same(one: Cluster, tmp_path: Path, stack: contextlib.ExitStack) -> None:
    """A dry run changes nothing, and a second import neither."""
    two = Cluster(tmp_path / "two", stack, "a", "b")
    exported = one.admin.export_metadata(namespaces=["OURS"])
    assert exported.topics["orders"].keys() == {"*"}
    assert exported.broker_options.keys() == {"a", "b"}
    assert (exported.users, exported.offsets) == (None, None)
    before = two.admin.export_metadata(namespaces=["OURS"])
    planned = two.admin.import_metadata(exported, dry_run=True)
    assert two.admin.export_metadata(namespaces=["OURS"]) == before
    progress: list[tuple[int, int]] = []
    wanted = Metadata.from_json(exported.to_json())
    made = two.admin.import_metadata(wanted, on_progress=lambda done, total: progress.append((done, total)))
    assert made == planned
    totals = {total for _, total in progress}
    assert ([done for done, _ in progress[:-1]], totals) == ([*range(1, progress[-1][1] + 1)], {progress[-1][0]})
    assert {change.kind for change in made.changes} == {"topic", "group", "option", "value"}
    assert made.is_complete
    there = two.admin.export_metadata(namespaces=["OURS"])
    assert there.to_json().replace(two.address, one.address) == exported.to_json()
    assert two.admin.import_metadata(exported).changes == ()


def test_offsets_only_if_they_are_wanted(one: Cluster) -> None:
    """Each goes to the broker that it was taken from."""
    exported = one.admin.export_metadata(offsets=True)
    assert exported.offsets is not None
    assert exported.offsets["billing"]["orders"].keys() == {"a", "b"}
    one.admin.reset_offsets("billing", "orders", "begin")
    assert one.admin.lag("billing").messages == 6
    assert one.admin.import_metadata(exported).changes == ()
    assert {change.kind for change in one.admin.import_metadata(exported, offsets=True).changes} == {"offset"}
    assert one.admin.lag("billing").messages == 0


def test_what_does_not_fit_is_named_and_the_rest_is_made(
    one: Cluster, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    """Other brokers, order configurations of brokers that are not there, unknown options."""
    two = Cluster(tmp_path / "two", stack, "x")
    text = json.loads(one.admin.export_metadata(namespaces=["OURS"]).to_json())
    text["broker_options"]["*"] = {"region": "here", "colour": "red", "transaction_check_max": "no number"}
    text["users"] = {"alice": {"*": {"kind": "Normal", "enabled": True}}}
    made = two.admin.import_metadata(Metadata.from_json(json.dumps(text)))
    failed = {(change.kind, change.name, change.where): str(change.error) for change in made.changes if change.error}
    assert {kind for kind, _, _ in failed} == {"option", "value", "user"}
    assert "the cluster has no broker a; it has x" in failed["option", "options", "a"]
    assert "the cluster has no broker a" in failed["value", "ORDER_TOPIC_CONFIG/accounts", "*"]
    assert "no such option" in failed["option", "colour", "x"]
    assert "transaction_check_max" in failed["option", "transaction_check_max", "x"]
    assert "access control is off" in failed["user", "alice", "*"]
    assert not made.is_complete
    assert two.admin.broker_config("x")["region"] == "here"
    assert two.admin.describe_topic("orders").brokers[0].read_queues == 3
    assert two.admin.describe_group("billing").retries == 3


def test_users_come_without_their_secret_keys(tmp_path: Path, stack: contextlib.ExitStack) -> None:
    """An import names the users without a secret key, and adds policies to users that exist."""
    guarded = {
        "authentication_enabled": True,
        "initial_user": "root:long secret",
        "inner_credentials": "root:long secret",
    }
    one, two = (Cluster(tmp_path / name, stack, "a", **guarded) for name in ("one", "two"))
    one.admin.create_user("alice", "very secret")
    one.admin.create_acl("alice", "Topic:orders", ["Pub", "Sub"], sources="10.0.0.0/8")
    exported = one.admin.export_metadata()
    assert "secret" not in exported.to_json()
    first = two.admin.import_metadata(exported)
    assert (first.without_key, first.is_complete) == (("alice",), False)
    two.admin.create_user("alice", "another secret", super_user=True)
    second = two.admin.import_metadata(exported)
    assert [(change.kind, change.name) for change in second.changes] == [
        ("user", "alice"),
        ("policy", "alice Topic:orders"),
    ]
    assert two.admin.import_metadata(exported).changes == ()
    assert two.admin.export_metadata() == exported


def test_attributes_that_are_not_there_are_removed(one: Cluster) -> None:
    """Settings become equal, also if that takes something away."""
    exported = one.admin.export_metadata()
    one.admin.alter_topic("orders", message_type="NORMAL", queues=9, permission="r")
    made = one.admin.import_metadata(exported)
    assert [change.error for change in made.changes] == [None, None]
    assert one.admin.export_metadata() == exported


def test_fields_of_other_versions_are_not_compared(one: Cluster) -> None:
    """A broker drops settings of a group that it does not know, so they never become equal."""
    text = json.loads(one.admin.export_metadata().to_json())
    text["groups"]["billing"]["*"] |= {"retryMaxTimes": 9, "aFieldOfLater": 1}
    wanted = Metadata.from_json(json.dumps(text))
    assert one.admin.import_metadata(wanted).is_complete
    assert one.admin.describe_group("billing").retries == 9
    assert one.admin.import_metadata(wanted).changes == ()


def test_a_broker_that_goes_during_an_import_is_named(
    one: Cluster, tmp_path: Path, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one gets everything; it can be asked again."""
    two = Cluster(tmp_path / "two", stack, "a", "b")
    exported = one.admin.export_metadata()
    address = two.brokers["b"].address
    ask = two.admin._calls.ask

    def fails(at: str, code: RequestCode, *arguments: Any, **options: Any) -> bytes:
        if at == address and code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            raise ferromq.errors.ConnectionFailed("gone")
        return ask(at, code, *arguments, **options)

    monkeypatch.setattr(two.admin._calls, "ask", fails)
    made = two.admin.import_metadata(exported)
    failed = {(change.kind, change.name) for change in made.changes if change.error}
    assert failed == {("topic", "accounts"), ("topic", "orders"), ("group", "billing")}
    assert {change.where for change in made.changes if change.error} == {"b"}
    monkeypatch.undo()
    assert two.admin.import_metadata(exported).is_complete
    assert two.admin.import_metadata(exported).changes == ()


def test_the_commands(
    one: Cluster, tmp_path: Path, stack: contextlib.ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """They write and read a file, tell what changes, and end with 1 if something failed."""
    two = Cluster(tmp_path / "two", stack, "a", "b")
    file = tmp_path / "cluster.json"
    assert main(["cluster", "export", str(file), "--kv-namespace", "OURS", "--namesrv", one.address]) == 0
    command = ["cluster", "import", str(file), "--namesrv", two.address]
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert "changes would be made" in planned
    assert main(command) == 2  # there is no terminal to ask at
    assert main([*command, "--yes"]) == 0
    capsys.readouterr()
    assert main([*command, "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []
    wanted = two.admin.describe_topic("orders").brokers[0].read_queues
    two.admin.alter_topic("orders", queues=wanted + 5)
    assert main([*command, "--dry-run"]) == 0
    assert f"readQueueNums {wanted + 5} -> {wanted}" in capsys.readouterr().out
    file.write_text('{"version": 9}')
    assert main([*command, "--yes"]) == 2
    assert "version is 9" in capsys.readouterr().err.replace("of the document ", "")
    assert main(["cluster", "export", str(file / "x.json"), "--namesrv", one.address]) == 1
