"""Namespaces of our client and of RocketMQ's Java clients are the same, on ferromq and behind RocketMQ's proxy."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from compat_peer import Clients
from java_processes import JavaBroker, JavaNameServer, JavaProxy
from waiting import eventually

import ferromq
from ferromq import MessageView, Resolution
from ferromq._proto import messages as pb
from ferromq.core.routes import endpoints_message
from ferromq.protocol import naming

PATIENCE = 60.0


class Servers(NamedTuple):
    """Where clients find one side."""

    namesrv: str
    endpoint: str


@pytest.fixture(scope="module", params=["ferromq", "rocketmq"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Run one side."""
    with contextlib.ExitStack() as stack:
        if request.param == "ferromq":
            mq = stack.enter_context(ferromq.embedded())
            yield Servers(mq.namesrv, mq.endpoint)
            return
        directory = tmp_path_factory.mktemp("servers")
        names = stack.enter_context(JavaNameServer(directory / "namesrv"))
        stack.enter_context(JavaBroker(directory / "broker", names.address))
        proxy = stack.enter_context(JavaProxy(directory / "proxy", names.address))
        yield Servers(names.address, proxy.address)


@pytest.fixture
def admin(servers: Servers) -> Iterator[ferromq.Admin]:
    """Yield an administrator of the namespace `shop`."""
    with ferromq.Admin(servers.namesrv, namespace="shop", timeout=PATIENCE) as admin:
        yield admin


@pytest.fixture
def ours(servers: Servers) -> Iterator[ferromq.Connection]:
    """Yield what makes our clients of the namespace `shop`."""
    with ferromq.connect(servers.endpoint, namespace="shop", timeout=PATIENCE) as connection:
        yield connection


def take(consumer: ferromq.Consumer, count: int) -> list[MessageView]:
    """Receive and acknowledge so many messages."""
    taken: list[MessageView] = []
    while len(taken) < count:
        messages = consumer.receive(wait=PATIENCE)
        assert messages, f"only {len(taken)} of {count} messages came"
        consumer.ack(messages)
        taken += messages
    return taken


def test_whole_names_are_those_of_rocketmq(clients: Clients) -> None:
    """Of topics, groups, retry and dead-letter topics, RocketMQ's own names, and names that have a namespace."""
    names = [
        "orders",
        "%RETRY%g",
        "%DLQ%g",
        "shop%orders",
        "%DLQ%shop%g",
        "depot%orders",
        "%orders",
        "%RETRY%",
        "shop%",
    ]
    names += ["%RETRY%SELF_TEST_TOPIC", "CID_RMQ_SYS_x", "CID_ONSAPI_PULL", "TOOLS_CONSUMER", "rmq_sys_x", "RMQ_SYS_x"]
    names += sorted(naming.SYSTEM_TOPICS)
    for name in names:
        whole = naming.in_namespace("shop", name)
        ours = f"{whole},{naming.without_namespace('shop', whole)}"
        assert clients.ask("wrap", name, "shop") == ours, name


def test_messages_reach_the_other_client_in_the_namespace(
    servers: Servers, clients: Clients, admin: ferromq.Admin, ours: ferromq.Connection
) -> None:
    """Either way; a client without the namespace, and one of another, get none of them."""
    admin.create_topic("both", queues=1, message_type="NORMAL")
    admin.create_group("ours")
    with ferromq.Admin(servers.namesrv, timeout=PATIENCE) as plain:
        plain.create_topic("both", queues=1, message_type="NORMAL")
        plain.create_topic("depot%both", queues=1, message_type="NORMAL")
        for group in ("shop%theirs", "depot%theirs"):
            plain.create_group(group)
    name = f"java-{servers.endpoint}"
    clients.start("producer", f"{name}-p", servers.namesrv, "shop:senders")
    clients.start("push", f"{name}-c", servers.namesrv, "shop:theirs", "both", "concurrent", 1)
    clients.start("push", f"{name}-d", servers.namesrv, "depot:theirs", "both", "concurrent", 0)
    try:
        with ours.producer() as producer, ours.consumer("ours", "both") as consumer:
            assert producer.send("both", b"from us").topic == "both"
            assert clients.send(f"{name}-p", "sync", "both", "java ", 2, 0) == 2
            messages = take(consumer, 3)
            assert sorted(message.body for message in messages) == [b"from us", b"java 0", b"java 1"]
            assert {message.topic for message in messages} == {"both"}
        # Its first message fails once: it comes again through %RETRY%shop%theirs.
        assert clients.wait_for(f"{name}-c", 3) == 3
        assert {(taken.body, taken.topic) for taken in clients.taken(f"{name}-c")} == {
            ("from us", "both"),
            ("java 0", "both"),
            ("java 1", "both"),
        }
        assert clients.taken(f"{name}-d") == []
    finally:
        for each in "pcd":
            clients.ask("close", f"{name}-{each}")


def test_requests_and_replies_cross_between_the_clients_of_a_namespace(clients: Clients) -> None:
    """On ferromq: RocketMQ's proxy does not tell the remoting address that they need."""
    with ferromq.embedded() as mq:
        with mq.admin(namespace="shop") as admin:
            for topic in ("asked_java", "asked_us"):
                admin.create_topic(topic, queues=1)
        clients.start("replier", "namespaced-replier", mq.namesrv, "shop:repliers", "asked_java")
        clients.start("producer", "namespaced-requester", mq.namesrv, "shop:requesters")
        try:
            with mq.producer(namespace="shop") as producer:
                assert producer.request("asked_java", b"x", timeout=PATIENCE).body == b"re:x"
            with mq.consumer("ours", "asked_us", namespace="shop") as consumer, ThreadPoolExecutor(1) as asking:
                asked = asking.submit(clients.ask, "request", "namespaced-requester", "asked_us", "q", 1)
                (message,) = consumer.receive(wait=PATIENCE)
                consumer.reply(message, b"re:" + message.body)
                consumer.ack(message)
                assert asked.result(PATIENCE) == "re:q0"
        finally:
            for name in ("replier", "requester"):
                clients.ask("close", f"namespaced-{name}")


def test_topics_are_acknowledged_and_buried_in_the_namespace(
    admin: ferromq.Admin, ours: ferromq.Connection, servers: Servers
) -> None:
    """Of several topics, too: RocketMQ's proxy takes the namespace off the topic of a message, ferromq does not."""
    for topic in ("several_a", "several_b"):
        admin.create_topic(topic, queues=1, message_type="NORMAL")
    admin.create_group("several")
    with ours.producer() as producer, ours.consumer("several", ["several_a", "several_b"]) as consumer:
        producer.send("several_a", b"a")
        producer.send("several_b", b"b")
        first, second = sorted(take(consumer, 2), key=lambda message: message.topic)
        assert [(each.topic, each.body) for each in (first, second)] == [("several_a", b"a"), ("several_b", b"b")]
        producer.send("several_a", b"dead")
        (message,) = consumer.receive(wait=PATIENCE)
        consumer.forward_to_dead_letter(message)
    with ferromq.Admin(servers.namesrv, timeout=PATIENCE) as plain:
        assert "%DLQ%shop%several" in plain.topics()
    assert eventually(lambda: list(admin.dead_letters("several")))
    (letter,) = admin.dead_letters("several")
    assert (letter.message.body, letter.topic) == (b"dead", "several_a")


def test_transactions_and_delays_work_in_the_namespace(
    admin: ferromq.Admin, ours: ferromq.Connection, servers: Servers
) -> None:
    """The producer group of a half message is its whole topic on both servers."""
    admin.create_topic("paid", queues=1, message_type="TRANSACTION")
    admin.create_topic("later", queues=1, message_type="DELAY")
    admin.create_group("cashier")
    asked: list[str] = []

    def check(message: MessageView) -> Resolution:
        asked.append(message.topic)
        return Resolution.COMMIT

    with (
        ours.producer("paid", checker=check) as producer,
        ours.consumer("cashier", ["paid", "later"]) as consumer,
    ):
        with producer.transaction() as transaction:
            transaction.send("paid", b"committed")
        producer.transaction(check_after=1.0).send("paid", b"checked")
        producer.send("later", b"timed", delay=1.0)
        taken = take(consumer, 3)
    assert {(message.topic, message.body) for message in taken} == {
        ("paid", b"committed"),
        ("paid", b"checked"),
        ("later", b"timed"),
    }
    assert {*asked} == {"paid"}
    for message in taken:
        stored = admin.query_by_id(message.topic, message.message_id)
        assert stored is not None
        assert message.topic == "later" or stored.properties["PGROUP"] == "shop%paid"


def test_servers_do_not_read_the_namespace_of_a_resource(servers: Servers) -> None:
    """So our requests have it in the name: a route of `plain` is answered whatever `resource_namespace` is."""
    with ferromq.Admin(servers.namesrv, timeout=PATIENCE) as plain:
        plain.create_topic("plain", queues=1, message_type="NORMAL")
    with ferromq.Producer(servers.endpoint, timeout=PATIENCE) as producer:
        producer.send("plain", b"x")
        request = pb.QueryRouteRequest(
            topic=pb.Resource(resource_namespace="shop", name="plain"), endpoints=endpoints_message([servers.endpoint])
        )
        answer = producer._client.channels.call(
            servers.endpoint, "QueryRoute", request.SerializeToString(), timeout=PATIENCE
        )
    response = pb.QueryRouteResponse.FromString(answer)
    assert response.status.code == pb.Code.OK
    assert response.message_queues
    with ferromq.Admin(servers.namesrv, timeout=PATIENCE) as plain:
        assert "shop%plain" not in plain.topics()


def test_a_producer_over_grpc_cannot_name_its_group(servers: Servers, clients: Clients) -> None:
    """Its topics are its producer groups, for ferromq's administrators, too; the property of the group is refused."""
    with ferromq.Admin(servers.namesrv, timeout=PATIENCE) as plain:
        plain.create_topic("grouped", queues=1, message_type="NORMAL")
    with ferromq.Producer(servers.endpoint, timeout=PATIENCE) as producer:
        with pytest.raises((ferromq.RequestError, ValueError), match="PGROUP"):
            producer.send("grouped", b"x", properties={"PGROUP": "billing"})
        producer.send("grouped", b"x")
        shown = clients.admin("producerConnection", "-n", servers.namesrv, "-g", "grouped", "-t", "grouped")
        client_id = producer._client.common.identity.client_id
        # RocketMQ's proxy does not tell its broker of producers.
        assert client_id in shown or "the producer group[grouped] not exist" in shown
