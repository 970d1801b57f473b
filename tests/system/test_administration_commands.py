"""The commands of `ferromq` for running servers: what they print, and how they end."""

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner
from dispatching import dispatched
from fault_proxy import FAULTS, Fault, FaultProxy
from ports import kept_port
from tls_files import SHOWN, TRUST

import ferromq
from ferromq.broker.controller import BrokerController
from ferromq.cli import main as cli
from ferromq.cli.administration import groups, messages
from ferromq.cli.administration.output import DONE, UNREACHABLE
from ferromq.cli.administration.target import TLS_VARIABLES
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.embedding import SMALL_FILES
from ferromq.namesrv.server import NamesrvController

FREE = "127.0.0.1:0"
CREDENTIALS = ("FERROMQ_ACCESS_KEY", "FERROMQ_SECRET_KEY")
PATIENCE = 15.0
Eventually = Callable[[Callable[[], bool]], bool]


class Ran(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    error: str

    @property
    def json(self) -> Any:
        """What it printed, parsed."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Each line that it printed, parsed."""
        return [json.loads(line) for line in self.out.splitlines()]


def ran(*words: str, stdin: str | bytes = "") -> Ran:
    """Run a command in this process, under click's runner."""
    with CliRunner().isolation(stdin) as (out, error, _):
        code = cli.main(words)
        return Ran(code, out.getvalue().decode(), error.getvalue().decode())


@pytest.fixture(autouse=True)
def no_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep contexts in a directory of the test, without addresses of the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("FERROMQ_CONTEXTS", "FERROMQ_ENDPOINT", "NAMESRV_ADDR", *CREDENTIALS, *TLS_VARIABLES.values()):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["--namesrv", "--endpoint"])
def mq(request: pytest.FixtureRequest) -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker, which a context names by either address."""
    with ferromq.embedded() as embedded:
        address = embedded.namesrv if request.param == "--namesrv" else embedded.endpoint
        assert ran("context", "add", "here", request.param, address).code == 0
        yield embedded


def test_topics_are_made_shown_changed_and_deleted(mq: ferromq.Embedded) -> None:
    """A deletion without a terminal needs --yes."""
    assert ran("topic", "create", "orders", "--queues", "2", "--type", "fifo").out == "created topic orders\n"
    assert ran("topic", "list", "--json").json == ["orders"]
    assert "TBW102" in ran("topic", "list", "--all").out
    shown = ran("topic", "describe", "orders")
    assert "2 queues, permission rw, FIFO" in shown.out
    assert ran("topic", "alter", "orders", "--permission", "r", "--queues", "3", "--json").json == {"altered": "orders"}
    found = ran("topic", "describe", "orders", "--json").json
    assert [(each["write_queues"], each["permission"]) for each in found["brokers"]] == [(3, "r")]
    assert len(found["queues"]) == 3
    refused = ran("topic", "delete", "orders")
    assert (refused.code, "give --yes" in refused.error) == (2, True)
    assert ran("topic", "delete", "orders", "--yes").code == 0
    missing = ran("topic", "describe", "orders")
    assert (missing.code, missing.out) == (3, "")
    assert "ferromq topic create NAME" in missing.error


def test_groups_are_made_shown_changed_moved_and_deleted(mq: ferromq.Embedded) -> None:
    """A move tells what it does before it is done, and --dry-run only tells it."""
    ran("topic", "create", "orders", "--queues", "1")
    made = ran("group", "create", "billing", "--retries", "3", "--retry-delay", "1", "--retry-delay", "2.5")
    assert made.code == 0
    assert ran("group", "list", "--json").json == ["billing"]
    assert "TOOLS_CONSUMER" in ran("group", "list", "--all").out
    refused = ran("group", "create", "TOOLS_CONSUMER")
    assert (refused.code, "is a system group; choose another name" in refused.error) == (2, True)
    assert ran("lag", "billing", "--topic", "nowhere").code == 3
    assert "3, after 1, 2.5 s" in ran("group", "describe", "billing").out
    assert ran("group", "alter", "billing", "--fifo").code == 0
    assert ran("group", "describe", "billing", "--json").json["fifo"] is True
    with mq.producer() as producer, mq.consumer("billing", "orders") as consumer:
        for number in range(3):
            producer.send("orders", b"%d" % number)
        dispatched(mq)
        consumer.ack(consumer.receive_many(2, wait=PATIENCE))
        (member,) = ran("group", "members", "billing", "--json").json
        assert (member["language"], member["protocol"]) == ("PYTHON", "grpc")
        assert "grpc" in ran("group", "members", "billing").out
        assert ran("group", "skip", "billing").code == 1  # before it asks, for which there is no terminal
        refused = ran("group", "skip", "billing", "--yes")
        assert (refused.code, "a connected consumer" in refused.error, "--force" in refused.error) == (1, True, True)
        assert mq.store.committed_offset("billing", "orders", 0) == 2
        assert ran("group", "skip", "billing", "--force", "--yes", "--json").json["skipped"] == 1
        assert ran("group", "reset", "billing", "orders", "--offset", "2", "--queue", "0", "--yes").code == 0
    lag = ran("lag", "billing", "--json").json
    assert (lag["messages"], lag["topics"][0]["topic"], lag["seconds"] >= 0) == (1, "orders", True)
    assert "billing is 1 message behind, the oldest is" in ran("lag", "billing", "--queues").out
    assert ran("lag", "--json").json == [{"group": "billing", "messages": 1}]
    assert "TOOLS_CONSUMER" in ran("lag", "--all").out
    told = ran("group", "reset", "billing", "orders", "--to", "begin", "--dry-run", "--json").json
    assert (told["done"], told["replayed"], told["skipped"]) == (False, 2, 0)
    refused = ran("group", "reset", "billing", "orders", "--to", "begin")
    assert (refused.code, "2 messages would be read once more" in refused.error) == (2, True)
    assert mq.store.committed_offset("billing", "orders", 0) == 2
    assert ran("group", "reset", "billing", "orders", "--to", "begin", "--yes").code == 0
    assert mq.store.committed_offset("billing", "orders", 0) == 0
    assert ran("group", "reset", "billing", "orders", "--offset", "1", "--queue", "0", "--yes").code == 0
    assert mq.store.committed_offset("billing", "orders", 0) == 1
    assert ran("group", "skip", "billing", "--yes", "--json").json["skipped"] == 2
    assert ran("group", "delete", "billing", "--yes").code == 0
    assert ran("group", "describe", "billing").code == 3


def test_messages_are_sent_read_and_found(mq: ferromq.Embedded, eventually: Eventually, tmp_path: Path) -> None:
    """From an argument, a file, stdin, and lines that `tail --json` printed."""
    ran("topic", "create", "orders", "--queues", "1")
    first = ran("send", "orders", "two teas", "--key", "o-1", "--tag", "new", "--property", "table=7", "--json").json
    assert (first["topic"], first["queue_offset"]) == ("orders", 0)
    body = tmp_path / "body"
    body.write_bytes(b"\xff\x00")
    assert ran("send", "orders", "--file", str(body)).code == 0
    assert ran("send", "orders", "-", stdin=b"from stdin").code == 0
    assert eventually(lambda: len(ran("tail", "orders", "--json").lines) == 3)
    lines = ran("tail", "orders", "--json")
    assert [each.get("body", each.get("body_base64")) for each in lines.lines] == ["two teas", "/wA=", "from stdin"]
    assert (lines.lines[0]["keys"], lines.lines[0]["properties"]) == (["o-1"], {"table": "7"})
    ran("topic", "create", "copies", "--queues", "1")
    assert len(ran("send", "copies", "-", "--json-lines", stdin=lines.out).out.split()) == 3
    assert eventually(lambda: len(ran("tail", "copies", "--json").lines) == 3)
    copies = ran("tail", "copies", "--json", "--count", "2").lines
    assert [each.get("body") for each in copies] == ["two teas", None]
    assert copies[0]["keys"] == ["o-1"]
    assert "'two teas'" in ran("tail", "orders", "--filter", "new").out
    assert eventually(lambda: ran("message", "get", "orders", first["message_id"]).code == 0)
    assert ran("message", "get", "orders", first["message_id"], "--json").json["body"] == "two teas"
    assert [each["body"] for each in ran("message", "find", "orders", "o-1", "--json").json] == ["two teas"]
    assert [
        each["queue_offset"] for each in ran("message", "queue", "orders", "0", "1", "--count", "5", "--json").json
    ] == [
        1,
        2,
    ]
    for words in (("get", "orders", "no id"), ("find", "orders", "o-2"), ("queue", "orders", "0", "9")):
        assert ran("message", *words).code == 3
    wrong = ran("send", "orders", "-", "--json-lines", stdin='{"body": "a"}\n{"bodi": "b"}\n')
    assert (wrong.code, "line 2: unknown field 'bodi'" in wrong.error) == (1, True)
    assert ("sent from the lines before it: 1 message\n" in wrong.error, len(wrong.out.split())) == (True, 1)
    nothing = ran("send", "orders", "-", "--json-lines", stdin='{"bodi": "b"}\n{"body": "a"}\n')
    assert (nothing.code, nothing.out) == (2, "")
    assert ran("tail", "nowhere").code == 3


def test_dead_letters_are_listed_and_sent_again(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """By id, or all of them."""
    with mq.producer() as producer, mq.consumer("billing", "orders") as consumer:
        for number in range(2):
            producer.send("orders", b"%d" % number)
            (message,) = consumer.receive(wait=PATIENCE)
            consumer.forward_to_dead_letter(message, "no customer")
    assert eventually(lambda: len(ran("dlq", "list", "billing", "--json").lines) == 2)
    letters = ran("dlq", "list", "billing", "--json", "--oldest").lines
    assert [(each["reason"], each["origin_topic"]) for each in letters] == [("no customer", "orders")] * 2
    assert "no customer" in ran("dlq", "list", "billing", "--max", "1").out
    chosen = letters[0]["message"]["message_id"]
    assert ran("dlq", "resend", "billing").code == 2
    ran("group", "create", "empty")
    assert ran("dlq", "list", "empty").code == 0
    assert ran("dlq", "list", "unknown").code == 3
    assert ran("dlq", "resend", "unknown", "--all", "--yes").code == 3
    assert ran("dlq", "resend", "empty", "--all", "--yes").code == 0
    assert ran("group", "members", "unknown").code == 3
    assert ran("group", "members", "empty").out == "no client of empty is connected\n"
    assert ran("dlq", "resend", "billing", "--id", "unknown", "--yes").code == 3
    assert ran("dlq", "resend", "billing", "--id", chosen, "--yes", "--json").lines[0]["error"] is None
    assert ran("dlq", "resend", "billing", "--all", "--yes").out == "sent 2 dead letters again\n"
    told = "not leased; a consumer that pulls may have it; an earlier copy is a dead letter, queue 0 offset "
    assert eventually(lambda: told in ran("explain", "orders", chosen).out)
    assert ran("explain", "orders", chosen, "--json").json["groups"][0]["dead_letter"]["reason"] == "no customer"


@pytest.mark.parametrize("is_read", [True, False])
def test_a_repeated_resend_goes_on_where_one_ended(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually, *, is_read: bool
) -> None:
    """At a broker that hangs while letters are read, or sent: the command names the place."""
    count, original, steps = 20, ferromq.Admin.resend_dead_letters, list[int]()
    monkeypatch.setattr(messages, "_STEP", 3)
    with kept_port() as listen, FaultProxy(listen) as proxy:
        given = {"listen": listen, "advertise": proxy.address, "fast_listen": "off"}
        with ferromq.embedded(**given) as mq:
            with mq.producer() as producer, mq.consumer("billing", "orders") as consumer:
                for number in range(count):
                    producer.send("orders", b"%d" % number)
                    (message,) = consumer.receive(wait=PATIENCE)
                    consumer.forward_to_dead_letter(message)
            address = ("--namesrv", mq.namesrv, "--yes", "--json")
            assert eventually(lambda: len(ran("dlq", "list", "billing", *address[:2], "--json").lines) == count)

            def resend(admin: ferromq.Admin, letters: Any, **options: Any) -> Any:
                steps.append(len(letters))
                if len(steps) == 2 and not is_read:
                    proxy.hang()
                found = original(admin, letters, **options)
                if len(steps) == 4:  # the pages of 4 and 8 letters are sent
                    proxy.hang()
                return found

            monkeypatch.setattr(ferromq.Admin, "resend_dead_letters", resend)
            first = ran("dlq", "resend", "billing", "--all", "--timeout", "5", *address)
            proxy.resume()
            monkeypatch.setattr(ferromq.Admin, "resend_dead_letters", original)
            (place,) = re.findall(r" --after (\w+)", first.error)
            assert (first.code != 0, place) == (True, first.lines[-1]["letter"]), first
            assert f"not sent: {count - len(first.lines)} dead letters" in first.error
            second = ran("dlq", "resend", "billing", "--all", "--after", place, *address)
            assert second.code == 0, second
            asked = [*first.lines, *second.lines]
            assert len({each["letter"] for each in asked}) == len(asked) == count
            sent = [True] * 12 if is_read else [True, True, True, False]
            assert [each["error"] is None for each in first.lines] == sent
            dispatched(mq)
            with mq.admin() as admin:
                assert len(list(admin.browse("orders"))) >= count * 2 - (not is_read)
            gone = ran("dlq", "resend", "billing", "--all", "--after", "0" * 32, *address)
            assert (gone.code, "--oldest shows those that are left" in gone.error) == (3, True)


def test_messages_are_found_beside_a_broker_that_hangs(tmp_path: Path) -> None:
    """Though it is the first one asked; its part is named."""
    with ferromq.embedded() as mq, kept_port() as listen, FaultProxy(listen) as proxy:
        given = {"store": tmp_path / "a", "name": "a", "namesrv": mq.namesrv, "grpc_listen": "127.0.0.1:0"}
        given |= {"listen": listen, "advertise": proxy.address, "fast_listen": "off", **SMALL_FILES}
        with closing(BrokerController(BrokerConfig.from_options(given))):
            address = ("--namesrv", mq.namesrv, "--timeout", "4", "--json")
            assert ran("topic", "create", "orders", "--queues", "1", *address).code == 0
            with mq.producer() as producer:
                receipts = [producer.send("orders", b"x", keys="k") for _ in range(8)]
            receipt = next(each for each in receipts if each.broker_name == "broker-a")
            dispatched(mq)
            proxy.hang()
            for words in (("message", "get"), ("explain",)):
                found = ran(*words, "orders", receipt.message_id, *address)
                assert (found.code, f"the part of the broker at {proxy.address}" in found.error) == (4, True), found
                assert receipt.message_id in found.out
                missing = ran(*words, "orders", "unknown", *address)
                assert (missing.code, missing.out, proxy.address in missing.error) == (4, "", True), missing
            found = ran("message", "find", "orders", "k", *address)
            assert (found.code, proxy.address in found.error) == (4, True), found
            assert receipt.message_id in [each["message_id"] for each in found.json]


def test_dead_letters_are_listed_beside_a_broker_that_hangs(tmp_path: Path, eventually: Eventually) -> None:
    """Its part is named."""
    with ferromq.embedded() as mq, kept_port() as listen, FaultProxy(listen) as proxy:
        given = {"store": tmp_path / "a", "name": "a", "namesrv": mq.namesrv, "grpc_listen": "127.0.0.1:0"}
        given |= {"listen": listen, "advertise": proxy.address, "fast_listen": "off", **SMALL_FILES}
        with closing(BrokerController(BrokerConfig.from_options(given))):
            address = ("--namesrv", mq.namesrv, "--timeout", "4", "--json")
            assert ran("topic", "create", "orders", "--queues", "1", *address).code == 0
            with (
                ferromq.connect(namesrv=mq.namesrv) as connection,
                connection.producer() as producer,
                connection.consumer("billing", "orders", begin="first") as consumer,
            ):
                left = {producer.send("orders", b"x").message_id for _ in range(4)}
                while left:
                    for message in consumer.receive(wait=PATIENCE):
                        consumer.forward_to_dead_letter(message)
                        left.discard(message.message_id)

            def brokers(found: Ran) -> set[str]:
                return {each["message"]["broker"] for each in found.lines}

            assert eventually(lambda: len(brokers(ran("dlq", "list", "billing", *address))) == 2)
            proxy.hang()
            found = ran("dlq", "list", "billing", *address)
            assert (found.code, f"the part of the broker at {proxy.address}" in found.error) == (4, True), found
            assert len(brokers(found)) == 1


def test_a_lost_broker_leaves_the_ordered_topics() -> None:
    """At every name server; one that is registered is refused."""
    with closing(NamesrvController(NameServerConfig(listen=FREE))) as namesrv:
        namesrv.kv_config.put("ORDER_TOPIC_CONFIG", "accounts", "a:4;b:4")
        command = ("cluster", "remove", "b", "--namesrv", namesrv.address)
        assert ran(*command).code == 2  # it does not ask without a terminal
        assert ran(*command, "--yes").out == "took b out of accounts\n"
        assert namesrv.kv_config.get("ORDER_TOPIC_CONFIG", "accounts") == "a:4"
        assert ran(*command, "--yes", "--json").json == {"removed": "b", "topics": []}
        unknown = ran("cluster", "remove", "c", "--yes", "--json", "--namesrv", namesrv.address)
        assert (unknown.code, unknown.out, "broker is 'c'" in unknown.error) == (3, "", True), unknown
        assert "all the same with --force" in unknown.error
        assert namesrv.kv_config.get("FERROMQ_GRPC", "c") is None
        assert ran("cluster", "remove", "c", "--force", "--yes", "--namesrv", namesrv.address).code == 0
        assert namesrv.kv_config.get("FERROMQ_GRPC", "c") == "gone"
    with ferromq.embedded() as mq:
        refused = ran("cluster", "remove", "broker-a", "--yes", "--namesrv", mq.namesrv)
        assert (refused.code, "is registered" in refused.error) == (1, True)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_lost_broker_leaves_a_name_server_that_failed_with_the_next_command(fault: Fault) -> None:
    """The first one ends with the exit code of a server that is not reached, after the other was changed."""
    servers = [NamesrvController(NameServerConfig(listen=FREE)) for _ in range(2)]
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.close)
            server.kv_config.put("ORDER_TOPIC_CONFIG", "accounts", "a:4;b:4")
        assert servers[1].address
        proxy = stack.enter_context(FaultProxy(servers[1].address))
        command = ("cluster", "remove", "b", "--yes", "--namesrv", f"{servers[0].address};{proxy.address}")
        fault(proxy)
        failed = ran(*command, "--timeout", "3")
        assert (failed.code, proxy.address in failed.error) == (UNREACHABLE, True), failed
        assert servers[0].kv_config.get("ORDER_TOPIC_CONFIG", "accounts") == "a:4"
        proxy.resume()
        assert ran(*command).code == DONE
        assert [server.kv_config.get("ORDER_TOPIC_CONFIG", "accounts") for server in servers] == ["a:4"] * 2


def test_brokers_and_options_are_shown_and_changed(mq: ferromq.Embedded) -> None:
    """Of the only broker without naming it."""
    (found,) = ran("cluster", "list", "--json").json
    assert (found["address"], found["version"], found["error"]) == (mq.remoting, "5.5.0", None)
    assert "master" in ran("cluster", "list").out
    assert ran("config", "set", "transactionCheckMax=7", "--yes").code == 0
    assert ran("config", "get", "transactionCheckMax").out == "transactionCheckMax=7\n"
    assert ran("config", "get", "noSuchOption").code == 3
    for words in (("get", "--broker", "broker-a"), ("set", "x=1", "--broker", "broker-a"), ("reload", "broker-a")):
        refused = ran("config", *words, "--name-servers")
        assert (refused.code, "not both" in refused.error) == (2, True)
    refused = ran("config", "set", "noSuchOption=1", "--yes")
    assert (refused.code, "noSuchOption" in refused.error) == (1, True)
    assert list(ran("config", "get", "listenPort", "--name-servers", "--json").json) == [mq.namesrv]


def test_a_slave_and_another_cluster_are_named_beside_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, a slave by its address; shells complete the groups of all clusters."""
    with ferromq.embedded() as mq, ExitStack() as stack:
        address = ("--namesrv", mq.namesrv)
        given: dict[str, Any] = {"namesrv": mq.namesrv, "listen": FREE, "grpc_listen": FREE, "fast_listen": "off"}
        others = (("broker-a", "DefaultCluster", 1), ("b", "far", 0))
        for number, (name, cluster, broker_id) in enumerate(others):
            of_one = {"store": tmp_path / str(number), "name": name, "cluster": cluster, "broker_id": broker_id}
            config = BrokerConfig.from_options({**given, **of_one, **SMALL_FILES})
            broker = stack.enter_context(closing(BrokerController(config)))
            if broker_id:
                slave = broker.address
        several = ran("config", "get", "listenPort", *address)
        assert (several.code, several.out) == (2, "")
        assert f"give --broker with one of b, broker-a, {slave} (slave of broker-a)" in several.error
        assert "give BROKER with one of b, broker-a, " in ran("config", "reload", *address).error
        for cluster in ("DefaultCluster", "far"):
            assert ran("group", "create", f"of-{cluster}", "--cluster", cluster, *address).code == 0
        monkeypatch.setenv("NAMESRV_ADDR", mq.namesrv)
        context = click.Context(click.Command("describe"))
        (found,) = [each for each in groups.describe.params if each.name == "group"]
        assert [item.value for item in found.shell_complete(context, "of-")] == ["of-DefaultCluster", "of-far"]
        wrong = ran("topic", "list", "--namesrv", mq.remoting)
        assert "Of a broker give the gRPC port (8081), which is another one: --endpoint HOST:8081" in wrong.error


def test_a_drain_of_the_last_broker_says_so_and_a_refused_send_names_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that several brokers have closed is named once."""

    def refuse(*_: object) -> None:
        raise ferromq.Forbidden("figures are refused", code=16, remark="no")

    with ferromq.embedded() as mq:
        address = ("--namesrv", mq.namesrv)
        given = {"store": tmp_path / "b", "name": "b", "namesrv": mq.namesrv, "listen": FREE, "grpc_listen": FREE}
        with closing(BrokerController(BrokerConfig.from_options({**given, "fast_listen": "off", **SMALL_FILES}))):
            assert ran("topic", "create", "orders", "--queues", "2", *address).code == 0
            typo = ran("cluster", "drain", "brokr-a", *address)
            assert (typo.code, "broker is 'brokr-a', which is neither" in typo.error) == (2, True), typo
            assert "Drain and stop" not in typo.error
            assert "No other broker" not in ran("cluster", "drain", "b", *address).error
            with monkeypatch.context() as hidden:
                hidden.setattr("ferromq.admin.inventory.cluster", refuse)
                assert "Drain and stop the broker b?" in ran("cluster", "drain", "b", *address).error
            assert ran("cluster", "drain", "b", "--yes", *address).code == 0
            last = ran("cluster", "drain", "broker-a", *address)
            assert (last.code, "No other broker takes messages." in last.error) == (2, True), last
            assert ran("cluster", "drain", "broker-a", "--yes", *address).code == 0
            refused = ran("send", "orders", "x", *address)
            assert (refused.code, "ferromq cluster undrain BROKER" in refused.error) == (1, True), refused
            assert "closed are the queues 0, 1: " in refused.error


def test_contexts_name_addresses(mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line comes before --context, that before the environment, that before the current context."""
    assert ran("context", "add", "gone", "--namesrv", "127.0.0.1:2").code == 0
    again = ran("context", "add", "gone", "--namesrv", "127.0.0.1:1")
    assert (again.code, "give --replace" in again.error, "127.0.0.1:2" in again.error) == (1, True, True)
    assert ran("context", "add", "gone", "--namesrv", "127.0.0.1:1", "--replace").code == 0
    assert ran("context", "list", "--json").json["current"] == "here"
    assert ran("topic", "list").code == 0
    assert ran("topic", "list", "--context", "gone", "--timeout", "1").code == 4
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    assert ran("topic", "list", "--timeout", "1").code == 4
    assert ran("topic", "list", "--context", "here").code == 0
    assert ran("topic", "list", "--namesrv", mq.namesrv).code == 0
    monkeypatch.delenv("NAMESRV_ADDR")
    assert ran("context", "use", "gone").code == 0
    assert "*" in ran("context", "list").out
    assert ran("context", "remove", "gone").code == 0
    nowhere = ran("topic", "list")
    assert (nowhere.code, "ferromq context add" in nowhere.error) == (2, True)
    assert ran("context", "use", "gone").code == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("topic", "lst"), "No such command 'lst'"),
        (("lag", "--topic", "orders"), "need a GROUP"),
        (("group", "reset", "g", "t"), "give one of --to"),
        (("group", "reset", "g", "t", "--to", "noon"), "'noon' is no begin, end, time as"),
        (("send", "orders"), "give one of BODY and --file"),
        (("send", "orders", "b", "--property", "x"), "is not NAME=VALUE"),
        (("tail", "orders", "--from", "end"), "give --follow"),
        (("context", "add", "x"), "give one address"),
        (("topic", "list", "--namesrv", "nonsense"), "host:port"),
        (("config", "set", "x"), "is not NAME=VALUE"),
        (("topic", "create", "a b", "--namesrv", "127.0.0.1:1"), "has the character ' '"),
        (("cluster", "drain", "b", "--within", "99999999999h"), "expected a duration of 0s to 1d, such as"),
        (("cluster", "drain", "b", "--within", "forever"), "expected a duration of 0s to 1d, such as"),
        (("cluster", "drain", "b", "--quiet", "abc"), "expected a duration of 0s to 1d, such as"),
        (("cluster", "retire", "b", "--within", "99999999999h"), "expected a duration of 0s to 100000000d, or forever"),
        (("context", "add", "a b", "--namesrv", "h:1"), "has blanks or control characters"),
        (("context", "add", "a\x1b", "--namesrv", "h:1"), "has blanks or control characters"),
        (("lag", "--interval", "nan"), "nan is not in the range 0.1<=x<=1e+09"),
        (("lag", "--timeout", "nan"), "nan is not in the range 0<x<=1e+09"),
        (("lag", "--timeout", "inf"), "inf is not in the range 0<x<=1"),
        (("lag", "--timeout", "1e300"), "1e+300 is not in the range 0<x<=1"),
        (("bench", "send", "--rate", "nan"), "nan is not in the range 0.001<=x<=1e+09"),
        (("bench", "receive", "--duration", "nan"), "nan is not in the range 0<x<=1e+09"),
        (("group", "create", "g", "--retry-delay", "inf"), "inf is not in the range 0<=x<=1"),
    ],
)
def test_wrong_usage_ends_with_two_and_the_reason(words: tuple[str, ...], told: str) -> None:
    """Before any server is asked."""
    found = ran(*words) if words[0] in {"context", "topic"} else ran(*words, "--namesrv", "127.0.0.1:1")
    assert (found.code, found.out) == (2, "")
    assert told in found.error


@pytest.mark.parametrize("fault", ["hang", "refuse"])
def test_a_server_that_does_not_answer_ends_with_four(fault: str) -> None:
    """The error names it, and the command that shows the addresses."""
    with FaultProxy() as proxy:
        getattr(proxy, fault)()
        found = ran("topic", "list", "--namesrv", proxy.address, "--timeout", "1")
    assert (found.code, proxy.address in found.error, "ferromq context list" in found.error) == (4, True, True)


def test_a_watched_lag_waits_for_brokers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A name server without one is not the end; without --watch it is."""
    with ExitStack() as stack:
        names = stack.enter_context(closing(NamesrvController(NameServerConfig.from_options({"listen": FREE}))))
        looks: list[float] = []

        def wait(_event: threading.Event, seconds: float) -> None:
            looks.append(seconds)
            if len(looks) > 1:
                raise KeyboardInterrupt
            given = {"store": tmp_path / "b", "namesrv": names.address, "listen": FREE, "grpc_listen": FREE}
            stack.enter_context(closing(BrokerController(BrokerConfig.from_options({**given, **SMALL_FILES}))))

        assert ran("lag", "--namesrv", names.address).code == 1
        monkeypatch.setattr(groups, "threading", SimpleNamespace(Event=type("Event", (), {"wait": wait})))
        found = ran("lag", "--watch", "--interval", "7", "--namesrv", names.address)
        assert (found.code, looks, "no broker is registered" in found.error) == (0, [7.0, 7.0], True)
        assert "behind" in found.out


def test_the_part_of_a_broker_that_is_away_is_told_on_stderr(tmp_path: Path) -> None:
    """The others' part is printed, and the exit code is the one of a server that does not answer."""
    with ferromq.embedded() as mq, kept_port() as listen, FaultProxy(listen) as proxy:
        given = {"store": tmp_path / "b", "name": "b", "namesrv": mq.namesrv, "grpc_listen": "127.0.0.1:0"}
        given |= {"listen": listen, "advertise": proxy.address, "fast_listen": "off", **SMALL_FILES}
        with closing(BrokerController(BrokerConfig.from_options(given))):
            address = ("--namesrv", mq.namesrv, "--timeout", "4")
            assert ran("topic", "create", "orders", "--queues", "1", *address).code == 0
            assert ran("group", "create", "billing", *address).code == 0
            assert ran("group", "reset", "billing", "orders", "--to", "end", "--yes", *address).code == 0
            proxy.refuse()
            for words in (
                ("lag", "billing"),
                ("lag",),
                ("topic", "describe", "orders"),
                ("group", "describe", "billing"),
                ("group", "list"),
            ):
                found = ran(*words, *address, "--json")
                assert (found.code, proxy.address in found.error) == (4, True), found
                assert found.json
            found = ran("group", "members", "billing", *address)
            assert (found.code, proxy.address in found.error) == (4, True), found
            place = "7F000001000000010000000000000000"
            found = ran("message", "get", "orders", place, "--namesrv", mq.namesrv, "--timeout", "4")
            assert (found.code, proxy.address in found.error) == (4, True), found
            found = ran("cluster", "list", *address)
            assert (found.code, "the broker b at" in found.error, "master" in found.out) == (4, True, True)
            refused = ran("group", "skip", "billing", "--yes", *address)
            assert (refused.code, refused.out) == (4, "")


CLOSED = """
import os, sys
os.close(1)
os.execv(sys.executable, [sys.executable, "-m", "ferromq", *sys.argv[1:]])
"""
"""The command without stdout, as `>&-` runs it."""
OBEYING = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("ferromq", run_name="__main__")
"""
"""The command with Ctrl-C, which a shell has ignored for what it runs in the background."""


@pytest.mark.timeout(180)
def test_the_command_runs_as_a_process(mq: ferromq.Embedded, tmp_path: Path) -> None:
    """Streams into a pipe that is closed, names for completion, and the help of all commands."""
    environment = {**os.environ, "NAMESRV_ADDR": mq.namesrv}
    environment.pop("FERROMQ_ENDPOINT", None)

    def run(
        *words: str, program: tuple[str, ...] = ("-m", "ferromq"), stdout: Any = subprocess.PIPE, **more: str
    ) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *program, *words]
        given = {"env": {**environment, **more}, "timeout": PATIENCE * 2, "text": True, "check": False}
        return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, **given)  # noqa: PLW1510 (it is in `given`)

    with mq.producer() as producer:
        producer.send("orders", b"tea")
    assert "topic" in run("--help").stdout
    assert "demo" in run("--help").stdout
    assert run("--version").stdout == run("version").stdout
    run("context", "add", "shop", "--namesrv", mq.namesrv, FERROMQ_CONTEXTS=str(tmp_path / "contexts.json"))
    for words, found in (
        ("topic describe ord", "plain,orders"),
        ("cluster drain brok", "plain,broker-a"),
        ("config get --broker brok", "plain,broker-a"),
        ("context use sh", "plain,shop"),
        ("topic list --context sh", "plain,shop"),
    ):
        position = str(len(words.split()))
        begun = {"COMP_WORDS": f"ferromq {words}", "COMP_CWORD": position, "_FERROMQ_COMPLETE": "bash_complete"}
        completed = run(**begun, FERROMQ_CONTEXTS=str(tmp_path / "contexts.json"))
        assert completed.stdout.strip() == found
    assert "_FERROMQ_COMPLETE" in run("completion", "zsh").stdout
    shown = run(*("-c", CLOSED, "topic", "list"), program=())
    assert (shown.returncode, shown.stderr) == (0, "")
    for words in (("tail", "orders"), ("tail", "orders", "--json"), ("--help",), ("topic", "--help")):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as gone:
            ended = run(*words, stdout=gone)
        assert (ended.returncode, ended.stderr) == (0, "")
    followed = subprocess.Popen(
        [sys.executable, "-c", OBEYING, "tail", "orders", "--from", "begin", "--follow", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with followed:
        assert followed.stdout is not None
        assert json.loads(followed.stdout.readline())["body"] == "tea"
        followed.send_signal(signal.SIGINT)
        assert followed.wait(PATIENCE) == 0


def test_a_slow_stream_is_sent_as_it_comes(mq: ferromq.Embedded) -> None:
    """Each line soon after it is written; Ctrl-C tells how many are stored."""
    ran("topic", "create", "orders", "--queues", "1")
    sending = subprocess.Popen(
        [sys.executable, "-c", OBEYING, "send", "orders", "-", "--json-lines", "--json", "--endpoint", mq.endpoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    with sending:
        assert sending.stdin is not None
        assert sending.stdout is not None
        for offset in range(3):
            sending.stdin.write(json.dumps({"body": f"line {offset}"}) + "\n")
            assert json.loads(sending.stdout.readline())["queue_offset"] == offset
        sending.send_signal(signal.SIGINT)
        assert sending.wait(PATIENCE) == 130
        assert sending.stderr is not None
        assert "ended by Ctrl-C; stored: 3 messages" in sending.stderr.read()


def test_a_question_is_asked_at_a_terminal(mq: ferromq.Embedded) -> None:
    """A no changes nothing, a yes does it."""
    with mq.admin() as admin:
        admin.create_topic("orders")
        for answer, code in ((b"n\n", 130), (b"y\n", 0)):
            assert "orders" in admin.topics()
            keyboard, terminal = os.openpty()
            command = [sys.executable, "-m", "ferromq", "topic", "delete", "orders", "--namesrv", mq.namesrv]
            with subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                os.write(keyboard, answer)
                _, error = process.communicate(timeout=PATIENCE * 2)
            os.close(keyboard)
            os.close(terminal)
            assert process.returncode == code
            assert b"Delete the topic orders with its messages from namesrv" in error
        assert "orders" not in admin.topics()


@pytest.mark.parametrize("terminal_kind", ["xterm", "dumb"])
def test_a_table_at_a_terminal_keeps_addresses_whole(mq: ferromq.Embedded, terminal_kind: str) -> None:
    """By rich, whose colours the terminal gets; a pipe gets plain text."""
    pytest.importorskip("rich")
    command = [sys.executable, "-m", "ferromq", "cluster", "list", "--namesrv", mq.namesrv]
    screen, terminal = os.openpty()
    environment = {**os.environ, "TERM": terminal_kind}
    assert subprocess.run(command, stdout=terminal, env=environment, timeout=PATIENCE * 2, check=False).returncode == 0
    os.close(terminal)
    shown = os.read(screen, 1 << 16).decode()
    os.close(screen)
    piped = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    assert mq.remoting in shown
    assert mq.remoting in piped
    assert ("\x1b[1m" in shown, "\x1b" in piped) == (terminal_kind == "xterm", False)
    assert "…" not in shown
    assert len(max(shown.splitlines(), key=len)) > 80


def test_a_refused_line_is_told_and_those_before_it_are_sent(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Whether this command refuses it, or the broker; those behind it are not sent."""
    ran("topic", "create", "orders", "--queues", "1")
    long = {"reserved": {"body": "x", "properties": {"KEYS": "x"}}, "long": {"body": "x" * ((4 << 20) + 1)}}
    long["broker"] = {"body": "x", "properties": {"a": "x" * 40_000}}
    for wrong, told in (("reserved", "property KEYS is reserved"), ("long", "4194305 bytes"), ("broker", "bytes; the")):
        lines = [{"body": f"{wrong} before"}, long[wrong], {"body": "behind"}]
        refused = ran("send", "orders", "-", "--json-lines", stdin="\n".join(map(json.dumps, lines)))
        assert (refused.code, len(refused.out.split()), told in refused.error) == (1, 1, True)
        assert "ferromq: line 2: " in refused.error
        assert "1 message\n" in refused.error
    bodies = ["reserved before", "long before", "broker before"]
    assert eventually(lambda: [each["body"] for each in ran("tail", "orders", "--json").lines] == bodies)


@pytest.mark.parametrize("names", [(), ("a", "b")])
def test_a_refused_line_is_the_end_of_many(
    mq: ferromq.Embedded, eventually: Eventually, names: tuple[str, ...]
) -> None:
    """Also where the lines are several requests: no request behind the refused one is under way."""
    ran("topic", "create", "orders", "--queues", "1")
    bodies = [*map(str, range(1, 1001))]
    lines: list[dict[str, Any]] = [
        {"body": body, "message_group": names[place % 2] if names else None} for place, body in enumerate(bodies)
    ]
    text = "\n".join(map(json.dumps, [*lines[:4], {**lines[4], "properties": {"a": "x" * 40_000}}, *lines[5:]]))
    refused = ran("send", "orders", "-", "--json-lines", stdin=text)
    assert (refused.code, len(refused.out.split())) == (1, 4)
    assert "ferromq: line 5: " in refused.error
    assert "stored: 4 messages\n" in refused.error
    rest = ran("send", "orders", "-", "--json-lines", stdin="\n".join(map(json.dumps, lines[4:])))
    assert (rest.code, len(rest.out.split())) == (0, 996)
    assert eventually(lambda: [each["body"] for each in ran("tail", "orders", "--json").lines] == bodies)


def test_a_body_that_was_stored_compressed_is_printed_whole_by_tail(
    mq: ferromq.Embedded, eventually: Eventually
) -> None:
    """Its stored form is no line to send."""
    ran("topic", "create", "orders", "--queues", "1")
    with mq.producer(compress="zlib") as producer:
        sent = producer.send("orders", b"tea " * 5000).message_id
    assert eventually(lambda: ran("message", "get", "orders", sent).code == 0)
    stored = ran("message", "get", "orders", sent, "--json").json
    assert stored["compressed"]
    refused = ran("send", "orders", "-", "--json-lines", stdin=json.dumps(stored))
    assert (refused.code, "line 1: the body is as it was stored, compressed" in refused.error) == (2, True)
    assert ran("tail", "orders", "--json").lines[0]["body"] == "tea " * 5000


def test_stored_messages_are_sent_as_lines(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Without the properties of the system, which such a message has, too."""
    ran("topic", "create", "orders", "--queues", "1")
    words = ("--key", "o-1", "--key", "o-2", "--tag", "new", "--property", "table=7", "--group", "seven")
    sent = ran("send", "orders", "tea", *words).out.strip()
    assert eventually(lambda: ran("message", "get", "orders", sent).code == 0)
    stored = ran("message", "get", "orders", sent, "--json").json
    assert stored["properties"].keys() > {"KEYS", "TAGS"}
    again = ran("send", "orders", "-", "--json-lines", stdin=json.dumps(stored))
    assert (again.code, again.error) == (0, "")
    assert eventually(lambda: len(ran("tail", "orders", "--json").lines) == 2)
    first, second = ran("tail", "orders", "--json").lines
    names = ("body", "keys", "tag", "properties", "message_group")
    assert [first[name] for name in names] == [second[name] for name in names]


class Full(io.BytesIO):
    """An output on a full disk."""

    def write(self, _content: object) -> int:
        """Fail."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_output_is_told_with_what_was_done(mq: ferromq.Embedded) -> None:
    """A script need not repeat the command, which would send the message twice."""
    ran("topic", "create", "orders")
    lines = '{"body": "a"}\n{"body": "b"}\n'
    for words, stdin, told in (
        (("send", "orders", "tea"), "", r"the message \w+ is stored"),
        (("send", "orders", "tea", "--json"), "", r"the message \w+ is stored"),
        (("send", "orders", "-", "--json-lines"), lines, "\n  stored: 2 messages"),
        (("context", "add", "more", "--endpoint", "h:8081"), "", "the command itself was carried out"),
        (("topic", "create", "more"), "", "the command itself was carried out"),
        (("topic", "list"), "", "\n$"),
    ):
        with CliRunner().isolation(stdin) as (_, error, _):
            sys.stdout = io.TextIOWrapper(Full(), write_through=True)
            assert cli.main(words) == 1
            found = error.getvalue().decode()
        assert re.search(
            f"^ferromq: cannot write to the standard output: No space left on device.*{told}", found, re.DOTALL
        )


@pytest.mark.parametrize(
    "words",
    [
        ("send", "orders", "x", "--key", "bad\udcff"),
        ("send", "orders", "x", "--tag", "bad\udcff"),
        ("send", "orders", "x", "--property", "a=bad\udcff"),
        ("send", "orders", "bad\udcff"),
    ],
)
def test_bytes_that_are_no_text_are_wrong_usage(mq: ferromq.Embedded, words: tuple[str, ...]) -> None:
    """Python reads them as surrogates."""
    refused = ran(*words)
    assert (refused.code, "'bad\\udcff'" in refused.error, "is not valid UTF-8" in refused.error) == (2, True, True)


def test_an_export_writes_through_pipes_and_links(mq: ferromq.Embedded, tmp_path: Path) -> None:
    """A pipe and a link stay what they are; no directory is made, and no other file."""
    folder = tmp_path / "exports"
    folder.mkdir()
    pipe, link, file = folder / "pipe", folder / "link", folder / "file"
    os.mkfifo(pipe)
    got = list[str]()
    reading = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reading.start()
    assert ran("cluster", "export", str(pipe)).code == 0
    assert pipe.is_fifo()
    reading.join(PATIENCE)
    assert json.loads(got[0])["topics"] is not None
    file.write_text("before")
    file.chmod(0o600)
    link.symlink_to(file)
    for _ in range(2):
        assert ran("cluster", "export", str(link)).code == 0
    assert (link.is_symlink(), file.read_text(), file.stat().st_mode & 0o777) == (True, got[0], 0o600)
    assert sorted(each.name for each in folder.iterdir()) == ["file", "link", "pipe"]
    missing = folder / "missing"
    refused = ran("cluster", "export", str(missing / "x"))
    assert (refused.code, missing.exists()) == (1, False)
    assert f"{missing} is not a directory; make it" in refused.error
    reader, writer = os.pipe()
    with os.fdopen(reader) as read:
        assert ran("cluster", "export", f"/dev/fd/{writer}").code == 0
        os.close(writer)
        assert read.read() == got[0]


def test_a_context_keeps_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds in any directory."""
    (tmp_path / "here").mkdir()
    (tmp_path / "ca.pem").write_text(TRUST.read_text())
    monkeypatch.chdir(tmp_path / "here")
    assert ran("context", "add", "safe", "--endpoint", "h:8081", "--tls-trust", "../ca.pem").code == 0
    (kept,) = ran("context", "list", "--json").json["contexts"].values()
    path = Path(kept["tls_trust"])
    assert (path.is_absolute(), path.samefile(tmp_path / "ca.pem")) == (True, True)


def test_a_context_keeps_tls(tmp_path: Path) -> None:
    """Without the certificate that signed the broker's, it is not believed."""
    shown = {name.removeprefix("grpc_"): path for name, path in SHOWN.items()} | SHOWN
    given = {"store": tmp_path / "a", "listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "fast_listen": "off"}
    options = BrokerConfig.from_options({**given, **shown, **SMALL_FILES})
    with closing(BrokerController(options)) as secure:
        assert ran("context", "add", "safe", "--endpoint", secure.endpoint, "--tls-trust", str(TRUST)).code == 0
        assert ran("topic", "create", "orders").code == 0
        assert ran("send", "orders", "tea").code == 0
        found = ran("tail", "orders", "--follow", "--from", "begin", "--count", "1", "--json")
        assert found.lines[0]["body"] == "tea"
        elsewhere = ran("topic", "list", "--tls-trust", str(TRUST.with_name("elsewhere.pem")), "--timeout", "2")
        assert elsewhere.code == 4


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import ferromq; ferromq.embedded", {"click"}),
        ("import ferromq.pipeline.replay", {"click"}),
        ("from ferromq.cli.main import main; main(['topic', '--help'])", {"ferromq.broker", "pyspark", "argparse"}),
        ("from ferromq.cli.main import main; main(['--help'])", {"ferromq.broker", "ferromq.admin", "pyspark"}),
    ],
)
def test_a_program_imports_what_it_needs(program: str, absent: set[str]) -> None:
    """The package and Spark's workers no click, commands for running servers no servers."""
    program += f"; import sys; found = {absent} & sys.modules.keys(); sys.exit(' '.join(found) or None)"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_context_keeps_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All commands sign with them, the environment comes before them, and no command prints the secret one."""
    secret = "a long secret"
    (tmp_path / "key").write_text(f"{secret}\n")
    with ferromq.embedded(authentication_enabled=True, authorization_enabled=True, initial_user=f"root:{secret}") as mq:
        add = ("context", "add", "safe", "--namesrv", mq.namesrv)
        assert ran(*add, "--access-key", "root").code == 2
        assert ran(*add, "--secret-file", str(tmp_path / "key")).code == 2
        assert ran(*add, "--access-key", "root", "--secret-file", "-", stdin=secret).code == 0
        assert ran("topic", "create", "orders", "--queues", "1").code == 0
        assert ran("send", "orders", "tea").code == 0
        assert ran("bench", "send", "orders", "--count", "1", "--yes").code == 0
        assert "orders" in ran("mqadmin", "topicList").out
        assert ran("topic", "list", "--namesrv", mq.namesrv).code == 0  # the address of the context
        assert ran("mqadmin", "topicList", "-n", mq.namesrv).code == 0
        assert ran("topic", "list", "--endpoint", mq.endpoint).code == 1  # another address gets no keys
        shown = [ran("context", "list"), ran("context", "list", "--json"), ran("topic", "list", "--timeout", "0.001")]
        assert "root" in shown[0].out
        assert secret not in "".join(str(each) for each in shown)
        for name in CREDENTIALS:
            monkeypatch.setenv(name, "eve")
        assert ran("topic", "list").code == 1


def test_tls_of_the_context_and_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The context's holds for its own address, also where the environment or the command gives it."""
    shown = {name.removeprefix("grpc_"): path for name, path in SHOWN.items()} | {"tls_mode": "enforcing"}
    with closing(NamesrvController(NameServerConfig.from_options({"listen": FREE, **shown}))) as names:
        assert ran("context", "add", "safe", "--namesrv", names.address, "--tls-trust", str(TRUST)).code == 0
        assert ran("mqadmin", "topicList", "-n", names.address).code == 0
        monkeypatch.setenv("NAMESRV_ADDR", names.address)
        assert "no broker is registered" in ran("topic", "list").error
        assert ran("context", "remove", "safe").code == 0
        monkeypatch.setenv("FERROMQ_TLS_TRUST", str(TRUST))
        assert ran("mqadmin", "topicList").code == 0
        assert "no broker is registered" in ran("topic", "list").error
        monkeypatch.setenv("FERROMQ_TLS_TRUST", str(TRUST.with_name("elsewhere.pem")))
        assert ran("topic", "list", "--timeout", "2").code == 4
