"""The commands of `ferromq` for running servers: what they print, and how they end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from fault_proxy import FaultProxy
from ports import kept_port
from tls_files import SHOWN, TRUST

import ferromq
from ferromq.broker.controller import BrokerController
from ferromq.cli import main as cli
from ferromq.config.broker import BrokerConfig
from ferromq.embedding import SMALL_FILES

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
    for name in ("FERROMQ_CONTEXTS", "FERROMQ_ENDPOINT", "NAMESRV_ADDR"):
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
    assert ran("lag", "billing", "--topic", "nowhere").code == 3
    assert "3, after 1, 2.5 s" in ran("group", "describe", "billing").out
    assert ran("group", "alter", "billing", "--fifo").code == 0
    assert ran("group", "describe", "billing", "--json").json["fifo"] is True
    with mq.producer() as producer, mq.consumer("billing", "orders") as consumer:
        for number in range(3):
            producer.send("orders", b"%d" % number)
        consumer.ack(consumer.receive_many(2, wait=PATIENCE))
        while mq.store.max_offset("orders", 0) < 3:
            pass
        (member,) = ran("group", "members", "billing", "--json").json
        assert (member["language"], member["protocol"]) == ("PYTHON", "grpc")
        assert "grpc" in ran("group", "members", "billing").out
    lag = ran("lag", "billing", "--json").json
    assert (lag["messages"], lag["topics"][0]["topic"], lag["seconds"] >= 0) == (1, "orders", True)
    assert "billing is 1 messages behind" in ran("lag", "billing", "--queues").out
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
    assert (wrong.code, "line 2: unknown field 'bodi'" in wrong.error) == (2, True)
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
    assert ran("dlq", "resend", "billing", "--id", "unknown", "--yes").code == 3
    assert ran("dlq", "resend", "billing", "--id", chosen, "--yes", "--json").lines[0]["error"] is None
    assert ran("dlq", "resend", "billing", "--all", "--yes").out == "sent 2 dead letters again\n"


def test_brokers_and_options_are_shown_and_changed(mq: ferromq.Embedded) -> None:
    """Of the only broker without naming it."""
    (found,) = ran("cluster", "list", "--json").json
    assert (found["address"], found["version"], found["error"]) == (mq.remoting, "5.5.0", None)
    assert "master" in ran("cluster", "list").out
    assert ran("config", "set", "transactionCheckMax=7", "--yes").code == 0
    assert ran("config", "get", "transactionCheckMax").out == "transactionCheckMax=7\n"
    assert ran("config", "get", "noSuchOption").code == 3
    refused = ran("config", "set", "noSuchOption=1", "--yes")
    assert (refused.code, "noSuchOption" in refused.error) == (1, True)
    assert list(ran("config", "get", "listenPort", "--name-servers", "--json").json) == [mq.namesrv]


def test_contexts_name_addresses(mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line comes before --context, that before the environment, that before the current context."""
    assert ran("context", "add", "gone", "--namesrv", "127.0.0.1:1").code == 0
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
            ):
                found = ran(*words, *address, "--json")
                assert (found.code, proxy.address in found.error) == (4, True), found
                assert found.json
            found = ran("cluster", "list", *address)
            assert (found.code, "the broker b at" in found.error, "master" in found.out) == (4, True, True)
            refused = ran("group", "skip", "billing", "--yes", *address)
            assert (refused.code, refused.out) == (4, "")


OBEYING = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("ferromq", run_name="__main__")
"""
"""The command with Ctrl-C, which a shell has ignored for what it runs in the background."""


def test_the_command_runs_as_a_process(mq: ferromq.Embedded) -> None:
    """Streams into a pipe that is closed, names for completion, and the help of all commands."""
    environment = {**os.environ, "NAMESRV_ADDR": mq.namesrv}
    environment.pop("FERROMQ_ENDPOINT", None)

    def run(*words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "ferromq", *words]
        given = {**environment, **more}
        return subprocess.run(command, capture_output=True, text=True, env=given, timeout=PATIENCE * 2, check=False)

    with mq.producer() as producer:
        producer.send("orders", b"tea")
    assert "topic" in run("--help").stdout
    assert "demo" in run("--help").stdout
    assert run("--version").stdout == run("version").stdout
    completed = run(COMP_WORDS="ferromq topic describe ord", COMP_CWORD="3", _FERROMQ_COMPLETE="bash_complete")
    assert completed.stdout.strip() == "plain,orders"
    assert "_FERROMQ_COMPLETE" in run("completion", "zsh").stdout
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


def test_a_table_at_a_terminal_keeps_addresses_whole(mq: ferromq.Embedded) -> None:
    """By rich, whose colours the terminal gets; a pipe gets plain text."""
    pytest.importorskip("rich")
    command = [sys.executable, "-m", "ferromq", "cluster", "list", "--namesrv", mq.namesrv]
    screen, terminal = os.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    assert subprocess.run(command, stdout=terminal, env=environment, timeout=PATIENCE * 2, check=False).returncode == 0
    os.close(terminal)
    shown = os.read(screen, 1 << 16).decode()
    os.close(screen)
    piped = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    assert mq.remoting in shown
    assert mq.remoting in piped
    assert ("\x1b[1m" in shown, "\x1b" in piped) == (True, False)


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


def test_servers_import_no_click() -> None:
    """Nor does the package: the dependency is the command line's alone."""
    program = "import sys, ferromq, ferromq.cli.main, ferromq.cli.servers; sys.exit('click' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
