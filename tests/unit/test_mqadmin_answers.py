"""Answers of brokers in any form: a command of `ferromq mqadmin` prints, or ends with an error that is told."""

import contextlib
import io
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferromq.cli.mqadmin import app, clients, messages
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode

CLUSTER = {
    "brokerAddrTable": {"a": {"brokerName": "a", "cluster": "c", "brokerAddrs": {"0": "127.0.0.1:1"}}},
    "clusterAddrTable": {"c": ["a"]},
}
ROUTE = {
    "queueDatas": [{"brokerName": "a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}],
    "brokerDatas": [{"brokerName": "a", "cluster": "c", "brokerAddrs": {"0": "127.0.0.1:1"}}],
}
QUEUE = '{"brokerName":"a","queueId":0,"topic":"t"}'
FIELDS = (
    *("offsetTable", "consumeStatsList", "groupList", "topicList", "subscriptionGroupTable", "connectionSet", "data"),
    *(
        "subscriptionTable",
        "table",
        "clientId",
        "version",
        "g",
        "groupRetryPolicy",
        "queueData",
        "mqTable",
        "properties",
    ),
    *("statusTable", "subscriptionSet", "minOffset", "maxOffset", "lastUpdateTimestamp", "lastTimestamp", "statsDay"),
    *("brokerOffset", "consumerOffset", "pullOffset", "consumeTps", "statsMinute", "sum", "tps", "policies", "entries"),
    *("consumeType", "username", "PROP_CONSUME_TYPE", "PROP_CONSUMER_START_TIMESTAMP", "putTps", QUEUE),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 1 << 70)
    | st.floats()
    | st.text(max_size=4)
    | st.just("CONSUME_PASSIVELY"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5)
ROWS = st.dictionaries(st.just(QUEUE), OBJECTS)
SHAPED = st.fixed_dictionaries(
    {},
    optional={
        "subscriptionGroupTable": st.fixed_dictionaries({"g": OBJECTS | JSON}),
        "connectionSet": st.lists(OBJECTS, max_size=2),
        "subscriptionTable": st.dictionaries(st.just("t"), OBJECTS | JSON),
        "offsetTable": ROWS,
        "mqTable": ROWS,
        "properties": OBJECTS,
        "consumeStatsList": st.lists(
            st.dictionaries(st.just("g"), st.lists(st.fixed_dictionaries({"offsetTable": ROWS}), max_size=1)),
            max_size=2,
        ),
        "topicList": st.lists(JSON, max_size=2),
        "groupList": st.lists(st.just("g"), max_size=2),
        "table": OBJECTS | JSON,
        "queueData": st.lists(OBJECTS, max_size=2),
        "data": st.dictionaries(st.just("g"), st.lists(OBJECTS, max_size=2)),
        "policies": st.lists(OBJECTS, max_size=2),
    },
)
BODIES = st.binary(max_size=60) | (SHAPED | JSON | OBJECTS | st.lists(OBJECTS)).map(
    lambda value: text_of(value).encode()
)
HEADERS = st.dictionaries(
    st.sampled_from(["offset", "nextBeginOffset", "minOffset", "maxOffset", "queueId"]),
    st.text("0123456789-x", max_size=4),
)
OPTIONS = {
    "b": "127.0.0.1:1",
    "c": "c",
    "t": "t",
    "g": "g",
    "u": "u",
    "s": "0",
    "d": "g",
    "p": "6",
    "i": "0",
    "k": "k",
    "v": "v",
    "m": "get",
    "q": "0",
    "o": "0",
    "f": "127.0.0.1:1",
    "r": "r",
    "a": "Pub",
}


def text_of(value: Any) -> str:
    """Return JSON as Java writes it, with objects as keys."""
    return json.dumps(value).replace(json.dumps(QUEUE), QUEUE)


class Servers:
    """Stands for the client of a session: the name server answers as it should, brokers anything."""

    bodies: ClassVar[list[bytes]] = []
    header: ClassVar[Mapping[str, str]] = {}
    asked = 0

    def __init__(self, **_options: Any) -> None:
        """Take what a client takes."""

    def call(self, _address: str, code: int, *_: Any, **__: Any) -> tuple[int, str | None, Mapping[str, str], bytes]:
        """Answer the next body."""
        known = {RequestCode.GET_BROKER_CLUSTER_INFO: CLUSTER, RequestCode.GET_ROUTEINFO_BY_TOPIC: ROUTE}
        if code in known:
            return 0, None, {}, java_json.dumps(known[RequestCode(code)])
        if code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return 0, None, {}, b'{"topicList":["t","%RETRY%g"]}'
        Servers.asked += 1
        return 0, None, Servers.header, Servers.bodies[Servers.asked % len(Servers.bodies)]

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("name", app.COMMANDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12)
@given(bodies=st.lists(BODIES, min_size=1, max_size=4), header=HEADERS)
def test_any_answer_is_printed_or_an_error(
    name: str, bodies: list[bytes], header: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Nothing is raised."""
    command = app.COMMANDS[name]
    seen, words = set[int](), ["-n", "127.0.0.1:2"]
    for option in command.options:
        if option.is_required or (option.group and option.group not in seen):
            seen.add(option.group)
            name_server = name.startswith(("wipe", "add")) and option.key == "b"
            by_name = name == "queryMsgByOffset" and option.key == "b"
            words += [f"-{option.letter}", "a" if name_server or by_name else OPTIONS[option.letter]]
    Servers.bodies, Servers.header, Servers.asked = bodies, header, 0
    monkeypatch.setattr("ferromq.admin.calls.RemotingClient", Servers)
    monkeypatch.setattr(messages, "_BODIES", tmp_path)
    monkeypatch.setattr(clients, "Path", lambda name: tmp_path / name)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert app.run([name, *words]) in {0, 1, 2, 3, 4}


def test_a_broker_that_has_just_started_has_no_rates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """RocketMQ's broker tells blanks until its first sample, and its tool prints 0."""
    told = {"brokerVersionDesc": "V5_5_0", "putTps": "  ", "getTransferredTps": "  ", "brokerActive": "true"}
    Servers.bodies = [java_json.dumps({"table": told})]
    monkeypatch.setattr("ferromq.admin.calls.RemotingClient", Servers)
    assert app.run(["clusterList", "-n", "127.0.0.1:2"]) == 0
    assert capsys.readouterr().out.count(" 0.00(") == 2


@pytest.mark.parametrize("name", ["updateTopic", "updateSubGroup", "cleanUnusedTopic", "updateBrokerConfig"])
def test_a_cluster_with_a_lost_master_is_changed_nowhere(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the broker; RocketMQ's tool would leave it out."""
    lost = {"brokerName": "b", "cluster": "c", "brokerAddrs": {"1": "127.0.0.1:3"}}
    brokers = {**CLUSTER["brokerAddrTable"], "b": lost}  # type: ignore[dict-item]
    monkeypatch.setitem(CLUSTER, "brokerAddrTable", brokers)
    monkeypatch.setitem(CLUSTER, "clusterAddrTable", {"c": ["a", "b"]})
    monkeypatch.setattr("ferromq.admin.calls.RemotingClient", Servers)
    Servers.asked = 0
    words = [word for letter in "tgkv" if letter in _letters(name) for word in (f"-{letter}", OPTIONS[letter])]
    assert app.run([name, "-n", "127.0.0.1:2", *words, *(() if name == "cleanUnusedTopic" else ("-c", "c"))]) == 4
    assert "knows no master of the broker b" in capsys.readouterr().err
    assert Servers.asked == 0


def _letters(name: str) -> set[str]:
    return {option.letter for option in app.COMMANDS[name].options if option.is_required}
