"""`mqnamesrv`, started with RocketMQ's command line."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from children import command

from ferromq._ferromq import RemotingClient
from ferromq.config.rocketmq_keys import NAME_SERVER_WITHOUT_EFFECT

PUT_KV, GET_CONFIG, SET_CONFIG = 100, 319, 318
COMMAND = command("mqnamesrv")


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command with *home* as the user's directory."""
    environment = {**os.environ, "HOME": str(home), "FERROMQ_LOG": "warn"}
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def run(home: Path, *arguments: str) -> tuple[int, str, str]:
    """Run the command to its end; return exit code, output and errors."""
    process = start(home, *arguments)
    output, errors = process.communicate(timeout=25)
    return process.returncode, output, errors


def test_the_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    """It reports its start in RocketMQ's words, and keeps keys and values in RocketMQ's file."""
    file = tmp_path / "namesrv.properties"
    file.write_text("bindAddress=127.0.0.1\nlistenPort=0\n")
    process = start(tmp_path, "-c", str(file), "-n", "127.0.0.1:9876", "--orderMessageEnable", "true")
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("The Name Server boot success. serializeType=JSON, address 127.0.0.1:")
        address, client = line.split()[-1], RemotingClient()
        assert b"orderMessageEnable=true\n" in client.call(address, GET_CONFIG)[3]
        assert client.call(address, PUT_KV, {"namespace": "n", "key": "k", "value": "v"})[0] == 0
        assert client.call(address, SET_CONFIG, None, b"enableTopicList=false")[0] == 0
        client.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=25)
    assert process.returncode == 0
    stored = json.loads((tmp_path / "namesrv" / "kvConfig.json").read_text())
    assert stored == {"configTable": {"n": {"k": "v"}}}
    assert file.read_text() == "bindAddress=127.0.0.1\nlistenPort=0\nenableTopicList=false\n"


def test_it_prints_its_configuration_and_ends(tmp_path: Path) -> None:
    """File and flags together, by RocketMQ's keys; nothing is started."""
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=1\nwaitSecondsForService=7\n")
    code, output, _ = run(tmp_path, "-c", str(file), "-p", "--listenPort", "2", "--scan-interval", "3s")
    shown = dict(line.split("=", 1) for line in output.splitlines())
    assert code == 0
    assert (shown["listenPort"], shown["waitSecondsForService"], shown["scanNotActiveBrokerInterval"]) == (
        "2",
        "7",
        "3000",
    )
    assert shown["kvConfigPath"] == str(tmp_path / "namesrv" / "kvConfig.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listenPrt", "1"], "unknown flag: listenPrt; did you mean listenPort?"),
        (["--listenPort", "x"], "listenPort=x in the flags: expected a whole number"),
        (["9876"], "9876 is not a flag"),
        (["--clusterTest", "true"], "another environment"),
        (["-c", "gone.conf"], "gone.conf"),
    ],
)
def test_an_impossible_configuration_is_an_error(tmp_path: Path, arguments: list[str], message: str) -> None:
    """Exit code 2, and the way out."""
    code, _, errors = run(tmp_path, *arguments)
    assert code == 2
    assert message in errors


def test_a_key_without_effect_is_warned_of(tmp_path: Path) -> None:
    """In a file and as a flag; a file written for RocketMQ may keep it."""
    file = tmp_path / "namesrv.conf"
    file.write_text("clusterTest=false\nserverSelectorThreads=3\n")
    code, _, errors = run(tmp_path, "-p", "-c", str(file), "--serverWorkerThreads", "8")
    assert code == 0
    lines = [line.partition("ferromq::config ")[2] for line in errors.splitlines()]
    why = NAME_SERVER_WITHOUT_EFFECT["serverWorkerThreads"]
    assert sorted(lines) == [
        f"keys have no effect here, serverSelectorThreads: {why} source={file}",
        f"keys have no effect here, serverWorkerThreads: {why} source=the flags",
    ]
