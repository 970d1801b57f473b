"""The command `ferromq`: errors for wrong arguments, and the options of its servers."""

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from ferromq.broker.cluster.addresses import identify, unreachable
from ferromq.cli import main as cli
from ferromq.cli import servers
from ferromq.config.broker import BrokerConfig
from ferromq.process.stop_signals import StopSignals


@pytest.mark.parametrize(
    ("words", "usage", "told"),
    [
        (["dev", "--stroe", "x"], "usage: ferromq dev", "unknown argument --stroe; did you mean --store?"),
        (["broker", "--namesrb=a:1"], "usage: ferromq broker", "--namesrb=a:1; did you mean --namesrv?"),
        (["store", "stat", "--jsn", "d"], "usage: ferromq store stat", "--jsn; did you mean --json?"),
        (["dev", "extra"], "usage: ferromq dev", "unknown argument extra\n"),
    ],
)
def test_an_unknown_argument_is_told_with_the_usage_of_its_command(
    words: list[str], usage: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And with the nearest option that the command has."""
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(usage)
    assert told in error


@pytest.fixture(autouse=True)
def no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the logs of the tests' process as they are, where a server would install its own."""
    monkeypatch.setattr(servers.logs, "install", lambda *_: None)


def test_dev_keeps_changes_of_options_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ferromq broker` does."""
    file = tmp_path / "broker.toml"
    file.write_text('listen = "127.0.0.1:0"\n')
    made: list[dict[str, Any]] = []

    def broker(_config: BrokerConfig, **given: Any) -> SimpleNamespace:
        made.append(given)
        return server

    settings = SimpleNamespace(has_file=False)
    server = SimpleNamespace(address="127.0.0.1:1", close=lambda: None, settings=settings)
    monkeypatch.setattr(servers, "NamesrvController", lambda _config: server)
    monkeypatch.setattr(servers, "BrokerController", broker)
    monkeypatch.setattr(servers, "_show", lambda _broker: None)
    monkeypatch.setattr(StopSignals, "wait", lambda _stop: None)
    assert cli.main(["dev", "--no-dashboard", "--config", str(file)]) == 0
    assert [str(given["config_file"]) for given in made] == [str(file)]


def own_address() -> str:
    """Return an address of this machine that is not loopback; loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@pytest.mark.parametrize(
    ("listen", "options", "told"),
    [
        ("127.0.0.1:10911", {}, []),
        ("0.0.0.0:10911", {"advertise": "192.0.2.2"}, []),
        ("127.0.0.1:10911", {"advertise": "localhost"}, []),
        ("127.0.0.1:10911", {"advertise": "no-such-host.invalid"}, []),
        ("127.0.0.1:10911", {"advertise": "192.0.2.2"}, ["192.0.2.2:10911", "advertise", "127.0.0.1:10911", "listen"]),
        # Behind a NAT the broker cannot check the address.
        (f"{own_address()}:10911", {"advertise": "192.0.2.2"}, []),
    ],
)
def test_an_address_nothing_listens_on_is_told(listen: str, options: dict[str, str], told: list[str]) -> None:
    """With both addresses, and both options; without a way to check, nothing is logged."""
    if told == [] and options == {"advertise": "192.0.2.2"} and listen.startswith("127."):
        pytest.skip("this machine has only loopback")
    config = BrokerConfig.from_options({"listen": listen, "grpc_listen": "0.0.0.0:8081", **options})
    warnings = unreachable(identify(config, listen, "0.0.0.0:8081"), listen, "0.0.0.0:8081")
    assert len(warnings) == bool(told)
    assert all(word in warning for warning in warnings for word in told)


def test_a_grpc_address_that_leads_to_the_other_host_is_told() -> None:
    """It is the host of `advertise` unless it is given."""
    config = BrokerConfig.from_options({"advertise": "192.0.2.2", "grpc_listen": "127.0.0.1:28581"})
    [warning] = unreachable(identify(config, "0.0.0.0:10911", "127.0.0.1:28581"), "0.0.0.0:10911", "127.0.0.1:28581")
    assert all(word in warning for word in ("192.0.2.2:28581", "grpc_advertise", "127.0.0.1:28581", "grpc_listen"))


def test_help_lists_no_key_that_may_have_one_value_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor one without effect; keys with a choice are listed."""
    assert cli.mqbroker(["--help"]) == 0
    listed = set(capsys.readouterr().out.split())
    assert {"--brokerName", "--auto-create-topics"} <= listed
    assert not {"--aclEnable", "--storeType", "--longPollingEnable"} & listed


def all_commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command with its words; of pipelines the names alone."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from all_commands(found, *path, name)


def test_the_help_of_a_command_is_the_one_that_the_list_shows() -> None:
    """The list has texts of its own, because it imports no command."""
    context = click.Context(cli.root)
    shown = {item.value: item.help for item in cli.root.shell_complete(context, "") if not item.value.startswith("-")}
    found = {path[0]: command.get_short_help_str(99) for path, command in all_commands(cli.root) if len(path) == 1}
    assert shown == found
    assert len(found) > 15


@pytest.mark.parametrize("program", ["ferromq", "ferromq mqadmin", "ferromq mqadmin help", "mqbroker", "mqnamesrv"])
def test_each_program_completes_its_options(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the variable that `ferromq completion` names."""
    assert cli.main(["completion", "bash"]) == 0
    variable = f"_{program.partition(' ')[0].upper()}_COMPLETE"
    assert f"{variable}=bash_complete" in capsys.readouterr().out
    words, expected = {
        "ferromq": ("ferromq store du", "dump"),
        "ferromq mqadmin": ("ferromq mqadmin updateTopicP", "updateTopicPerm"),
        "ferromq mqadmin help": ("ferromq mqadmin help updateTopicP", "updateTopicPerm"),
        "mqbroker": ("mqbroker --brokerNa", "--brokerName"),
        "mqnamesrv": ("mqnamesrv --listenPo", "--listenPort"),
    }[program]
    monkeypatch.setenv(variable, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", f"{len(words.split()) - 1}")
    run = {"ferromq": cli.main, "mqbroker": cli.mqbroker, "mqnamesrv": cli.mqnamesrv}[program.partition(" ")[0]]
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == 0
    assert expected in capsys.readouterr().out.replace(",", "\n").split()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["broker", "--store", "--fast-boot"], "Option '--store' requires an argument."),
        (["broker", "--store"], "Option '--store' requires an argument."),
        (["broker", "--stor", "x"], "unknown argument --stor; did you mean --store?"),
        (["broker", "-xfile"], "unknown argument -x"),
        (["topci"], "No such command 'topci'. Did you mean 'topic'?"),
        (["topic", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["pipeline", "adit"], "No such command 'adit'. Did you mean 'audit'?"),
    ],
)
def test_wrong_words_are_told_with_what_was_meant(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option needs its value, which another option is not, and its whole name."""
    assert cli.main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "FILE", "-n", "a:1", "-p"],
        ["-c=FILE", "-n=a:1", "-p"],
        ["-cFILE", "-na:1", "-p"],
        ["-bc", "FILE", "--namesrvAddr=a:1", "--printConfigItem"],
        ["--brokerConfigPath", "FILE", "--namesrv", "a:1", "-p", "-m"],
        ["--configFile=FILE", "--brokerName", "other", "--namesrvAddr", "a:1", "-p", "--brokerName=b"],
    ],
    ids=" ".join,
)
def test_mqbroker_takes_each_form_of_a_flag(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As RocketMQ's scripts give them; of a repeated flag the last one counts."""
    (tmp_path / "b.conf").write_text("brokerName=b\nlistenPort=0\n")
    assert cli.mqbroker([word.replace("FILE", str(tmp_path / "b.conf")) for word in words]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert {"brokerName=b", "namesrvAddr=a:1"} <= set(printed)
