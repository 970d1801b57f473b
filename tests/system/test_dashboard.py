"""The dashboard over HTTP: each page and action on a broker of ferromq."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from dashboards import Visitor, served
from dispatching import dispatched

import ferromq
from ferromq.admin import waiting
from ferromq.dashboard import live
from ferromq.dashboard.live import MOST_STREAMS

PATIENCE = 10.0
SCRIPT = "<script>alert('x')</script>"
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Yield a broker for the whole file; each test has topics and groups of its own."""
    with ferromq.embedded() as embedded:
        yield embedded


@pytest.fixture(scope="module")
def visitor(mq: ferromq.Embedded) -> Iterator[Visitor]:
    """Yield a visitor of a dashboard that takes changes."""
    with served(mq.namesrv, allow_changes=True) as dashboard, Visitor(dashboard) as visitor:
        yield visitor


@pytest.fixture
def admin(mq: ferromq.Embedded) -> Iterator[ferromq.Admin]:
    """Yield an administrator, which sees what the pages changed."""
    with ferromq.Admin(mq.namesrv) as admin:
        yield admin


def test_the_first_page_has_brokers_rates_and_groups_that_are_behind(mq: ferromq.Embedded, visitor: Visitor) -> None:
    """And links to the page of the broker."""
    with mq.producer() as producer:
        producer.send("behind", b"one")
    with mq.consumer("late", "behind") as consumer:
        consumer.receive(wait=PATIENCE)
    page = visitor.page("/")
    assert all(text in page for text in ("broker-a", "DefaultCluster", mq.remoting, "messages stored per second"))
    assert mq.remoting in visitor.page("/broker", address=mq.remoting)
    assert visitor.get("/broker", params={"address": "nowhere:1"}).status_code == 404


def test_topics_are_made_altered_and_deleted(visitor: Visitor, admin: ferromq.Admin) -> None:
    """A deletion needs the name once more."""
    page = visitor.done("/topic/new", name="orders", queues="2", type="fifo")
    assert "created topic orders" in page
    assert "created topic" not in visitor.page("/topic", name="orders"), "it is told once"
    assert 'href="/topic?name=orders"' in visitor.page("/topics", filter="orders")
    assert "Alter orders" in visitor.page("/topic/alter", name="orders")
    visitor.done("/topic/alter", name="orders", queues="3", permission="r")
    (broker,) = admin.describe_topic("orders").brokers
    assert (broker.write_queues, broker.permission, broker.message_type) == (3, "r", "FIFO")
    assert "Delete orders?" in visitor.page("/topic/delete", name="orders")
    assert visitor.act("/topic/delete", name="orders", confirm="order").status_code == 400
    assert "orders" in admin.topics()
    assert "deleted topic orders" in visitor.done("/topic/delete", name="orders", confirm="orders")
    assert "orders" not in admin.topics()
    assert visitor.get("/topic", params={"name": "orders"}).status_code == 404


def test_a_wrong_field_is_named(visitor: Visitor) -> None:
    """With what may be there."""
    for fields, told in (
        ({"name": "a", "queues": "many"}, "queues is &#39;many&#39;"),
        ({"name": "a", "queues": "0"}, "from 1"),
        ({"name": "a", "type": "odd"}, "it may be normal, fifo"),
        ({"queues": "1"}, "the field name is missing"),
        ({"name": "a b", "queues": "1"}, "a b"),
    ):
        answer = visitor.act("/topic/new", **fields)
        assert (answer.status_code, told in answer.text) == (400, True), answer.text


def test_a_place_needs_its_queue(visitor: Visitor) -> None:
    """An offset alone would find the newest messages, as if it were not there."""
    for field in ("offset", "broker"):
        answer = visitor.get("/messages", params={"topic": "orders", field: "3"})
        assert (answer.status_code, "fill in the queue" in answer.text) == (400, True)


def test_groups_are_made_altered_moved_skipped_and_deleted(
    mq: ferromq.Embedded, visitor: Visitor, admin: ferromq.Admin, eventually: Eventually
) -> None:
    """What a move would do is shown before it is done."""
    admin.create_topic("bills", 1)
    assert "created group billing" in visitor.done("/group/new", name="billing", fifo="no", retries="3", delays="1 2.5")
    assert "after 1, 2.5 s" in visitor.page("/group", name="billing")
    visitor.done("/group/alter", name="billing", fifo="", retries="5")
    assert admin.describe_group("billing").retries == 5
    with mq.producer() as producer, mq.consumer("billing", "bills") as consumer:
        for number in range(4):
            producer.send("bills", b"%d" % number)
        consumer.ack(consumer.receive_many(3, wait=PATIENCE))
        assert eventually(lambda: admin.lag("billing").messages == 1)
        assert "PYTHON" in visitor.page("/group", name="billing")
        assert "PYTHON" in visitor.page("/clients")
    assert 'href="/group?name=billing"' in visitor.page("/groups")
    place = {"name": "billing", "topic": "bills", "to": "offset", "offset": "1", "queue": "0"}
    plan = visitor.page("/group/reset", **place)
    assert ">Move the group<" in plan
    assert admin.lag("billing").messages == 1, "a plan moves nothing"
    assert "moved group billing in 1 queues of bills" in visitor.done("/group/reset", **place)
    assert admin.lag("billing").messages == 3
    assert ">Skip the backlog<" in visitor.page("/group/skip", name="billing", topic="bills")
    assert "left out 3 messages" in visitor.done("/group/skip", name="billing", topic="bills")
    assert admin.lag("billing").messages == 0
    visitor.done("/group/delete", name="billing", confirm="billing")
    assert "billing" not in admin.groups()


def test_a_move_needs_its_place(visitor: Visitor, admin: ferromq.Admin) -> None:
    """An offset its queue, a time a time."""
    admin.create_topic("places", 1)
    admin.create_group("placed")
    for fields in ({"to": "offset", "offset": "1"}, {"to": "time"}, {"to": "time", "time": "noon"}, {"to": "there"}):
        answer = visitor.get("/group/reset", params={"name": "placed", "topic": "places", **fields})
        assert answer.status_code == 400, answer.text


def test_messages_are_found_by_each_field(
    mq: ferromq.Embedded, visitor: Visitor, admin: ferromq.Admin, eventually: Eventually
) -> None:
    """By id, key, place and time; without one the newest are shown."""
    admin.create_topic("found", 1)
    with mq.producer() as producer:
        receipts = [producer.send("found", b"body-%d" % number, keys=f"key-{number}") for number in range(3)]
    assert eventually(lambda: len(admin.query_by_key("found", "key-2")) >= 1)
    assert all(f"body-{number}" in visitor.page("/messages", topic="found") for number in range(3))
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
    for fields, bodies in (
        ({"id": receipts[1].message_id}, ["body-1"]),
        ({"key": "key-2"}, ["body-2"]),
        ({"queue": "0", "offset": "1"}, ["body-1", "body-2"]),
        ({"since": "2020-01-01T00:00"}, ["body-0", "body-1", "body-2"]),
        ({"since": tomorrow}, []),
        ({"id": "unknown"}, []),
    ):
        page = visitor.page("/messages", topic="found", **fields)
        assert re.findall(r"body-\d", page) == bodies
    page = visitor.page("/message", topic="found", id=receipts[0].message_id)
    assert "body-0" in page
    assert "No group reads the topic." in page
    missing = visitor.get("/message", params={"topic": "found", "queue": "0", "offset": "99"})
    assert missing.status_code == 404


def test_what_producers_write_is_escaped(mq: ferromq.Embedded, visitor: Visitor) -> None:
    """A script in body, key, tag and property is text on each page that shows it."""
    with mq.producer() as producer:
        receipt = producer.send(
            "scripts",
            SCRIPT.encode(),
            keys=SCRIPT.replace(" ", ""),
            tag=SCRIPT,
            properties={"p": SCRIPT},
        )
    dispatched(mq)
    place = {"topic": "scripts", "queue": str(receipt.queue_id), "offset": str(receipt.queue_offset)}
    for page in (
        visitor.page("/messages", topic="scripts"),
        visitor.page("/message", **place),
        visitor.get("/topic", params={"name": SCRIPT}).text,
        visitor.get("/group", params={"name": SCRIPT}).text,
        visitor.page("/topics", filter=SCRIPT),
        visitor.get(f"/{SCRIPT}").text,
    ):
        assert "alert" in page
        assert "<script>alert" not in page


def test_dead_letters_are_shown_and_sent_again(
    mq: ferromq.Embedded, visitor: Visitor, admin: ferromq.Admin, eventually: Eventually
) -> None:
    """Only those that were chosen; each is asked for before."""
    with mq.producer() as producer, mq.consumer("dying", "letters") as consumer:
        for number in range(2):
            producer.send("letters", b"letter-%d" % number)
            (message,) = consumer.receive(wait=PATIENCE)
            consumer.forward_to_dead_letter(message, SCRIPT)
    assert eventually(lambda: len(list(admin.dead_letters("dying"))) >= 2)
    assert 'href="/dead-letters/group?group=dying"' in visitor.page("/dead-letters")
    page = visitor.page("/dead-letters/group", group="dying")
    assert "<script>alert" not in page
    names = re.findall(r'name="letter" value="([^"]+)"', page)
    assert len(names) == 2
    assert "Send 1 dead letter again?" in visitor.page("/dead-letters/resend", group="dying", letter=names[0])
    said = visitor.done("/dead-letters/resend", group="dying", letter=names[0])
    assert "sent 1 of 1 dead letters again" in said
    with mq.consumer("again", "letters") as consumer:
        bodies = [message.body for message in consumer.receive_many(3, wait=PATIENCE)]
    assert sorted(bodies)[:2] == [b"letter-0", b"letter-1"]
    assert bodies.count(b"letter-1") == 2, "the newest one is first"
    identity = next(each.message_id for each in admin.dead_letters("dying"))
    told = "An earlier copy is a dead letter, queue 0, offset 1, on "
    assert eventually(lambda: told in visitor.page("/message", topic="letters", id=identity))
    for wrong in ({}, {"letter": "x"}, {"letter": "a|b|c"}, {"letter": f"{mq.remoting}|0|99"}):
        assert visitor.act("/dead-letters/resend", group="dying", **wrong).status_code in {400, 404}


def test_messages_that_wait_are_shown(
    mq: ferromq.Embedded, visitor: Visitor, admin: ferromq.Admin, eventually: Eventually
) -> None:
    """Transactions until they end, delayed messages until they are due."""
    admin.create_topic("payments", 1, message_type="TRANSACTION")
    admin.create_topic("reminders", 1, message_type="DELAY")
    with (
        mq.producer("payments", checker=lambda _message: ferromq.Resolution.UNKNOWN) as payments,
        mq.producer() as producer,
    ):
        transaction = payments.transaction()
        transaction.send("payments", b"half-paid")
        dispatched(mq)
        page = visitor.page("/transactions")
        assert "half-paid" in page
        assert 'href="/topic?name=payments"' in page
        transaction.commit()
        dispatched(mq)
        assert "half-paid" not in visitor.page("/transactions")
        kept = producer.send("reminders", b"in an hour", delay=timedelta(hours=1))
        recalled = producer.send("reminders", b"recalled", delay=timedelta(minutes=50))
        producer.recall(recalled)
    assert eventually(lambda: admin.delayed_messages().topics.get("reminders") == 1)
    page = visitor.page("/delayed")
    assert kept.message_id in page
    assert recalled.message_id not in page


def test_large_half_messages_are_bounded(
    mq: ferromq.Embedded, admin: ferromq.Admin, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """The newest ones come, and the result tells that there are more."""
    monkeypatch.setattr(waiting, "_MOST_BYTES", 2_500)
    admin.create_topic("loans", 1, message_type="TRANSACTION")
    with mq.producer("loans", checker=lambda _message: ferromq.Resolution.UNKNOWN) as producer:
        transactions = [producer.transaction() for _ in range(3)]
        for number, transaction in enumerate(transactions):
            transaction.send("loans", bytes([number]) * 1_000)
        assert eventually(lambda: not admin.waiting_transactions().is_complete)  # queues are behind the log
        found = admin.waiting_transactions()
        assert {half.message.body[0] for half in found.messages} == {1, 2}
        for transaction in transactions:
            transaction.rollback()


def test_options_are_shown_and_changed(mq: ferromq.Embedded, visitor: Visitor, admin: ferromq.Admin) -> None:
    """Of a broker and of all name servers; a refusal is told."""
    assert mq.remoting in visitor.page("/configuration")
    page = visitor.page("/configuration", server=mq.remoting, filter="auto create")
    assert "autoCreateTopicEnable" in page
    change = {"server": mq.remoting, "option": "autoCreateTopicEnable"}
    assert "Change autoCreateTopicEnable" in visitor.page("/configuration/change", **change)
    visitor.done("/configuration/change", **change, value="false")
    assert admin.broker_config(mq.remoting)["autoCreateTopicEnable"] == "false"
    visitor.done("/configuration/change", **change, value="true")
    assert visitor.act("/configuration/change", server=mq.remoting, option="brokerName", value="b").status_code == 502
    assert "listenPort" in visitor.page("/configuration", server="name servers")
    missing = visitor.get("/configuration/change", params={"server": mq.remoting, "option": "noSuch"})
    assert missing.status_code == 404


def test_a_long_list_comes_in_pages(mq: ferromq.Embedded, visitor: Visitor, admin: ferromq.Admin) -> None:
    """Filtered and cut by the server."""
    for number in range(27):
        admin.create_topic(f"many-{number:02}", 1)
    first, second = visitor.page("/topics", filter="many"), visitor.page("/topics", filter="many", page="2")
    assert ("page 1 of 2" in first, first.count("/topic?name=many-")) == (True, 25)
    assert second.count("/topic?name=many-") == 2
    assert "page 2 of 2" in visitor.page("/topics", filter="many", page="99")
    assert "No topic has these words" in visitor.page("/topics", filter="no such words")


def test_a_live_page_sends_samples(mq: ferromq.Embedded, visitor: Visitor) -> None:
    """The page first, then what changed, with the figures of charts."""
    samples = visitor.samples("/")
    first = next(samples)
    # A stream may get the last sample again.
    second = next(sample for sample in samples if sample["time"] != first["time"])
    assert "broker-a" in first["html"]
    assert "token" not in first["html"]
    assert first["figures"].keys() == {"stored", "handed_out", "lag"}
    assert first["time"] < second["time"]
    samples.close()
    again = visitor.samples("/")
    assert len(next(again)["history"]) >= 1, "a page that is opened later has the figures before"
    again.close()


def test_streams_are_bounded_and_end_with_the_dashboard(mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is refused; a dashboard that closes ends them all."""
    monkeypatch.setattr(live, "TICK_SECONDS", 60)
    with served(mq.namesrv) as dashboard, Visitor(dashboard) as visitor:
        streams = [visitor.samples("/") for _ in range(MOST_STREAMS)]
        for stream in streams:
            next(stream)
        refused = visitor.get("/", headers={"accept": "text/event-stream"})
        assert (refused.status_code, "close one" in refused.text) == (503, True)
        assert visitor.get("/").status_code == 200
        dashboard.close()
        for stream in streams:
            assert len(list(stream)) <= 1, "an event that was on its way, and the end"


def test_a_malformed_query_is_refused(visitor: Visitor) -> None:
    """Bytes that are no text, too many fields, a field that is too long."""
    assert visitor.get("/topic", params={"name": "a&b=c"}).status_code in {400, 404}
    assert visitor.get("/topic?name=%ff").status_code == 400
    assert visitor.get("/topic?" + "a=1&" * 400).status_code == 400
    assert visitor.get("/topic", params={"name": "x" * 5000}).status_code == 400
