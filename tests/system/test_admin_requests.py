"""Administrators over remoting: topics, groups, offsets, reports and options in Java's own shapes."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from remoting_peer import Frame, Peer

import ferromq
from ferromq._ferromq import decode_records

Eventually = Callable[[Callable[[], bool]], bool]
Offsets = dict[int, dict[str, int]]

SUCCESS, SYSTEM_ERROR, NOT_SUPPORTED = 0, 1, 3
NO_PERMISSION, TOPIC_NOT_EXIST, PULL_NOT_FOUND, NOT_FOUND, INVALID = 16, 17, 19, 22, 29


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker."""
    with ferromq.embedded() as embedded:
        yield embedded


@pytest.fixture
def peer(mq: ferromq.Embedded) -> Iterator[Peer]:
    """Yield a remoting client of it."""
    with Peer(mq.remoting) as client:
        yield client


def offset_table(frame: Frame) -> dict[str, Offsets]:
    """Return topic → queue id → numbers, of a map whose keys Java writes as objects."""
    pairs = re.findall(r"(\{[^{}]*\}):(\{[^{}]*\})", frame.body.decode())
    found: dict[str, Offsets] = {}
    for key, value in pairs:
        queue = json.loads(key)
        found.setdefault(queue["topic"], {})[queue["queueId"]] = json.loads(value)
    return found


def fill(mq: ferromq.Embedded, topic: str, count: int, *, queues: int = 2) -> None:
    """Make a topic and store messages in its queue 0."""
    with mq.admin() as admin:
        admin.create_topic(topic, queues=queues)
    for number in range(count):
        mq.broker.store.append(topic, 0, b"%d" % number, {"KEYS": f"key-{number}"})


def settled(mq: ferromq.Embedded, topic: str, count: int) -> Callable[[], bool]:
    """Return a function that checks that the messages can be read."""
    return lambda: mq.broker.store.max_offset(topic, 0) == count


def test_a_new_topic_has_all_its_queues_in_its_report(peer: Peer) -> None:
    """RocketMQ's tools take an empty report for a missing topic."""
    fields = {"topic": "fresh", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "2", "perm": "6"}
    assert peer.call(17, {**fields, "topicFilterType": "SINGLE_TAG", "order": "false"}).code == SUCCESS
    answer = peer.call(202, {"topic": "fresh"})
    assert answer.code == SUCCESS
    assert offset_table(answer) == {
        "fresh": {queue_id: {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0} for queue_id in range(3)}
    }
    assert b'"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"fresh"}:{' in answer.body


def test_topics_and_groups_are_made_by_list_all_or_none(peer: Peer) -> None:
    """An invalid one prevents the others, and is named."""
    good = [{"topicName": f"list-{number}", "readQueueNums": 1, "writeQueueNums": 1} for number in range(50)]
    bad = peer.call(18, body={"topicConfigList": [*good, {"topicName": "two words"}]})
    assert (bad.code, "two words" in (bad.remark or "")) == (INVALID, True)
    assert peer.call(351, {"topic": "list-0"}).code == TOPIC_NOT_EXIST
    assert peer.call(18, body={"topicConfigList": good}).code == SUCCESS
    found = peer.call(351, {"topic": "list-49"}).json()
    assert (found["topicName"], found["readQueueNums"], found["perm"]) == ("list-49", 1, 6)
    groups = [{"groupName": f"group-{number}", "retryMaxTimes": 3} for number in range(3)]
    assert peer.call(225, body={"groupConfigList": [*groups, {"groupName": "g" * 121}]}).code == INVALID
    assert peer.call(225, body={"groupConfigList": groups}).code == SUCCESS
    assert peer.call(352, {"group": "group-2"}).json()["retryMaxTimes"] == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("topicSysFlag", -1), ("topicSysFlag", 1 << 31), ("perm", -1), ("perm", 8), ("readQueueNums", 1 << 40)],
)
def test_an_invalid_number_of_a_topic_is_refused(peer: Peer, name: str, value: int) -> None:
    """By request and by list; the topic is not made."""
    fields = {"topic": "odd", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", name: str(value)}
    for refused in (
        peer.call(17, fields),
        peer.call(18, body={"topicConfigList": [{"topicName": "odd", name: value}]}),
    ):
        assert (refused.code, name in (refused.remark or "")) == (INVALID, True)
    assert peer.call(351, {"topic": "odd"}).code == TOPIC_NOT_EXIST


def test_a_broker_starts_again_after_a_group_with_odd_numbers(tmp_path: Path) -> None:
    """Neither a request nor the file of another broker prevents it."""
    with ferromq.embedded(tmp_path) as mq, Peer(mq.remoting) as peer:
        assert peer.call(200, body={"groupName": "odd", "retryQueueNums": 1 << 40}).code == INVALID
        assert peer.call(200, body={"groupName": "even"}).code == SUCCESS
        file = Path(mq.broker.config.store) / "config" / "subscriptionGroup.json"
    content = json.loads(file.read_text())
    content["subscriptionGroupTable"]["odd"] = {"groupName": "odd", "retryQueueNums": 1 << 40}
    file.write_text(json.dumps(content))
    with ferromq.embedded(tmp_path) as mq, Peer(mq.remoting) as peer:
        known = peer.call(201).json()["subscriptionGroupTable"]
        assert ("even" in known, "odd" in known) == (True, False)


def test_tables_come_whole_or_in_pages(peer: Peer) -> None:
    """Old clients send nothing and get all; a position counts only with the version of its page."""
    whole = peer.call(21)
    table, version = whole.json()["topicConfigTable"], whole.json()["dataVersion"]
    assert whole.fields["totalTopicNum"] == str(len(table))
    assert {"TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", "broker-a"} <= table.keys()
    pages: dict[str, Any] = {}
    while len(pages) < len(table):
        place = {"topicSeq": str(len(pages)), "maxTopicNum": "5", "dataVersion": json.dumps(version)}
        page = peer.call(21, place).json()
        assert len(page["topicConfigTable"]) <= 5
        assert not page["topicConfigTable"].keys() & pages.keys()
        pages |= page["topicConfigTable"]
    assert pages == table
    old = {"topicSeq": "5", "maxTopicNum": "5", "dataVersion": json.dumps({**version, "counter": 0})}
    assert sorted(peer.call(21, old).json()["topicConfigTable"]) == sorted(table)[:5]
    groups = peer.call(201)
    assert groups.fields["totalGroupNum"] == str(len(groups.json()["subscriptionGroupTable"]))
    assert "TOOLS_CONSUMER" in groups.json()["subscriptionGroupTable"]
    assert peer.call(21, {"topicSeq": "0", "dataVersion": "[]"}).code == INVALID


def test_a_group_goes_with_its_progress_where_asked(mq: ferromq.Embedded, peer: Peer, eventually: Eventually) -> None:
    """Without `cleanOffset` a group of the same name goes on where it was."""
    fill(mq, "progress", 5)
    assert eventually(settled(mq, "progress", 5))
    assert peer.call(200, body={"groupName": "gone"}).code == SUCCESS
    mq.broker.store.commit_offset("gone", "progress", 0, 3)
    queue = {"consumerGroup": "gone", "topic": "progress", "queueId": "0"}
    assert peer.call(207, {"groupName": "gone"}).code == SUCCESS
    assert mq.broker.groups.get("gone") is None
    assert peer.call(14, queue).fields["offset"] == "3"
    assert peer.call(207, {"groupName": "gone", "cleanOffset": "true"}).code == SUCCESS
    assert peer.call(14, {**queue, "setZeroIfNotFound": "false"}).code == NOT_FOUND
    system = peer.call(207, {"groupName": "TOOLS_CONSUMER"})
    assert (system.code, "TOOLS_CONSUMER" in (system.remark or "")) == (INVALID, True)


def test_a_new_group_begins_at_zero_where_the_queue_does(
    mq: ferromq.Embedded, peer: Peer, eventually: Eventually
) -> None:
    """Also in an empty queue, so that no later message is skipped; unless the client declines that."""
    fill(mq, "beginning", 0)
    queue = {"consumerGroup": "new", "topic": "beginning", "queueId": "1"}
    assert peer.call(14, queue).fields == {"offset": "0"}
    assert peer.call(14, {**queue, "setZeroIfNotFound": "true"}).fields == {"offset": "0"}
    refused = peer.call(14, {**queue, "setZeroIfNotFound": "false"})
    assert (refused.code, "new" in (refused.remark or "")) == (NOT_FOUND, True)
    mq.broker.store.append("beginning", 1, b"x")
    assert eventually(lambda: mq.broker.store.max_offset("beginning", 1) == 1)
    assert peer.call(14, queue).fields == {"offset": "0"}
    assert mq.broker.store.committed_offset("new", "beginning", 1) is None, "asking commits nothing"


def test_offsets_by_time_and_the_ends_of_a_queue(mq: ferromq.Embedded, peer: Peer, eventually: Eventually) -> None:
    """Lower and upper boundary as in RocketMQ; unknown topics are named."""
    fill(mq, "times", 4)
    assert eventually(settled(mq, "times", 4))
    queue = {"topic": "times", "queueId": "0"}
    stored = mq.broker.store.stored_time("times", 0, 0)
    assert stored is not None
    assert peer.call(30, queue).fields == {"offset": "4"}
    assert peer.call(31, queue).fields == {"offset": "0"}
    assert peer.call(32, queue).fields == {"timestamp": str(stored)}
    assert peer.call(32, {**queue, "queueId": "1"}).fields == {"timestamp": "-1"}
    late, early = str(stored + 1_000_000), str(stored - 1_000_000)
    assert peer.call(29, {**queue, "timestamp": late}).fields == {"offset": "4"}
    assert peer.call(29, {**queue, "timestamp": late, "boundaryType": "upper"}).fields == {"offset": "3"}
    assert peer.call(29, {**queue, "timestamp": early, "boundaryType": "LOWER"}).fields == {"offset": "0"}
    assert peer.call(29, {**queue, "timestamp": late, "boundaryType": "middle"}).code == INVALID
    for code in (29, 30, 31, 32):
        missing = peer.call(code, {"topic": "nowhere", "queueId": "0", "timestamp": "0"})
        assert (missing.code, "nowhere" in (missing.remark or "")) == (TOPIC_NOT_EXIST, True)
        assert peer.call(code, {"topic": "times", "queueId": "-1", "timestamp": "0"}).code == INVALID


def test_progress_is_reported_and_cloned(mq: ferromq.Embedded, peer: Peer, eventually: Eventually) -> None:
    """With the time of the last message read; by topic, by list, or all a group has read."""
    fill(mq, "read", 6)
    fill(mq, "read-too", 1)
    assert eventually(settled(mq, "read", 6))
    assert eventually(settled(mq, "read-too", 1))
    store = mq.broker.store
    store.commit_offset("reader", "read", 0, 4)
    store.commit_offset("reader", "read-too", 0, 1)
    table = offset_table(peer.call(208, {"consumerGroup": "reader"}))
    assert table.keys() == {"read", "read-too"}
    assert table["read"] == {
        0: {
            "brokerOffset": 6,
            "consumerOffset": 4,
            "lastTimestamp": store.stored_time("read", 0, 3),
            "pullOffset": 4,
        },
        1: {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0},
    }
    assert offset_table(peer.call(208, {"consumerGroup": "reader", "topic": "read"})).keys() == {"read"}
    listed = offset_table(peer.call(208, {"consumerGroup": "reader", "topicList": "read-too;nowhere;"}))
    assert listed.keys() == {"read-too"}
    assert peer.call(314, {"srcGroup": "reader", "destGroup": "copy", "topic": "", "offline": "true"}).code == SUCCESS
    assert store.committed_offsets("copy") == {"read@copy": {0: 4}, "read-too@copy": {0: 1}}
    none = peer.call(314, {"srcGroup": "nobody", "destGroup": "copy"})
    assert (none.code, "nobody" in (none.remark or "")) == (NOT_FOUND, True)
    offsets = peer.call(43).json()
    assert offsets["offsetTable"]["read@copy"] == {"0": 4}
    assert offsets["dataVersion"]["timestamp"] > 0
    spans = peer.call(303, {"topic": "read", "group": "reader"}).json()["consumeTimeSpanSet"]
    first = next(span for span in spans if span["messageQueue"]["queueId"] == 0)
    assert first["minTimeStamp"] == store.stored_time("read", 0, 0)
    assert first["maxTimeStamp"] == store.stored_time("read", 0, 5)
    assert first["consumeTimeStamp"] == store.stored_time("read", 0, 3)
    assert first["delayTime"] >= 0
    assert peer.call(303, {"topic": "nowhere", "group": "reader"}).code == TOPIC_NOT_EXIST
    mq.broker.groups.ensure("reader", "test")
    everything = peer.call(317, {"isOrder": "false"})
    assert b'{"reader":[{"consumeTps":' in everything.body
    assert b'"totalDiff":' in everything.body


def test_a_consume_queue_shows_its_entries(mq: ferromq.Embedded, peer: Peer, eventually: Eventually) -> None:
    """Offset, size and tag hash of each; a missing offset or queue is named."""
    fill(mq, "entries", 3)
    assert eventually(settled(mq, "entries", 3))
    fields = {"topic": "entries", "queueId": "0", "index": "1", "count": "10"}
    body = peer.call(321, fields).json()
    assert (body["minQueueIndex"], body["maxQueueIndex"], len(body["queueData"])) == (0, 3, 2)
    entry = body["queueData"][0]
    (record,) = decode_records(peer.call(33, {"topic": "entries", "offset": str(entry["physicOffset"])}).body)
    assert (record.body, record.queue_offset, len(record.raw)) == (b"1", 1, entry["physicSize"])
    past = peer.call(321, {**fields, "index": "9"})
    assert (past.code, "queueData" in past.json(), "Index 9" in (past.remark or "")) == (SUCCESS, False, True)
    offline = peer.call(321, {**fields, "consumerGroup": "nobody"}).json()
    assert "not online" in offline["filterData"]
    assert peer.call(321, {**fields, "queueId": "7"}).code == SYSTEM_ERROR


def test_a_deleted_topic_takes_what_groups_were_to_get_again(
    mq: ferromq.Embedded, peer: Peer, eventually: Eventually
) -> None:
    """The retry topics of pop consumers, named by group and topic; other retry topics stay."""
    fill(mq, "doomed", 1)
    assert eventually(settled(mq, "doomed", 1))
    mq.broker.store.commit_offset("popper", "doomed", 0, 1)
    for name in ("%RETRY%popper_doomed", "%RETRY%popper"):
        assert peer.call(17, {"topic": name, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}).code == SUCCESS
    assert peer.call(215, {"topic": "doomed"}).code == SUCCESS
    left = mq.broker.topics.content.entries
    assert ("doomed" in left, "%RETRY%popper_doomed" in left, "%RETRY%popper" in left) == (False, False, True)
    assert mq.broker.store.committed_offsets("popper") == {}
    assert peer.call(215, {"topic": "doomed"}).code == SUCCESS
    assert peer.call(215, {"topic": "TBW102"}).code == INVALID


def test_a_deleted_topic_leaves_the_retries_of_a_group_named_like_it(
    mq: ferromq.Embedded, peer: Peer, eventually: Eventually
) -> None:
    """The retry topic of the group a_b has the name of the pop retries of group a and topic b."""
    fill(mq, "b", 1)
    assert eventually(settled(mq, "b", 1))
    mq.broker.store.commit_offset("a", "b", 0, 1)
    assert peer.call(200, body={"groupName": "a_b"}).code == SUCCESS
    fields = {"topic": "%RETRY%a_b", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    assert peer.call(17, fields).code == SUCCESS
    assert peer.call(215, {"topic": "b"}).code == SUCCESS
    assert mq.broker.topics.find("b") is None
    assert mq.broker.topics.find("%RETRY%a_b") is not None


def test_the_options_show_the_address_that_was_found(mq: ferromq.Embedded, peer: Peer) -> None:
    """As clients reach it, if the options leave it open."""
    host, _, port = mq.broker.address.rpartition(":")
    lines = peer.call(26).body.decode().splitlines()
    assert (f"brokerIP1={host}" in lines, f"listenPort={port}" in lines) == (True, True)


@pytest.mark.parametrize(
    "options",
    [
        {"permission": 4, "retention_age": "sometimes"},
        {"permission": 99, "retention_age": "7h"},
        {"permission": 4, "flush": "never"},
    ],
)
def test_options_change_together_or_not_at_all(mq: ferromq.Embedded, options: dict[str, Any]) -> None:
    """Those of the store and those of the broker."""
    before = mq.broker.config.membership, mq.broker.store.options()
    with pytest.raises(ferromq.ConfigError):
        mq.broker.configure(**options)
    assert (mq.broker.config.membership, mq.broker.store.options()) == before


def test_reading_is_forbidden_and_allowed_again(mq: ferromq.Embedded, peer: Peer) -> None:
    """The answer says how it is now; asking changes nothing; pulls are refused until it is allowed again."""
    fill(mq, "secret", 0)
    fields = {"group": "curious", "topic": "secret"}
    pull = {"consumerGroup": "curious", "topic": "secret", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
    pull |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*"}
    assert peer.call(11, pull).code == PULL_NOT_FOUND
    assert peer.call(353, {**fields, "readable": "false"}).json() == {**fields, "readable": False}
    assert peer.call(353, fields).json()["readable"] is False
    refused = peer.call(11, pull)
    assert (refused.code, refused.fields["forbiddenType"]) == (NO_PERMISSION, "5")
    assert peer.call(353, {**fields, "readable": "true"}).json()["readable"] is True
    assert peer.call(11, pull).code == PULL_NOT_FOUND


def test_the_broker_reports_runtime_information(peer: Peer) -> None:
    """Under every name that RocketMQ's tools read."""
    table = peer.call(28).json()["table"]
    wanted = {
        *("bootTimestamp", "runtime", "brokerActive", "brokerVersionDesc", "msgPutTotalTodayNow", "putTps"),
        *("getTransferredTps", "getFoundTps", "commitLogMinOffset", "commitLogMaxOffset", "dispatchBehindBytes"),
        *("pageCacheLockTimeMills", "earliestMessageTimeStamp", "commitLogDiskRatio", "consumeQueueDiskRatio"),
        *("sendThreadPoolQueueSize", "pullThreadPoolQueueHeadWaitTimeMills", "timerReadBehind", "commitLogDirCapacity"),
    }
    assert wanted <= table.keys()
    assert int(table["commitLogMaxOffset"]) >= int(table["commitLogMinOffset"])
    assert len(table["putTps"].split(" ")) == 3
    assert all(float(number) >= 0 for number in table["putTps"].split(" "))


def test_traffic_is_counted_by_topic_and_group(mq: ferromq.Embedded, peer: Peer) -> None:
    """In messages and bytes; all topics together under the cluster's name; an unused topic has no statistics."""
    fill(mq, "counted", 0, queues=1)
    today = int(peer.call(28).json()["table"]["msgPutTotalTodayNow"])
    sent = {"a": "P", "b": "counted", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
    for _ in range(5):
        assert peer.call(310, sent, b"12345678").code == SUCCESS
    put = peer.call(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "counted"}).json()
    assert [put[window]["sum"] for window in ("statsMinute", "statsHour", "statsDay")] == [5, 5, 5]
    assert put["statsMinute"]["tps"] > 0
    sizes = peer.call(315, {"statsName": "TOPIC_PUT_SIZE", "statsKey": "counted"}).json()
    assert sizes["statsMinute"]["sum"] >= 5 * 8
    whole = peer.call(315, {"statsName": "BROKER_PUT_NUMS", "statsKey": "DefaultCluster"}).json()
    assert whole["statsDay"]["sum"] >= 5
    put_tps = re.search(rb'"topicPutTps":([0-9.e-]+)', peer.call(202, {"topic": "counted"}).body)
    assert put_tps is not None
    assert float(put_tps[1]) > 0
    table = peer.call(28).json()["table"]
    assert int(table["msgPutTotalTodayNow"]) == today + 5
    assert float(table["putTps"].split(" ")[0]) > 0
    missing = peer.call(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "silent"})
    assert (missing.code, "silent" in (missing.remark or "")) == (SYSTEM_ERROR, True)


def test_system_topics_and_unsupported_requests_are_named(peer: Peer) -> None:
    """A code of a later version is refused on a connection that stays open."""
    assert {"TBW102", "broker-a", "SCHEDULE_TOPIC_XXXX"} <= set(peer.call(305).json()["topicList"])
    refused = peer.call(323, {"topic": "t", "msgId": "0" * 32})
    assert (refused.code, "TRANS_CHECK_MAX_TIME_TOPIC" in (refused.remark or "")) == (SYSTEM_ERROR, True)
    for code in (301, 302):
        assert peer.call(code).code == NOT_SUPPORTED
    for code in (306, 316, 329):
        assert peer.call(code).code == SUCCESS
    # How far it is depends on how long the broker runs.
    assert peer.call(45).json().keys() == {"dataVersion", "offsetTable"}


def test_options_are_shown_and_changed(tmp_path: Path) -> None:
    """At once, for every client; an option that cannot change is named, and nothing changes."""
    with ferromq.embedded(str(tmp_path)) as mq, Peer(mq.remoting) as peer:
        shown = peer.call(26)
        lines = dict(line.split("=", 1) for line in shown.body.decode().splitlines())
        assert (lines["autoCreateTopicEnable"], lines["brokerName"], lines["auto_create_topics"]) == (
            *("true", "broker-a", "true"),
        )
        wanted = b"autoCreateTopicEnable=false\nbrokerName=other\n"
        refused = peer.call(25, body=wanted)
        assert (refused.code, "brokerName" in (refused.remark or "")) == (INVALID, True)
        assert mq.broker.config.auto_create_topics
        assert peer.call(25, body=b"autoCreateTopicEnable=false\nfileReservedTime=7").code == SUCCESS
        assert (
            json.loads(peer.call(26).fields["version"])["counter"] == json.loads(shown.fields["version"])["counter"] + 1
        )
        assert mq.broker.store.options()["retention_age"].total_seconds() == 7 * 3600
        assert peer.call(351, {"topic": "TBW102"}).code == TOPIC_NOT_EXIST
        with mq.producer() as producer, pytest.raises(ferromq.TopicNotFound):
            producer.send("never-made", b"x")
