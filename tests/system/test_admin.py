"""The administrator: topics are made and listed, messages found by key and by id."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

import ferromq

Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker."""
    with ferromq.embedded() as embedded:
        yield embedded


def test_a_created_topic_is_listed_and_has_its_queues(mq: ferromq.Embedded) -> None:
    """At once; and its queues are those a producer writes to."""
    with mq.admin() as admin, mq.producer() as producer:
        admin.create_topic("three-queues", queues=3)
        assert "three-queues" in admin.topics()
        receipts = [producer.send("three-queues", b"x") for _ in range(9)]
        assert {receipt.queue_id for receipt in receipts} == {0, 1, 2}
        with pytest.raises(ferromq.IllegalName):
            admin.create_topic("two words")
        with pytest.raises(ValueError, match="queues must be at least 1"):
            admin.create_topic("none", queues=0)


def test_messages_are_found_by_each_of_their_keys(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """The newest first, as many as asked for, of this topic only."""
    with mq.admin() as admin, mq.producer() as producer:
        for number in range(5):
            producer.send("by-key", b"%d" % number, keys=["all", f"only-{number}"])
        producer.send("other", b"other", keys="all")
        assert eventually(lambda: len(admin.query_by_key("by-key", "all")) == 5)
        assert {message.body for message in admin.query_by_key("by-key", "all")} == {b"0", b"1", b"2", b"3", b"4"}
        assert len(admin.query_by_key("by-key", "all", max_messages=2)) == 2
        (found,) = admin.query_by_key("by-key", "only-3")
        assert (found.body, found.keys) == (b"3", ("all", "only-3"))
        assert admin.query_by_key("by-key", "nobody") == []
        producer.send("by-key", b"Aa", keys="Aa")
        assert eventually(lambda: len(admin.query_by_key("by-key", "Aa")) == 1)
        assert admin.query_by_key("by-key", "BB") == []  # the same hash in Java, and so in the index


def test_a_message_is_found_by_its_ids(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """By the one its receipt has and by the one that names its place; unknown ids are None."""
    with mq.admin() as admin, mq.producer() as producer:
        receipt = producer.send("by-id", b"hello", tag="new")
        assert eventually(lambda: admin.query_by_id("by-id", receipt.message_id) is not None)
        message = admin.query_by_id("by-id", receipt.message_id)
        assert message is not None
        assert (message.body, message.tag, message.queue_offset) == (b"hello", "new", receipt.queue_offset)
        by_place = admin.query_by_id("by-id", message.offset_message_id)
        assert by_place is not None
        assert by_place.message_id == receipt.message_id
        for unknown in ("0" * 34, "0" * 32, "F" * 32, "no id"):
            assert admin.query_by_id("by-id", unknown) is None


def test_queries_of_an_unknown_topic_fail(mq: ferromq.Embedded) -> None:
    """The error names the topic."""
    with mq.admin() as admin, pytest.raises(ferromq.TopicNotFound, match="nowhere"):
        admin.query_by_key("nowhere", "k")


def test_the_error_at_a_wrong_port_names_the_right_kind(mq: ferromq.Embedded) -> None:
    """Clients at a remoting port and administrators at a gRPC port are told which one they want."""
    for port in (mq.namesrv, mq.broker.address):
        with ferromq.Producer(port, attempts=1) as producer, pytest.raises(ferromq.ConnectionFailed, match="8081"):
            producer.send("orders", b"x")
    with ferromq.Admin(mq.endpoint) as admin, pytest.raises(ferromq.ConnectionFailed, match="9876"):
        admin.topics()
    for port in (mq.namesrv, mq.broker.address):
        with ferromq.Admin(endpoint=port) as admin, pytest.raises(ferromq.ConnectionFailed, match="8081"):
            admin.topics()


def test_asking_for_no_message_is_refused(mq: ferromq.Embedded) -> None:
    """Before any request."""
    with mq.admin() as admin, pytest.raises(ValueError, match="at least 1"):
        admin.query_by_key("orders", "k", max_messages=0)


@pytest.mark.parametrize(
    ("remark", "error"),
    [
        ("the topic name has illegal characters", ferromq.IllegalName),
        ("perm is 9, which is no permission", ferromq.RequestError),
    ],
)
def test_an_odd_parameter_is_an_illegal_name_only_if_it_is_one(
    mq: ferromq.Embedded, remark: str, error: type[ferromq.RequestError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers have one code for both."""
    with mq.admin() as admin:
        answer = SimpleNamespace(call=lambda *_, **__: (29, remark, {}, b""), close=lambda: None)
        monkeypatch.setattr(admin._calls, "_client", answer)
        with pytest.raises(ferromq.RequestError, match=remark) as caught:
            admin.topics()
        assert type(caught.value) is error


def test_an_absent_name_server_is_skipped(mq: ferromq.Embedded) -> None:
    """The next one is asked; if none answers, the error says so."""
    with ferromq.Admin(f"127.0.0.1:1;{mq.namesrv}") as admin:
        assert admin.topics()
    with ferromq.Admin("127.0.0.1:1", timeout=1) as admin, pytest.raises(ferromq.ConnectionFailed):
        admin.topics()


def test_a_group_is_created_where_first_use_creates_none() -> None:
    """The error of a missing group names the call that creates it, and the call does."""
    with (
        ferromq.embedded(auto_create_groups=False) as mq,
        mq.producer() as producer,
        mq.admin() as admin,
        mq.consumer("billing", "orders") as consumer,
    ):
        producer.send("orders", b"x")
        with pytest.raises(ferromq.GroupNotFound, match=r"create_group\('billing'\)"):
            consumer.receive(wait=0.1)
        admin.create_group("billing")
        assert [message.body for message in consumer.receive(wait=5)] == [b"x"]
        assert mq.broker.groups.get("billing") is not None
        with pytest.raises(ferromq.IllegalName):
            admin.create_group("two words")
        admin.create_group("patient", fifo=True, retries=3)
        made = mq.broker.groups.get("patient")
        assert made is not None
        assert (made.fifo, made.max_attempts) == (True, 4)


def test_a_missing_topic_says_how_to_create_it(mq: ferromq.Embedded) -> None:
    """Also if the name server answers."""
    with mq.admin() as admin, pytest.raises(ferromq.TopicNotFound, match=r"create_topic\('nowhere'\)"):
        admin.query_by_key("nowhere", "k")
