"""The files in `deploy` that start servers: their own tools take them, and they name options that there are."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from ferromq._ferromq import RemotingClient
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.protocol.codes import RequestCode, ResponseCode

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFEST = DEPLOY / "kubernetes" / "ferromq.yaml"
CONTAINER = DEPLOY / "container" / "Containerfile"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
KINDS = (BrokerConfig, NameServerConfig)
VARIABLE = re.compile(r"\bFERROMQ_(?:BROKER|NAMESRV)_[A-Z_]+")


def manifests() -> list[dict[str, Any]]:
    """Return the objects of the manifest."""
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def test_kubernetes_takes_every_object() -> None:
    """With its schema of the newest version; an unknown field is an error."""
    found = manifests()
    assert {"StatefulSet", "Service", "ConfigMap", "PodDisruptionBudget"} == {each["kind"] for each in found}
    for each in found:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def of_a_pod(names: str, kind: type[BrokerConfig | NameServerConfig]) -> dict[str, Any]:
    """Return the options of the file and the variables of a pod of the manifest."""
    (pods,) = (each for each in manifests() if each["metadata"]["name"] == names and "template" in each["spec"])
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    (file,) = (Path(each).name for each in container["args"] if each.startswith("/etc/ferromq/"))
    (text,) = (each["data"][file] for each in manifests() if each["kind"] == "ConfigMap")
    options = tomllib.loads(text)
    for variable in container["env"]:
        name = variable["name"].removeprefix(kind.prefix)
        if name != variable["name"]:
            secret = variable.get("valueFrom", {}).get("secretKeyRef", {}).get("key")
            options[name.lower()] = variable.get("value", f"{secret}:a password").replace("$(POD)", f"{names}-0")
    return options


def test_the_configurations_in_the_manifest_are_some() -> None:
    """Servers take the file and the variables of their pods."""
    config = BrokerConfig.from_options(of_a_pod("brokers", BrokerConfig))
    assert (config.name, str(config.storage.flush)) == ("brokers-0", "group")
    assert NameServerConfig.from_options(of_a_pod("names", NameServerConfig)).watch_config


def run(stack: contextlib.ExitStack, directory: Path, server: str, options: dict[str, Any]) -> str:
    """Run a server with these options in a file of its own, on free ports, and return its remoting address."""
    directory.mkdir()
    free = dict.fromkeys(("listen", *(["grpc_listen"] if server == "broker" else [])), "127.0.0.1:0")
    shown = {**options, **free, "metrics_listen": "off"}
    file = directory / "server.toml"
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in shown.items()))
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-m", "ferromq", server, "--config", file],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    begin = "broker       " if server == "broker" else "name server  "
    address = ""
    for line in process.stdout:
        address = line.removeprefix(begin).strip() if line.startswith(begin) else address
        if line.startswith("ready"):
            return address
    pytest.fail(process.stderr.read() if process.stderr is not None else "")


def test_servers_of_the_manifest_find_each_other_and_refuse_strangers(tmp_path: Path) -> None:
    """A broker registers with the secret that name servers have; a client without one cannot."""
    of_names = of_a_pod("names", NameServerConfig) | {"access_directory": ".", "kv_config_path": "./kvConfig.json"}
    of_broker = of_a_pod("brokers", BrokerConfig) | {"advertise": "127.0.0.1", "fast_listen": "off"}
    with contextlib.ExitStack() as stack:
        names = run(stack, tmp_path / "names", "namesrv", of_names)
        run(stack, tmp_path / "broker", "broker", {**of_broker, "namesrv": [names], "commit_log_file_size": "1MiB"})
        assert (tmp_path / "broker" / "store" / "commitlog").is_dir()
        fields = {"clusterName": "queues", "brokerName": "evil", "brokerId": "0", "brokerAddr": "10.0.0.66:10911"}
        with contextlib.closing(RemotingClient()) as stranger:
            assert stranger.call(names, RequestCode.REGISTER_BROKER, fields)[0] == ResponseCode.NO_PERMISSION
            assert stranger.call(names, RequestCode.GET_BROKER_CLUSTER_INFO)[0] == ResponseCode.NO_PERMISSION
        with contextlib.closing(RemotingClient(credentials=("initial-user", "a password"))) as admin:
            *_, found = admin.call(names, RequestCode.GET_BROKER_CLUSTER_INFO)
        assert list(json.loads(found)["brokerAddrTable"]) == ["brokers-0"]


@pytest.mark.parametrize("file", [MANIFEST, CONTAINER, *UNITS], ids=lambda file: file.name)
def test_variables_name_options(file: Path) -> None:
    """A misspelt one would stop the server at its start."""
    for variable in VARIABLE.findall(file.read_text()):
        kind = next(kind for kind in KINDS if variable.startswith(kind.prefix))
        assert variable.removeprefix(kind.prefix).lower() in kind.names(), variable


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda file: file.name)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    """It warns of nothing, once the program is where the unit looks for it."""
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/ferromq/bin/ferromq", "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
