"""A broker's topics and groups, and their files."""

import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferromq.broker.administration.topics_and_groups import TopicAndGroupChanges, parse_changes
from ferromq.broker.cluster.routes import accepted_types, endpoints, queue_permissions
from ferromq.broker.metadata.groups import GroupConfig, GroupTable
from ferromq.broker.metadata.topics import RegistrationWait, TopicConfig, TopicTable
from ferromq.config.broker import BrokerConfig
from ferromq.errors import CorruptStore, IllegalName, RequestError
from ferromq.files import atomic
from ferromq.protocol import java_json
from ferromq.protocol.retry_policy import Customized
from ferromq.protocol.route import DataVersion, Permission, QueueData

NOW = 1_700_000_000_000


def topics(directory: Path, heard: list[Any] | None = None, **options: Any) -> TopicTable:
    """Return the topics of the broker in *directory*."""
    told = [] if heard is None else heard
    config = BrokerConfig(**options)
    return TopicTable(
        lambda: config, directory, lambda: NOW, lambda name, topic: told.append(topic or name), lambda *_: None
    )


def groups(directory: Path, **options: Any) -> GroupTable:
    """Return the groups of the broker in *directory*."""
    config = BrokerConfig(**options)
    return GroupTable(lambda: config, directory, lambda: NOW, lambda *_: None)


def saved(directory: Path, name: str) -> Any:
    """Return a file as it lies on disk."""
    return json.loads((directory / "config" / name).read_text())


def test_a_topic_is_created_on_first_use(tmp_path: Path) -> None:
    """With 8 queues; the file has it before the hot path; the second use finds it."""
    heard: list[TopicConfig] = []
    table = topics(tmp_path, heard)
    before, _ = table.snapshot()
    created = table.ensure("orders", "peer")
    assert created == TopicConfig("orders", 8, 8)
    assert table.ensure("orders", "peer") is created
    assert heard == [created]
    content = saved(tmp_path, "topics.json")
    assert content["topicConfigTable"]["orders"] == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    }
    assert content["dataVersion"]["counter"] == before.counter + 1


def test_topics_survive_a_restart(tmp_path: Path) -> None:
    """With everything Java's file has of them."""
    table = topics(tmp_path)
    table.put(TopicConfig("fifo", 2, 3, Permission.READ, order=True), {"message.type": "FIFO"}, "peer")
    again = topics(tmp_path).get("fifo")
    assert again == TopicConfig("fifo", 2, 3, Permission.READ, order=True, attributes={"message.type": "FIFO"})
    assert again.message_type == "FIFO"


def test_a_deleted_topic_is_gone_for_good(tmp_path: Path) -> None:
    """From the file before the hot path; other topics stay, and system topics cannot be deleted."""
    heard: list[Any] = []
    table = topics(tmp_path, heard)
    kept, gone = table.ensure("kept", "peer"), table.ensure("gone", "peer")
    assert table.delete("gone", "peer")
    assert not table.delete("gone", "peer")
    assert heard == [kept, gone, "gone"]
    assert "gone" not in saved(tmp_path, "topics.json")["topicConfigTable"]
    assert topics(tmp_path).all() == [kept]
    with pytest.raises(RequestError, match="cannot be deleted"):
        table.delete("SELF_TEST_TOPIC", "peer")


def test_off_means_off(tmp_path: Path) -> None:
    """Without auto-creation nothing is made, and the topic that tells clients otherwise is not registered."""
    topics(tmp_path).ensure("before", "peer")
    table = topics(tmp_path, auto_create_topics=False)
    assert table.ensure("orders", "peer") is None
    assert table.ensure("before", "peer") is not None
    _, everything = table.snapshot()
    assert "TBW102" not in everything
    assert "orders" not in everything


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a", "rmq_sys_x"])
def test_system_topics_are_not_for_clients(tmp_path: Path, name: str) -> None:
    """They are neither found, nor created, nor changed."""
    table = topics(tmp_path)
    assert table.get(name) is None
    assert table.ensure(name, "peer") is None
    with pytest.raises(RequestError, match=name):
        table.put(TopicConfig(name, 1, 1), {}, "peer")
    assert name not in [topic.name for topic in table.all()]


@pytest.mark.parametrize("name", ["RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC", "rmq_sys_TRACE_DATA_eu"])
def test_a_system_topic_that_clients_write_is_made_for_the_first_of_them(tmp_path: Path, name: str) -> None:
    """As other topics over remoting: after a default topic, and only where topics are created on first use."""
    table = topics(tmp_path)
    assert table.ensure_to_send(name, "TBW102", 4, 0, "peer") == TopicConfig(name, 4, 4)
    assert table.push_again(name)
    assert table.get(name) is None
    off = topics(tmp_path / "off", auto_create_topics=False)
    assert off.ensure_to_send(name, "DefaultCluster", 4, 0, "peer") is None


def test_a_send_that_makes_a_topic_waits_for_the_name_servers(tmp_path: Path) -> None:
    """A consumer that starts once the send is answered finds a route."""
    announced: list[tuple[list[str], RegistrationWait]] = []
    config = BrokerConfig()
    table = TopicTable(
        lambda: config,
        tmp_path,
        lambda: NOW,
        lambda *_: None,
        lambda names, wait: announced.append((list(names), wait)),
    )
    table.ensure_to_send("orders", "TBW102", 4, 0, "peer")
    table.ensure_to_send("orders", "TBW102", 4, 0, "peer")
    assert announced == [(["orders"], RegistrationWait.REGISTERED)]


@pytest.mark.parametrize(
    "name", ["rmq_sys_REVIVE_LOG_other", "rmq_sys_SYNC_BROKER_MEMBER_b", "rmq_sys_x", "TRANS_CHECK_MAX_TIME_TOPIC"]
)
def test_no_client_makes_another_topic_of_the_system(tmp_path: Path, name: str) -> None:
    """Administrators could not delete it."""
    assert topics(tmp_path).ensure_to_send(name, "TBW102", 4, 0, "peer") is None


def test_an_illegal_name_creates_nothing(tmp_path: Path) -> None:
    """Not even a file."""
    table = topics(tmp_path)
    with pytest.raises(IllegalName):
        table.ensure("with space", "peer")
    with pytest.raises(IllegalName):
        groups(tmp_path).ensure("g" * 121, "peer")
    assert not (tmp_path / "config").exists()


@pytest.mark.parametrize(
    ("topic", "changes", "named"),
    [
        (TopicConfig("t", -1, 1), {}, "readQueueNums"),
        (TopicConfig("t", 1, 70_000), {}, "65536"),
        (TopicConfig("t", 1, 1, Permission(8)), {}, "perm"),
        (TopicConfig("t", 1, 1, filter_type="SQL"), {}, "topicFilterType"),
        (TopicConfig("t", 1, 1), {"colour": "red"}, "colour"),
        (TopicConfig("t", 1, 1), {"message.type": "LETTER"}, "LETTER"),
        (TopicConfig("t", 1, 1), {"queue.type": "BatchCQ"}, "BatchCQ"),
    ],
)
def test_an_invalid_topic_is_refused(
    tmp_path: Path, topic: TopicConfig, changes: dict[str, str | None], named: str
) -> None:
    """The error names the field and what it may be."""
    with pytest.raises(RequestError, match=named):
        topics(tmp_path).put(topic, changes, "peer")


def test_attributes_are_altered_not_replaced(tmp_path: Path) -> None:
    """Unmentioned ones stay, None removes."""
    table = topics(tmp_path)
    table.put(TopicConfig("t", 1, 1), {"message.type": "FIFO", "reserve.time": "5"}, "peer")
    changed = table.put(TopicConfig("t", 2, 2), {"reserve.time": None}, "peer")
    assert changed.attributes == {"message.type": "FIFO"}
    assert changed.read_queues == 2


def test_changes_at_the_same_time_keep_each_others_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second builds on the first, even if it began earlier."""
    table, crowd = topics(tmp_path), groups(tmp_path)
    table.put(TopicConfig("t", 1, 1), {}, "peer")
    crowd.put(GroupConfig("g"), {}, "peer")
    write = atomic.replace_file
    for first, second in (
        (lambda: table.put(TopicConfig("t", 1, 1), {"message.type": "FIFO"}, "a"), table.put),
        (lambda: crowd.put(GroupConfig("g"), {"priority.factor": "1"}, "a"), crowd.put),
    ):
        other: Any = (
            (lambda: table.put(TopicConfig("t", 1, 1), {"reserve.time": "5"}, "b"))
            if second == table.put
            else (lambda: crowd.put(GroupConfig("g"), {"lite.sub.client.quota": "2"}, "b"))
        )
        thread = threading.Thread(target=other)

        def meanwhile(path: Path, content: bytes, thread: threading.Thread = thread) -> None:
            monkeypatch.setattr(atomic, "replace_file", write)
            thread.start()
            # Time to go wrong: it waits for the lock, or decides on the old table.
            thread.join(0.1)
            write(path, content)

        monkeypatch.setattr(atomic, "replace_file", meanwhile)
        first()
        thread.join()
    topic, group = topics(tmp_path).get("t"), groups(tmp_path).get("g")
    assert topic is not None
    assert group is not None
    assert topic.attributes == {"message.type": "FIFO", "reserve.time": "5"}
    assert group.attributes == {"priority.factor": "1", "lite.sub.client.quota": "2"}


def test_a_list_is_one_write_and_one_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or nothing at all if one is invalid; a later change encodes only its own entries."""
    writes: list[Path] = []
    announced: list[Any] = []
    write = atomic.replace_file
    monkeypatch.setattr(atomic, "replace_file", lambda path, content: (writes.append(path), write(path, content)))
    config = BrokerConfig()
    table = TopicTable(
        lambda: config,
        tmp_path,
        lambda: NOW,
        lambda *_: None,
        lambda names, content: announced.append((names, content)),
    )
    many = [TopicConfig(f"t{number}", 1, 1) for number in range(10_000)]
    with pytest.raises(IllegalName):
        table.put_all([(topic, {}) for topic in [*many, TopicConfig("two words", 1, 1)]], "peer")
    assert (writes, table.get("t0")) == ([], None)
    before = table.content.version
    table.put_all([(topic, {}) for topic in many], "peer")
    assert len(writes) == len(announced) == 1
    assert len(announced[0][0]) == len(many)
    assert table.content.version.counter == before.counter + 1
    encoded: list[Any] = []
    dumps = java_json.dumps
    monkeypatch.setattr(java_json, "dumps", lambda value: (encoded.append(value), dumps(value))[1])
    table.put(TopicConfig("t7", 2, 2), {}, "peer")
    assert [value["topicName"] for value in encoded if isinstance(value, dict) and "topicName" in value] == ["t7"]
    assert len(topics(tmp_path).all()) == len(many)


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.text(alphabet="abc%|_-09", min_size=1, max_size=6),
            st.integers(0, 9),
            st.sampled_from([{}, {"message.type": "FIFO"}, {"reserve.time": "7"}, {"message.type": "DELAY"}]),
        ),
        max_size=12,
    ),
    st.sets(st.integers(0, 11)),
)
def test_the_file_equals_the_table(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[tuple[str, int, dict[str, str | None]]],
    deleted: set[int],
) -> None:
    """After any changes, one by one; unchanged lines are reused from the previous write."""
    directory = tmp_path_factory.mktemp("tables")
    table = topics(directory)
    for number, (name, queues, attributes) in enumerate(changes):
        table.put(TopicConfig(name, queues, queues), attributes, "peer")
        if number in deleted:
            table.delete(name, "peer")
    again = topics(directory)
    assert again.content.entries == table.content.entries
    if changes:
        assert again.content.version == table.content.version


def test_pages_come_in_the_order_of_names(tmp_path: Path) -> None:
    """Each entry once; past the end there is nothing."""
    table = topics(tmp_path)
    table.put_all([(TopicConfig(name, 1, 1), {}) for name in ("b", "a", "c")], "peer")
    content = table.content
    names = sorted(content.entries)
    pages = [list(content.page(first, 4)) for first in range(0, len(names), 4)]
    assert [name for page in pages for name in page] == names
    assert content.page(len(names), 4) == {}


def test_a_masters_table_is_taken_over_whole(tmp_path: Path) -> None:
    """With its version; other topics are removed, this broker's own stay."""
    table, crowd = topics(tmp_path), groups(tmp_path)
    table.ensure("mine", "peer")
    crowd.ensure("mine", "peer")
    version = DataVersion(5, 77, 3)
    table.adopt({"theirs": TopicConfig("theirs", 2, 2)}, version, "master")
    crowd.adopt({"theirs": GroupConfig("theirs")}, {"theirs": {"t": 4}}, version, "master")
    again, others = topics(tmp_path), groups(tmp_path)
    assert ([topic.name for topic in again.all()], again.content.version) == (["theirs"], version)
    assert again.find("broker-a") is not None
    assert others.get("mine") is None
    assert others.get("theirs") is not None
    assert not others.is_readable("theirs", "t")


def test_permissions_of_a_group_are_kept_and_deleted_with_it(tmp_path: Path) -> None:
    """In RocketMQ's bits: 4 stands for reading; others are left alone."""
    table = groups(tmp_path)
    table.ensure("g", "peer")
    table.set_readable("g", "t", "peer", is_readable=False)
    table.set_readable("g", "u", "peer", is_readable=False)
    table.set_readable("g", "u", "peer", is_readable=True)
    assert saved(tmp_path, "subscriptionGroup.json")["forbiddenTable"] == {"g": {"t": 4}}
    assert not groups(tmp_path).is_readable("g", "t")
    assert groups(tmp_path).is_readable("g", "u")
    heard: list[tuple[str, list[str]]] = []
    told = GroupTable(BrokerConfig, tmp_path, lambda: NOW, lambda *_: None, lambda *said: heard.append(said))
    told.push_all()
    told.set_readable("g", "u", "peer", is_readable=False)
    told.set_readable("g", "u", "peer", is_readable=True)
    assert heard == [("g", ["t"]), ("g", ["t", "u"]), ("g", ["t"])]
    assert table.delete("g", "peer")
    assert not table.delete("g", "peer")
    again = groups(tmp_path)
    assert again.get("g") is None
    assert again.is_readable("g", "t")


def test_the_pattern_topic_follows_the_option(tmp_path: Path) -> None:
    """Without creation on first use, no topic announces it to clients."""
    config = BrokerConfig()
    table = TopicTable(lambda: config, tmp_path, lambda: NOW, lambda *_: None, lambda *_: None)
    assert table.find("TBW102") is not None
    config = BrokerConfig(auto_create_topics=False)
    table.configure("peer")
    assert table.find("TBW102") is None
    config = BrokerConfig(default_queues=3)
    table.configure("peer")
    pattern = table.find("TBW102")
    assert pattern is not None
    assert pattern.write_queues == 3


def test_the_old_file_is_kept_and_used(tmp_path: Path) -> None:
    """A file that cannot be read is replaced by its .bak; without one the broker does not start."""
    table = topics(tmp_path)
    table.ensure("first", "peer")
    table.ensure("second", "peer")
    file = tmp_path / "config" / "topics.json"
    file.write_text("")
    assert topics(tmp_path).get("first") is not None
    file.with_name("topics.json.bak").write_text("{")
    with pytest.raises(CorruptStore, match=r"topics\.json"):
        topics(tmp_path)


def test_a_java_brokers_files_are_opened(tmp_path: Path) -> None:
    """Topics, retries and order are taken over; unknown values are written back unchanged."""
    config = tmp_path / "config"
    config.mkdir()
    group = {
        "groupName": "g",
        "retryMaxTimes": 3,
        "consumeMessageOrderly": True,
        "attributes": {"x": "y"},
        "brokerId": 5,
    }
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2]}}
    (config / "subscriptionGroup.json").write_text(
        json.dumps(
            {
                "dataVersion": {"counter": 4, "timestamp": 5, "stateVersion": 0},
                "forbiddenTable": {"g": {"t": 1}},
                "subscriptionGroupTable": {"g": {**group, "groupRetryPolicy": policy}},
            }
        )
    )
    table = groups(tmp_path)
    found = table.get("g")
    assert found is not None
    assert (found.max_attempts, found.fifo, found.retry) == (4, True, Customized((1, 2)))
    table.ensure("new", "peer")
    content = saved(tmp_path, "subscriptionGroup.json")
    assert content["subscriptionGroupTable"]["g"].items() >= {**group, "groupRetryPolicy": policy}.items()
    assert content["forbiddenTable"] == {"g": {"t": 1}}
    # One for the groups every broker has, one for the new one.
    assert content["dataVersion"] == {"counter": 6, "timestamp": NOW, "stateVersion": 0}
    assert content["subscriptionGroupTable"]["new"]["consumeEnable"] is True


def test_a_new_group_reads_on_a_full_disk_and_is_written_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator's creation is refused until then, without a trace."""
    pushed: dict[str, Any] = {}
    config = BrokerConfig()
    table = GroupTable(lambda: config, tmp_path, lambda: NOW, pushed.__setitem__)
    table.put(GroupConfig("before"), {}, "peer")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "replace_file", full)
        assert table.ensure("reader", "peer") == GroupConfig("reader")
        assert table.ensure("reader", "peer") == GroupConfig("reader")
        with pytest.raises(OSError, match="No space"):
            table.put(GroupConfig("made"), {}, "peer")
    assert pushed["reader"] == GroupConfig("reader")
    assert "reader" not in saved(tmp_path, "subscriptionGroup.json")["subscriptionGroupTable"]
    assert {group.name for group in table.all()} >= {"before", "reader"}
    table.put(GroupConfig("later"), {}, "peer")
    again = groups(tmp_path)
    assert [again.get(name) is not None for name in ("before", "reader", "later", "made")] == [True, True, True, False]


def test_groups_are_created_where_allowed(tmp_path: Path) -> None:
    """Off means off here, too."""
    assert groups(tmp_path, auto_create_groups=False).ensure("g", "peer") is None
    assert groups(tmp_path).ensure("g", "peer") == GroupConfig("g")
    assert groups(tmp_path, auto_create_groups=False).ensure("g", "peer") is not None


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        (QueueData("a", 3, 2), [4, 4, 2]),
        (QueueData("a", 1, 2), [4, 3]),
        (QueueData("a", 2, 2, Permission.READ), [2, 2]),
        (QueueData("a", 2, 1, Permission.WRITE), [3]),
        (QueueData("a", 2, 1, Permission.NONE), [1, 1]),
        (QueueData("a", 0, 0), [1]),
    ],
)
def test_each_queue_has_its_permission(queue: QueueData, expected: list[int]) -> None:
    """Queue ids are those of the store: the first are both read and written."""
    assert queue_permissions(queue) == expected


@pytest.mark.parametrize(("address", "scheme"), [("10.0.0.1:8081", 1), ("[::1]:8081", 2), ("mq.example:8081", 3)])
def test_endpoints_say_what_kind_of_address_they_are(address: str, scheme: int) -> None:
    """Clients build their target from it."""
    found = endpoints(address)
    assert (found.scheme, found.addresses[0].port) == (scheme, 8081)


def test_an_unspecified_topic_takes_any_message() -> None:
    """Others take their own kind."""
    assert accepted_types("FIFO") == (2,)
    assert (accepted_types("LITE"), accepted_types("PRIORITY")) == ((5,), (6,))
    assert accepted_types("UNSPECIFIED") == accepted_types("MIXED") == (1, 2, 3, 4)


def test_changes_of_attributes_are_parsed() -> None:
    """RocketMQ's own notation."""
    assert parse_changes("+message.type=FIFO,-reserve.time") == {"message.type": "FIFO", "reserve.time": None}
    assert parse_changes("") == {}
    for wrong in ("message.type=FIFO", "+message.type", "-a=b", "+a=1,-a", "+"):
        with pytest.raises(Exception, match="attribute"):
            parse_changes(wrong)


BAD_TOPICS: dict[str, Any] = {
    "queues": {"readQueueNums": 1 << 40, "writeQueueNums": 1},
    "flag": {"topicSysFlag": -1},
    "rights": {"perm": -1},
    "list": [],
}
BAD_GROUPS: dict[str, Any] = {
    "retries": {"retryMaxTimes": 1 << 40},
    "queues": {"retryQueueNums": 1 << 40},
    "fewer": {"retryQueueNums": -1},
    "none": None,
    "nan": {"more": float("nan")},
}


@pytest.mark.parametrize(
    ("name", "key", "bad"),
    [
        ("topics.json", "topicConfigTable", BAD_TOPICS),
        ("subscriptionGroup.json", "subscriptionGroupTable", BAD_GROUPS),
    ],
)
def test_a_bad_entry_of_a_file_is_left_out_and_kept(
    tmp_path: Path, name: str, key: str, bad: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The broker starts with a log line; the file keeps it until an entry of that name is put."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / name).write_text(json.dumps({key: {"good": {}, **bad}}))
    table: Any = topics(tmp_path) if key == "topicConfigTable" else groups(tmp_path)
    table.push_all()
    assert table.content.entries.get("good") is not None
    assert not table.content.entries.keys() & bad.keys()
    assert all(any(repr(each) in text for text in caplog.messages) for each in bad)
    table.ensure("new", "peer")
    kept = saved(tmp_path, name)[key]
    assert {"good", "new"} <= kept.keys()
    assert repr({each: kept[each] for each in bad}) == repr(bad)
    first = next(iter(bad))
    table.ensure(first, "peer")
    again: Any = topics(tmp_path) if key == "topicConfigTable" else groups(tmp_path)
    assert again.content.entries.get(first) is not None


def test_an_entry_that_the_hot_path_refuses_is_not_served_and_stops_nothing(tmp_path: Path) -> None:
    """At a change and at the start: that entry is removed, all others are pushed."""
    pushed: list[Any] = []

    def push(name: str, topic: TopicConfig | None) -> None:
        if name == "odd" and topic is not None:
            raise OverflowError("out of range")
        pushed.append(topic or name)

    def table() -> TopicTable:
        return TopicTable(BrokerConfig, tmp_path, lambda: NOW, push, lambda *_: None)

    first = table()
    first.create(TopicConfig("odd", 1, 1), "peer")
    good = first.create(TopicConfig("zeal", 1, 1), "peer")
    assert pushed == ["odd", good]
    assert not first.push_again("odd")
    pushed.clear()
    table().push_all()
    assert "odd" in pushed
    assert good in pushed


def test_no_invalid_topic_is_created(tmp_path: Path) -> None:
    """Nothing reaches the file, which the next start reads."""
    heard: list[Any] = []
    table = topics(tmp_path, heard)
    for wrong in (TopicConfig("t", 1 << 40, 1), TopicConfig("t", 1, -1), TopicConfig("t", 1, 1, sys_flag=1 << 31)):
        with pytest.raises(RequestError, match="of t is"):
            table.create(wrong, "peer")
        with pytest.raises(RequestError, match="of t is"):
            table.put(wrong, {}, "peer")
    with pytest.raises(RequestError, match="topicSysFlag"):
        table.ensure_to_send("t", "TBW102", 4, -1, "peer")
    assert heard == []
    assert not (tmp_path / "config" / "topics.json").exists()


def test_a_table_tells_what_changed_since(tmp_path: Path) -> None:
    """For a while."""
    table = topics(tmp_path)
    begin = table.content
    table.create(TopicConfig("a", 1, 1), "test")
    middle = table.content
    table.put(TopicConfig("b", 1, 1), {}, "test")
    table.put(TopicConfig("b", 2, 2), {}, "test")
    table.delete("a", "test")
    assert table.content.since(begin) == ["a", "b"]
    assert table.content.since(middle) == ["b", "a"]
    assert table.content.since(table.content) == []
    for queues in range(1, 300):
        table.put(TopicConfig("b", queues, queues), {}, "test")
    assert table.content.since(middle) is None


def test_cleaning_spares_a_topic_that_is_created_meanwhile(tmp_path: Path) -> None:
    """It was in no table during the search, but is at the deletion."""
    table = topics(tmp_path)
    table.ensure("known", "peer")
    deleted: list[str] = []

    class Queues:
        """A store that is written to while it is cleaned."""

        def queues(self) -> Iterator[str]:
            """Return its topics; one is created on first use after it was checked."""
            yield from ("known", "unused", "fresh", "SELF_TEST_TOPIC")
            table.ensure("fresh", "peer")

        def delete_topic(self, name: str) -> int:
            """Note it."""
            deleted.append(name)
            return 1

        def clean_unused(self, keep: list[str]) -> list[str]:
            """Note all others."""
            deleted.extend({"known", "unused", "fresh", "SELF_TEST_TOPIC"} - {*keep})
            return deleted

    store: Any = Queues()
    request: Any = SimpleNamespace(peer="peer")
    assert TopicAndGroupChanges(store, table, groups(tmp_path)).clean_unused(request)[0] == 0
    assert deleted == ["unused"]


def test_a_disk_that_takes_no_change_keeps_no_topic_from_being_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its other files stay, the next topics are deleted, with a log line."""
    table, deleted = topics(tmp_path), list[str]()
    for name in ("t", "%RETRY%g_t"):
        table.put(TopicConfig(name, 1, 1), {}, "test")

    def fail(_topic: str) -> None:
        raise OSError(errno.ENOSPC, "a full disk that was ordered")

    store: Any = SimpleNamespace(
        committed_offsets=lambda topic: [f"{topic}@g"],
        queues=lambda: ["one", "two"],
        delete_topic=lambda name: deleted.append(name) or 1,
    )
    administration = TopicAndGroupChanges(store, table, groups(tmp_path), deleted=fail)
    request: Any = SimpleNamespace(peer="peer", fields={"topic": "t"})
    assert administration.delete_topic(request)[0] == 0
    assert administration.clean_unused(request)[0] == 0
    assert deleted == ["t", "%RETRY%g_t", "one", "two"]
    assert [name for name in deleted if f"topic={name}:" in caplog.text] == deleted
    assert "a full disk that was ordered" in caplog.text
