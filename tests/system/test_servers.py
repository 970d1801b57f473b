"""The servers as a user starts them: `ferromq dev`, `namesrv`, `broker`."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from children import command as command_line
from machine import in_load

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.protocol.route import TopicRoute

UPDATE_TOPIC, ROUTE, CLUSTER_INFO, TOPICS = 17, 105, 106, 206
COMMAND = command_line()
Eventually = Callable[[Callable[[], bool]], bool]
SMALL = {"FERROMQ_BROKER_COMMIT_LOG_FILE_SIZE": "1MiB"}
FREE = "127.0.0.1:0"


class Process:
    """A running `ferromq` command."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        environment = {**os.environ, **SMALL, "FERROMQ_LOG": "warn", **variables}
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.shown: dict[str, str] = {}
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ready"):
                return
            name, _, value = line.strip().rpartition("  ")
            self.shown[name.strip()] = value
        raise AssertionError(self.stop()[1])

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, float]:
        """Send a signal; return the exit code, what stood on stderr, and how long it took."""
        begin = time.monotonic()
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors, time.monotonic() - begin


@contextlib.contextmanager
def running(*arguments: str, **variables: str) -> Iterator[Process]:
    """Run a command until the test is done with it."""
    process = Process(*arguments, **variables)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.stop()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    merged = {**os.environ, "FERROMQ_LOG": "warn", **environment}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=30, check=False, env=merged)


@pytest.fixture
def client() -> Iterator[RemotingClient]:
    """Return a client of the remoting protocol."""
    remoting = RemotingClient()
    yield remoting
    remoting.close()


def dev(store: Path, *more: str) -> tuple[str, ...]:
    """Return the arguments of `ferromq dev` on free ports."""
    ports = ("--namesrv-listen", FREE, "--listen", FREE, "--grpc-listen", FREE)
    return ("dev", "--store", str(store), *ports, *more)


def brokers(client: RemotingClient, namesrv: str) -> Any:
    """Return broker name → addresses, as a name server knows them."""
    table = json.loads(client.call(namesrv, CLUSTER_INFO)[3])["brokerAddrTable"]
    return {name: data["brokerAddrs"] for name, data in table.items()}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_dev_is_a_whole_broker_until_a_signal(tmp_path: Path, client: RemotingClient, number: int) -> None:
    """It prints its addresses, serves, and stops cleanly and quickly with exit code 0."""
    with running(*dev(tmp_path / "store")) as server:
        assert brokers(client, server.shown["name server"]) == {"broker-a": {"0": server.shown["broker"]}}
        host, _, port = server.shown["gRPC"].rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        assert server.shown["store"] == str(tmp_path / "store")
        code, errors, seconds = server.stop(number)
    assert (code, errors) == (0, "")
    assert seconds < in_load(3)
    # RocketMQ's file that says "not closed cleanly".
    assert not (tmp_path / "store" / "abort").exists()


def test_dev_serves_a_dashboard(tmp_path: Path) -> None:
    """It prints the address; one that is taken is an error if it was given."""
    with running(*dev(tmp_path / "store", "--dashboard-listen", FREE)) as server:
        url = server.shown["dashboard"]
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert b"broker-a" in answer.read()
        taken = run(*dev(tmp_path / "other", "--dashboard-listen", url.removeprefix("http://")))
        assert taken.returncode != 0
        assert f"the dashboard cannot listen on {url.removeprefix('http://')}" in taken.stderr
        files = Path(__file__).parents[1] / "fixtures" / "tls"
        options = ("--set", "tls_mode=enforcing", "--set", f"tls_certificate={files / 'first.pem'}")
        options += ("--set", f"tls_key={files / 'first.key'}", "--dashboard-listen", FREE)
        with running(*dev(tmp_path / "tls", *options)) as enforcing:
            assert "take TLS alone" in enforcing.shown["dashboard"]


def test_dev_refuses_a_dashboard_for_others_before_it_starts(tmp_path: Path) -> None:
    """The text names options that it has."""
    refused = run(*dev(tmp_path / "store", "--dashboard-listen", "0.0.0.0:0"))
    assert refused.returncode == 2
    assert "--no-dashboard" in refused.stderr
    assert not (tmp_path / "store").exists()


def test_name_server_and_broker_run_apart(tmp_path: Path, client: RemotingClient, eventually: Eventually) -> None:
    """A broker registers with every name server, unregisters when it stops, and is dropped when it is killed."""
    with running("namesrv", "--listen", FREE) as one, running("namesrv", "--listen", FREE) as two:
        names = one.shown["name server"], two.shown["name server"]
        arguments = ("broker", "--namesrv", ";".join(names), "--listen", FREE, "--grpc-listen", FREE)
        with running(*arguments, "--store", str(tmp_path / "b"), "--name", "b", "--cluster", "c") as server:
            address = server.shown["broker"]
            for namesrv in names:
                assert brokers(client, namesrv) == {"b": {"0": address}}
            assert client.call(address, UPDATE_TOPIC, {"topic": "orders"})[0] == 0
            for namesrv in names:
                route = TopicRoute.decode(client.call(namesrv, ROUTE, {"topic": "orders"})[3])
                assert route.brokers[0].cluster == "c"
            assert server.stop()[0] == 0
            for namesrv in names:
                assert eventually(lambda namesrv=namesrv: brokers(client, namesrv) == {})
        with running(*arguments, "--store", str(tmp_path / "b"), "--name", "b") as server:
            server.process.kill()
            server.process.communicate()
            assert eventually(lambda: brokers(client, names[0]) == {})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--listen", FREE, "--advertise", "localhost"), "localhost:"),
        (("--listen", "[::1]:0"), "[::1]:"),
        (("--listen", FREE, "--advertise", "::1"), "[::1]:"),
        (("--listen", FREE, "--advertise", "[::1]:4321"), "[::1]:4321"),
    ],
)
def test_a_broker_is_reached_by_name_and_by_ipv6(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    """It starts, and shows the address others use; a bare IPv6 address gets its brackets."""
    with running("broker", *arguments, "--grpc-listen", FREE, "--store", str(tmp_path)) as server:
        assert server.shown["broker"].startswith(expected)
        code, errors = server.stop()[:2]
        assert code == 0
        # Both listeners are on 127.0.0.1 alone, or the second one is.
        assert ("address not reachable" in errors) == expected.startswith("[::1]")
        assert all("address not reachable" in line for line in errors.splitlines())


def test_a_broker_registers_with_a_name_server_that_comes_later(
    tmp_path: Path, client: RemotingClient, eventually: Eventually
) -> None:
    """One warning, then a try every two seconds; serving goes on meanwhile."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        # Held until the end, as the broker holds its own: no other process gets the port, and a server may share it.
        namesrv = f"127.0.0.1:{reserved.getsockname()[1]}"
        arguments = ("broker", "--namesrv", namesrv, "--listen", FREE, "--grpc-listen", FREE, "--store", str(tmp_path))
        with running(*arguments) as server:
            assert client.call(server.shown["broker"], UPDATE_TOPIC, {"topic": "orders"})[0] == 0
            with running("namesrv", "--listen", namesrv):
                assert eventually(lambda: "broker-a" in brokers(client, namesrv))
                assert "orders" in json.loads(client.call(namesrv, TOPICS)[3])["topicList"]
                code, errors, _ = server.stop()
    assert code == 0
    lines = [line for line in errors.splitlines() if namesrv in line]
    assert ["name server failed" in lines[0], "name server is back" in lines[1], len(lines)] == [True, True, 2]


def test_a_second_process_on_a_store_is_refused(tmp_path: Path) -> None:
    """With one line that names the directory, and exit code 1; the first goes on."""
    with running(*dev(tmp_path)) as server:
        second = run(*dev(tmp_path))
        assert second.returncode == 1
        assert second.stderr.startswith("ferromq: ")
        assert str(tmp_path) in second.stderr
        assert len(second.stderr.splitlines()) == 1
        assert server.stop()[0] == 0


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    """With one line and exit code 1, for each of the three."""
    with running(*dev(tmp_path / "one")) as server:
        for option, name in (("--namesrv-listen", "name server"), ("--listen", "broker"), ("--grpc-listen", "gRPC")):
            second = run(*dev(tmp_path / "two", option, server.shown[name]))
            assert second.returncode == 1
            assert server.shown[name] in second.stderr
            assert len(second.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "environment", "named"),
    [
        (("broker", "--listen", "nowhere"), {}, "HOST:PORT"),
        (("broker", "--config", "/gone.toml"), {}, "/gone.toml"),
        (("broker", "--advertise", "host:port"), {}, "HOST:PORT"),
        (("broker", "--listen", FREE, "--grpc-listen", FREE, "--advertise", "no.invalid"), {}, "is 'no.invalid'"),
        (("broker", "--listen", "no.invalid:0"), {}, "listen is 'no.invalid:0'"),
        (("broker", "--name", "a:8;b"), {}, "name is 'a:8;b'; it may have 1 to 255 characters"),
        (("broker",), {"FERROMQ_BROKER_FLUHS": "group"}, "did you mean FERROMQ_BROKER_FLUSH"),
        (("broker", "--flush", "sync"), {}, "flush is 'sync'; it must be `each`, `group`, `every N`, `interval`"),
        (("broker", "--set", "fluhs=group"), {}, "did you mean flush"),
        (("broker", "--set", "flush"), {}, "NAME=VALUE"),
        (("broker", "--set", "commit_log_file_size=1"), {}, "commit_log_file_size is 1; it must be 4 KiB"),
        (("broker", "--retention-age", "old"), {}, "retention_age is 'old': expected a duration"),
        (("namesrv",), {"FERROMQ_LOG": "loud"}, "loud"),
        (("namesrv", "--log-level", "info,ferromq_store=loud"), {}, "'loud'; it may be trace, debug, info"),
        (("namesrv", "--log-format", "xml"), {}, "the log format is 'xml'; it may be text or json"),
        (("broker",), {"FERROMQ_LOG_FORMAT": "xml"}, "the log format is 'xml'; it may be text or json"),
        (("broker", "--metrics-listen", "5557"), {}, "metrics_listen is '5557'; expected HOST:PORT"),
        (("namesrv", "--colour"), {}, "unknown flag: colour"),
        (("fly",), {}, "fly"),
        ((), {}, "COMMAND"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], environment: dict[str, str], named: str) -> None:
    """The last line has the reason."""
    result = run(*arguments, **environment)
    assert result.returncode == 2
    assert named in result.stderr.splitlines()[-1]


def test_the_version_is_printed() -> None:
    """With exit code 0."""
    result = run("version")
    assert result.returncode == 0
    assert re.fullmatch(r"ferromq \d+\.\d+\.\d+.*\n", result.stdout)


def test_the_package_runs_as_a_module() -> None:
    """`python -m ferromq` is the command, and calls itself so."""
    command = [sys.executable, "-m", "ferromq"]
    result = subprocess.run([*command, "version"], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout == run("version").stdout
    result = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.startswith("usage: ferromq ")


def test_dev_takes_the_environment(tmp_path: Path) -> None:
    """Over its own defaults, and under flags."""
    ports = {f"FERROMQ_{name}": FREE for name in ("NAMESRV_LISTEN", "BROKER_LISTEN", "BROKER_GRPC_LISTEN")}
    more = {"FERROMQ_BROKER_STORE": str(tmp_path), "FERROMQ_BROKER_NAME": "variable", "FERROMQ_BROKER_CLUSTER": "c"}
    with running("dev", "--name", "flag", **ports, **more) as server:
        shown = server.shown
        assert shown["store"] == str(tmp_path)
        assert not {"127.0.0.1:9876", "127.0.0.1:10911", "127.0.0.1:8081"} & set(shown.values())
        client = RemotingClient()
        assert json.loads(client.call(shown["name server"], CLUSTER_INFO)[3])["clusterAddrTable"] == {"c": ["flag"]}
        client.close()


def test_a_configuration_file_is_read(tmp_path: Path, client: RemotingClient) -> None:
    """RocketMQ's, with flags over it."""
    file = tmp_path / "broker.conf"
    file.write_text(
        f"brokerName=conf\nbrokerClusterName=C\nstorePathRootDir={tmp_path / 's'}\nautoCreateTopicEnable=false\n"
    )
    with running(*dev(tmp_path / "s", "--config", str(file), "--cluster", "flag")) as server:
        namesrv = server.shown["name server"]
        info = json.loads(client.call(namesrv, CLUSTER_INFO)[3])
        assert info["clusterAddrTable"] == {"flag": ["conf"]}
        assert "TBW102" not in json.loads(client.call(namesrv, TOPICS)[3])["topicList"]


def test_logs_of_both_languages_look_alike(tmp_path: Path) -> None:
    """Time, level, target, event, key=value: one filter for both."""
    environment = {**os.environ, "FERROMQ_LOG": "warn,ferromq::broker=info"}
    command = [*COMMAND, *dev(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert any(line.startswith("ready") for line in process.stdout)
        process.terminate()
        _, errors = process.communicate(timeout=20)
    (line,) = [line for line in errors.splitlines() if "broker ready" in line]
    moment, level, target, *event = line.split()
    assert moment.endswith("Z")
    assert (level, target) == ("INFO", "ferromq::broker")
    assert "broker=broker-a" in event
    assert "ferromq::namesrv" not in errors


def test_logs_are_objects_of_json_if_asked(tmp_path: Path) -> None:
    """One a line, with the same fields from both languages; the level is a flag, too."""
    command = [*COMMAND, *dev(tmp_path, "--log-format", "json", "--log-level", "info")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith("ready") for line in process.stdout)
        process.terminate()
        _, errors = process.communicate(timeout=20)
    lines = [json.loads(line) for line in errors.splitlines()]
    assert all(line.keys() == {"time", "level", "target", "message", "fields"} for line in lines)
    by_message = {line["message"]: line for line in lines}
    assert by_message["broker ready"]["fields"]["broker"] == "broker-a"
    for name in ("broker", "name server"):
        assert by_message[f"{name} stopped"]["fields"]["reason"] == "SIGTERM"
        assert by_message[f"{name} stopped"]["fields"]["seconds"] >= 0
    assert by_message["remoting listener open"]["target"] == "ferromq_transport::server"
    assert by_message["remoting listener open"]["fields"]["address"].startswith("127.0.0.1:")


def test_dead_letters_and_refused_sends_are_logged(tmp_path: Path) -> None:
    """With what they are about, and with the number of lines that a limit left out."""
    with running(*dev(tmp_path, "--log-format", "json", "--log-level", "info")) as server:
        with (
            ferromq.connect(server.shown["gRPC"]) as mq,
            mq.producer() as producer,
            mq.consumer("billing", "orders") as consumer,
        ):
            producer.send("orders", b"tea")
            (message,) = consumer.receive(1, wait=20)
            consumer.forward_to_dead_letter(message, "not tea")
            with pytest.raises(ferromq.FerromqError):
                producer.send("orders", b"later", delay=3_600)
        lines = [json.loads(line) for line in server.stop()[1].splitlines()]
    (dead,) = [line["fields"] for line in lines if line["message"] == "message stored as a dead letter"]
    assert (dead["topic"], dead["group"], dead["suppressed"]) == ("orders", "billing", 0)
    (refused,) = [line for line in lines if line["message"].startswith("send refused: ")]
    assert (refused["level"], refused["fields"]["suppressed"]) == ("WARN", 0)
    assert refused["fields"]["peer"].startswith("127.0.0.1:")


def test_servers_say_where_their_metrics_are(tmp_path: Path) -> None:
    """A flag sets the address; the page has the figures of the process, too."""
    with running(*dev(tmp_path, "--metrics-listen", FREE)) as server:
        with urllib.request.urlopen(server.shown["metrics"], timeout=20) as page:
            text = page.read().decode()
        assert "\nferromq_ready 1.0\n" in text
        assert "\nprocess_resident_memory_bytes " in text
        assert server.stop()[:2] == (0, "")


def drained(store: Path, quiet: str) -> tuple[str, ...]:
    """Return the arguments of a broker that drains at SIGTERM."""
    options = ("--listen", FREE, "--grpc-listen", FREE, "--set", "fast_listen=off", "--metrics-listen", "off")
    return ("broker", "--store", str(store), *options, "--drain", "60s", "--set", f"drain_quiet={quiet}")


def test_a_broker_that_drains_ends_when_it_is_quiet(tmp_path: Path) -> None:
    """One signal is enough."""
    with running(*drained(tmp_path, "0s")) as broker:
        code, errors, _ = broker.stop()
    assert code == 0
    assert "draining" in errors
    assert "drained: no send came" in errors


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_drain(tmp_path: Path, second: int) -> None:
    """The broker still closes its store."""
    with running(*drained(tmp_path, "50s")) as broker:
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.stderr is not None
        assert any("draining" in line for line in broker.process.stderr)
        code, errors, seconds = broker.stop(second)
    assert (code, "drained" in errors) == (0, False)
    assert seconds < in_load(10)
    assert not (tmp_path / "abort").exists()


def test_ctrl_c_does_not_wait_for_senders(tmp_path: Path) -> None:
    """A drain follows SIGTERM alone."""
    with running(*drained(tmp_path, "50s")) as broker:
        code, errors, _ = broker.stop(signal.SIGINT)
    assert (code, "draining" in errors) == (0, False)


@pytest.mark.parametrize(("command", "said"), [("stop", "stops"), ("drain", "it stops within 1m")])
def test_a_broker_is_stopped_by_a_command(tmp_path: Path, command: str, said: str) -> None:
    """From its own machine, without access control; a drain with its own times."""
    more = ("--quiet", "0s") if command == "drain" else ()
    with running(*drained(tmp_path, "50s")) as broker:
        done = run("cluster", command, "broker-a", *more, "--yes", "--endpoint", broker.shown["gRPC"])
        assert (done.returncode, said in done.stdout) == (0, True), done.stderr
        assert broker.process.wait(20) == 0


@pytest.mark.parametrize("server", ["broker", "namesrv"])
def test_the_configuration_is_read_again(tmp_path: Path, client: RemotingClient, server: str) -> None:
    """At SIGHUP and by the command; a wrong file changes nothing, and the log or the command says why."""
    file = tmp_path / "server.toml"
    command: tuple[str, ...]
    if server == "broker":
        options = drained(tmp_path / "store", "0s")
        first, second, key = "default_queues = 3\n", "default_queues = 4\nname = 'other'\n", "defaultTopicQueueNums"
        before, after, shown, restart = "3", "4", "gRPC", "name"
        command, show = ("config", "reload", "broker-a", "--endpoint"), 26
    else:
        options = ("namesrv", "--listen", FREE, "--metrics-listen", "off")
        first, second, key = "lease = '100s'\n", "lease = '50s'\nhandler_threads = 3\n", "lease"
        before, after, shown, restart = "100000ms", "50000ms", "name server", "handler_threads"
        command, show = ("config", "reload", "--name-servers", "--namesrv"), 319
    file.write_text(first)
    with running(*options, "--config", str(file)) as process:
        remoting = process.shown["broker" if server == "broker" else "name server"]

        def value() -> str:
            body = client.call(remoting, show)[3].decode()
            return next(line.partition("=")[2] for line in body.splitlines() if line.startswith(f"{key}="))

        assert value() == before
        file.write_text("not TOML")
        refused = run(*command, process.shown[shown])
        assert (refused.returncode, "nothing changed" in refused.stderr) == (1, True)
        file.write_text(second)
        process.process.send_signal(signal.SIGHUP)
        assert process.process.stderr is not None
        line = next(line for line in process.process.stderr if "configuration read again" in line)
        assert f"restart={restart}" in line
        assert value() == after
        file.write_text(first)
        done = run(*command, process.shown[shown], "--json")
        (found,) = json.loads(done.stdout).values()
        assert (len(found["changed"]), found["restart"]) == (1, [])
        assert value() == before
        assert process.stop()[0] == 0


def test_a_broker_below_nohup_survives_the_end_of_its_terminal(tmp_path: Path) -> None:
    """It ignores SIGHUP as before, with a configuration file, too."""
    file = tmp_path / "broker.toml"
    file.write_text("default_queues = 3\n")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with running(*drained(tmp_path / "store", "0s"), "--config", str(file)) as process:
            process.process.send_signal(signal.SIGHUP)
            code, errors, _ = process.stop()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (code, "read again" in errors) == (0, False)
