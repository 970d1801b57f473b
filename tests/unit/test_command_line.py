"""The command `ferromq`: errors for wrong arguments, and the options of its servers."""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(usage)
    assert told in error


def test_dev_keeps_changes_of_options_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ferromq broker` does."""
    file = tmp_path / "broker.toml"
    file.write_text('listen = "127.0.0.1:0"\n')
    made: list[dict[str, Any]] = []

    def broker(_config: BrokerConfig, **given: Any) -> SimpleNamespace:
        made.append(given)
        return server

    server = SimpleNamespace(address="127.0.0.1:1", close=lambda: None)
    monkeypatch.setattr(servers, "NamesrvController", lambda _config: server)
    monkeypatch.setattr(servers, "BrokerController", broker)
    monkeypatch.setattr(servers, "_show", lambda _broker: None)
    monkeypatch.setattr(StopSignals, "wait", lambda _stop: None)
    assert cli.main(["dev", "--config", str(file)]) == 0
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
    with pytest.raises(SystemExit):
        cli.mqbroker(["--help"])
    listed = set(capsys.readouterr().out.split())
    assert {"--brokerName", "--auto-create-topics"} <= listed
    assert not {"--aclEnable", "--storeType", "--longPollingEnable"} & listed
