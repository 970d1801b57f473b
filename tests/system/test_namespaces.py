"""Clients with a namespace name topics and groups without it, and share nothing with other namespaces."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from dispatching import dispatched

import ferromq
from ferromq import Message, MessageView, Resolution, aio
from ferromq.telemetry import Operation

PATIENCE = 20.0


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker whose time is moved by hand."""
    with ferromq.embedded(clock=ferromq.Clock.manual()) as embedded:
        yield embedded


class InProcess:
    """Makes clients of a namespace that call the embedded broker without a socket."""

    def __init__(self, mq: ferromq.Embedded) -> None:
        self._mq = mq

    def __getattr__(self, kind: str) -> Any:
        return partial(getattr(self._mq, kind), namespace="shop")


@pytest.fixture(params=["over a socket", "embedded"])
def shop(mq: ferromq.Embedded, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield what makes the clients of a namespace."""
    with ferromq.connect(mq.endpoint, namespace="shop", timeout=PATIENCE) as connection:
        yield InProcess(mq) if request.param == "embedded" else connection


def bodies(messages: list[MessageView]) -> list[bytes]:
    """Return the bodies of messages."""
    return sorted(message.body for message in messages)


def names(mq: ferromq.Embedded) -> set[str]:
    """Return the topics of the broker that users made."""
    with ferromq.Admin(mq.namesrv) as admin:
        return {name for name in admin.topics() if "orders" in name or "billing" in name}


@pytest.mark.parametrize("way", ["send", "send twice", "send_all", "submit"])
def test_one_topic_in_two_namespaces_is_two_topics(mq: ferromq.Embedded, shop: Any, way: str) -> None:
    """Receipts and messages name it without the namespace; the broker knows the whole name."""
    with shop.producer() as ours, mq.producer(namespace="depot") as theirs, mq.producer() as plain:
        theirs.send("orders", b"depot")
        plain.send("orders", b"none")
        match way:
            case "send":
                receipts = [ours.send("orders", b"shop")]
            case "send twice":  # the second goes through the core, which was given the route
                receipts = [ours.send("orders", body) for body in (b"shop", b"shop 2")]
            case "send_all":
                receipts = list(ours.send_all("orders", [b"shop"]))
            case _:
                receipts = [ours.submit("orders", b"shop").result(PATIENCE)]
    assert [receipt.topic for receipt in receipts] == ["orders"] * len(receipts)
    assert names(mq) == {"orders", "shop%orders", "depot%orders"}
    with shop.consumer("billing", "orders") as consumer:
        messages = consumer.receive_many(len(receipts), wait=PATIENCE / 2)
        assert bodies(messages) == [b"shop", b"shop 2"][: len(receipts)]
        assert {message.topic for message in messages} == {"orders"}
        consumer.ack(messages)
        assert {queue.topic for queue in consumer.queues()} == {"orders"}
        progress = consumer.progress()
        assert (progress.group, progress.lag, {queue.topic for queue in progress.queues}) == ("billing", 0, {"orders"})


def test_several_topics_are_received_and_acknowledged_by_their_names(mq: ferromq.Embedded, shop: Any) -> None:
    """An acknowledgement names the topic of its message, whole."""
    with shop.producer() as producer, shop.consumer("billing", ["orders", "orders_b"]) as consumer:
        producer.send("orders", b"a")
        producer.send("orders_b", b"b")
        first, second = sorted(consumer.receive_many(2, wait=PATIENCE / 2), key=lambda message: message.topic)
        assert [type(each) for each in (first, second)] == [MessageView, MessageView]
        assert [(each.topic, each.body) for each in (first, second)] == [("orders", b"a"), ("orders_b", b"b")]
        first.ack()
        consumer.flush(PATIENCE)
        consumer.change_invisible_duration(second, 60)
        consumer.ack(second)
        assert consumer.progress().lag == 0


@pytest.mark.parametrize("batch", [None, 2])
def test_handlers_and_loops_are_given_names_without_the_namespace(shop: Any, batch: int | None) -> None:
    """With a decoder and telemetry, too."""
    seen: list[tuple[str, Any]] = []
    told: list[tuple[str, str, str | None]] = []

    class Told(ferromq.telemetry.Telemetry):
        def end(self, operation: Operation) -> None:
            told.append((operation.name, operation.topic, operation.group))

    with (
        shop.producer() as producer,
        shop.consumer("billing", "orders", decode=bytes.decode, telemetry=Told()) as consumer,
    ):
        producer.send_all("orders", [b"x", b"y"])

        def handle(given: Any) -> None:
            assert all(isinstance(message, MessageView) for message in (given if batch else [given]))
            seen.extend((message.topic, message.value) for message in (given if batch else [given]))
            if len(seen) == 2:
                consumer.stop()

        consumer.run(handle, batch=batch, linger=1.0 if batch else 0.0)
        producer.send("orders", b"z")
        for message in consumer.messages(idle=PATIENCE):
            seen.append((message.topic, message.value))
            message.ack()
            break
        consumer.flush(PATIENCE)
    assert sorted(seen) == [("orders", "x"), ("orders", "y"), ("orders", "z")]
    assert {(topic, group) for _, topic, group in told} == {("orders", "billing")}
    assert {"receive", "process", "ack"} <= {name for name, _, _ in told}


def test_pulls_readers_and_tables_name_topics_without_the_namespace(mq: ferromq.Embedded, shop: Any) -> None:
    """Queues go back into pulls, and positions into `seek`."""
    with shop.producer() as producer, shop.consumer("billing", "orders") as consumer:
        receipt = producer.send("orders", b"x")
        dispatched(mq)
        queue = next(each for each in consumer.queues() if each.queue_id == receipt.queue_id)
        (message,) = consumer.pull(queue, 0).messages
        assert (type(message), message.topic, message.body) == (MessageView, "orders", b"x")
        assert consumer.pull_arrow(queue, 0).table.column("topic").to_pylist() == ["orders"]
        table = consumer.receive_arrow(wait=PATIENCE)
        assert table.table.column("topic").to_pylist() == ["orders"]
        assert ferromq.to_arrow(table.messages).equals(table.table)
        consumer.ack(table)
        assert consumer.committed_offset(queue) == 1
        consumer.commit_offset(queue, 0)
        assert consumer.committed_offset(queue) == 0
    with shop.reader("orders") as reader:
        assert [message.topic for message in reader.messages(until="end")] == ["orders"]
        assert {queue.topic for queue in reader.positions} == {"orders"}
        reader.seek(reader.positions)


def test_dead_letters_stay_in_their_namespace(
    mq: ferromq.Embedded, shop: Any, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """They are listed, consumed and sent again by names without it, and by an administrator of another one, too."""
    with shop.producer() as producer, shop.consumer("billing", "orders") as consumer, shop.admin() as admin:
        producer.send("orders", b"x")
        (message,) = consumer.receive(wait=PATIENCE)
        consumer.forward_to_dead_letter(message, "no customer")
        assert eventually(lambda: len(list(admin.dead_letters("billing"))) == 1)
        (letter,) = admin.dead_letters("billing")
        assert (letter.group, letter.topic, letter.message.topic) == ("billing", "orders", "%DLQ%shop%billing")
        with mq.admin(namespace="depot") as other:
            assert list(other.dead_letters("billing")) == []
            (sent,) = other.resend_dead_letters([letter])
            assert (sent.error, sent.topic) == (None, "shop%orders")
        (sent,) = admin.resend_dead_letters([letter])
        assert (sent.error, sent.topic) == (None, "orders")
        assert bodies(consumer.receive_many(2, wait=PATIENCE / 2)) == [b"x", b"x"]
        admin.create_topic("orders_again")
        (sent,) = admin.resend_dead_letters([letter], topic="orders_again")
        assert (sent.error, sent.topic) == (None, "orders_again")
        assert "shop%orders_again" in names(mq)
        with shop.consumer("undertaker", "%DLQ%billing") as undertaker:
            (dead,) = undertaker.receive(wait=PATIENCE)
            assert (dead.topic, dead.body) == ("%DLQ%billing", b"x")
            undertaker.ack(dead)


def test_an_administrator_sees_the_topics_and_groups_of_its_namespace(mq: ferromq.Embedded, shop: Any) -> None:
    """It creates, alters, finds and deletes them by names without it."""
    with shop.admin() as admin, mq.admin() as everything:
        everything.create_topic("orders")
        admin.create_topic("orders", queues=2)
        admin.alter_topic("orders", queues=3)
        assert admin.topics() == ["orders"]
        assert "shop%orders" in everything.topics()
        admin.create_group("billing", retries=1)
        admin.alter_group("billing", retries=2)
        with shop.producer() as producer:
            receipt = producer.send("orders", b"x", keys="k")
        dispatched(mq)
        assert admin.query_by_id("orders", receipt.message_id) is not None
        assert [message.topic for message in admin.query_by_key("orders", "k")] == ["shop%orders"]
        assert everything.query_by_key("orders", "k") == []
        admin.delete_topic("orders")
        assert admin.topics() == []
        assert "orders" in everything.topics()


def test_timed_messages_are_delivered_and_recalled_in_a_namespace(mq: ferromq.Embedded, shop: Any) -> None:
    """A receipt goes back into `recall`."""
    with mq.admin(namespace="shop") as admin:
        admin.create_topic("orders", message_type="DELAY")
    with mq.producer(namespace="shop") as producer, shop.consumer("billing", "orders") as consumer:
        receipts = [producer.send("orders", body, delay=timedelta(hours=1)) for body in (b"kept", b"recalled")]
        assert [receipt.topic for receipt in receipts] == ["orders"] * 2
        assert producer.recall(receipts[1]) == receipts[1].message_id
        mq.clock.advance(hours=2)
        (message,) = consumer.receive(wait=PATIENCE)
        assert (message.topic, message.body) == ("orders", b"kept")


def test_a_group_keeps_order_in_a_namespace(mq: ferromq.Embedded, shop: Any) -> None:
    """A batch of a message group comes in the order of sending."""
    with mq.admin(namespace="shop") as admin:
        admin.create_topic("orders", message_type="FIFO")
        admin.create_group("billing", fifo=True)
    with shop.producer() as producer, shop.consumer("billing", "orders") as consumer:
        producer.send_all("orders", [Message(b"%d" % number, message_group="g") for number in range(20)])
        producer.send("orders", b"20", message_group="g")
        producer.send("orders", b"21", message_group="g")
        got: list[int] = []
        for message in consumer.messages(idle=PATIENCE):
            got.append(int(message.body))
            consumer.ack(message)
            if len(got) == 22:
                break
    assert got == list(range(22))


def test_a_check_back_reaches_the_checker_of_the_same_namespace(mq: ferromq.Embedded, shop: Any) -> None:
    """It is given the topic without the namespace, and a producer of the same topic without one is not asked."""
    with mq.admin() as admin:
        admin.create_topic("orders", message_type="TRANSACTION")
        admin.create_topic("shop%orders", message_type="TRANSACTION")
    asked: list[tuple[str, bytes]] = []
    strange: list[MessageView] = []

    def check(message: MessageView) -> Resolution:
        asked.append((message.topic, message.body))
        return Resolution.COMMIT

    def refuse(message: MessageView) -> Resolution:
        strange.append(message)
        return Resolution.ROLLBACK

    with shop.producer("orders", checker=check) as producer, mq.producer("orders", checker=refuse):
        assert producer._client.session._topics == {"shop%orders"}
        producer.transaction().send("orders", b"left open")
        with producer.transaction() as transaction:
            assert transaction.send("orders", b"committed").topic == "orders"
        with shop.consumer("billing", "orders") as consumer:
            consumer.ack(consumer.receive(wait=PATIENCE))
            mq.clock.advance(minutes=5)
            (message,) = consumer.receive(wait=PATIENCE)
            assert (message.topic, message.body) == ("orders", b"left open")
    assert set(asked) == {("orders", b"left open")}
    assert not strange


def test_a_request_gets_the_reply_of_its_namespace(mq: ferromq.Embedded, shop: Any) -> None:
    """Over remoting, where fields name topic and group; no group without the namespace is left behind."""
    with shop.producer() as producer, shop.consumer("billing", "orders") as consumer:

        def serve() -> None:
            (message,) = consumer.receive(wait=PATIENCE)
            consumer.reply(message, b"re:" + message.body)
            consumer.ack(message)

        serving = threading.Thread(target=serve)
        serving.start()
        assert producer.request("orders", b"x", timeout=PATIENCE).body == b"re:x"
        serving.join()
    assert "%RETRY%billing" not in names(mq)
    assert mq.broker.groups.get("billing") is None


def test_the_clients_of_asyncio_have_namespaces_too(mq: ferromq.Embedded) -> None:
    """Sends through the core, loops, readers and the administrator."""

    async def main() -> None:
        async with aio.connect(mq.endpoint, namespace="shop", timeout=PATIENCE) as connection:
            producer, consumer = connection.producer(), connection.consumer("billing", "orders")
            for body in (b"a", b"b"):
                assert (await producer.send("orders", body)).topic == "orders"
            seen = []
            async for message in consumer:
                seen.append((message.topic, message.body))
                await consumer.ack(message)
                if len(seen) == 2:
                    break
            assert sorted(seen) == [("orders", b"a"), ("orders", b"b")]
            reader = connection.reader("orders")
            assert [message.topic async for message in reader.messages(until="end")] == ["orders"] * 2
            assert await connection.admin().topics() == ["%RETRY%billing", "orders"]
            await producer.send("orders", b"c")
            table = await consumer.receive_arrow(wait=PATIENCE)
            assert table.table.column("topic").to_pylist() == ["orders"]

    asyncio.run(main())
    assert names(mq) == {"shop%orders", "%RETRY%shop%billing"}


def test_a_namespace_that_cannot_be_is_refused_by_each_client(mq: ferromq.Embedded) -> None:
    """Before anything is connected."""
    makers: list[Callable[[], object]] = [
        lambda: ferromq.connect(mq.endpoint, namespace="a%b"),
        lambda: aio.connect(mq.endpoint, namespace="a%b"),
        *(
            make
            for module in (ferromq, aio)
            for make in (
                lambda module=module: module.Producer(mq.endpoint, namespace="a%b"),
                lambda module=module: module.Consumer(mq.endpoint, "g", "t", namespace="a%b"),
                lambda module=module: module.Reader(mq.endpoint, "t", namespace="a%b"),
                lambda module=module: module.Admin(mq.namesrv, namespace="a%b"),
            )
        ),
    ]
    for make in makers:
        with pytest.raises(ferromq.IllegalName, match="the namespace name 'a%b'"):
            make()


def test_connections_show_their_namespace(mq: ferromq.Embedded) -> None:
    """In `repr` and notebooks."""
    with ferromq.connect(mq.endpoint, namespace="shop") as connection:
        assert 'namespace="shop"' in repr(connection)
        assert "shop" in connection._repr_html_()


@pytest.mark.parametrize("address", ["endpoint", "namesrv"])
def test_a_namespace_holds_at_an_endpoint_and_behind_name_servers(
    mq: ferromq.Embedded, address: str, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """With the telemetry of a reader, too."""
    told: list[Operation] = []

    class Told(ferromq.telemetry.Telemetry):
        def end(self, operation: Operation) -> None:
            told.append(operation)

    where: dict[str, Any] = {address: getattr(mq, address)}
    with ferromq.connect(**where, namespace="shop", timeout=PATIENCE) as connection:
        with connection.admin() as admin:
            admin.create_topic("orders", queues=1)
        with connection.producer() as producer:
            message_id = producer.send("orders", b"x").message_id
        with connection.reader("orders", telemetry=Told()) as reader:
            assert [message.topic for message in reader.read()] == ["orders"]
        with connection.consumer("billing", "orders") as consumer:
            (message,) = consumer.receive(wait=PATIENCE)
            assert message.topic == "orders"
            consumer.forward_to_dead_letter(message)
        with connection.admin() as admin:
            # The topic of dead letters is made by the first one, and name servers hear of it a moment later.
            assert eventually(lambda: bool(list(admin.dead_letters("billing"))))
            assert [(letter.topic, letter.group) for letter in admin.dead_letters("billing")] == [("orders", "billing")]
    (operation,) = told
    assert (operation.topic, operation.message_id) == ("orders", message_id)
    assert operation.lag is not None
