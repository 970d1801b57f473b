"""Clients of name servers when name servers or brokers are away, restart, join, leave or are older."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fault_proxy import FAULTS, Fault, FaultProxy
from machine import in_load
from ports import kept_port
from remoting_peer import Frame
from remoting_script import ScriptedServer, names

import ferromq

PATIENCE = 20.0
HEARTBEAT, PULL, POP, SEND, END, GROUP = 34, 11, 200_050, 310, 37, 352
V4_9_8 = 409
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Run a broker with a topic of one queue."""
    with ferromq.embedded() as running:
        with running.admin() as admin:
            admin.create_topic("orders", 1, message_type="NORMAL")
        yield running


def test_a_client_waits_for_a_name_server_that_starts_later(mq: ferromq.Embedded) -> None:
    """Before, the error names the address; the same client works afterwards."""
    with (
        kept_port() as address,
        ferromq.connect(namesrv=address, timeout=PATIENCE, attempts=1) as away,
        away.producer() as producer,
    ):
        with pytest.raises(ferromq.ConnectionFailed, match=address):
            producer.send("orders", b"early")
        with names({"broker-a": {0: mq.remoting}}, address=address):
            assert producer.send("orders", b"later").broker_name == "broker-a"


def test_a_broker_in_place_of_a_name_server_is_named_so(mq: ferromq.Embedded) -> None:
    """By either of its ports, with the port of name servers."""
    for address, error, text in (
        (mq.remoting, ferromq.Unsupported, "is a broker, .* name servers listen on port 9876"),
        (mq.endpoint, ferromq.ConnectionFailed, r"is this a name server's port \(9876\)\?"),
    ):
        with ferromq.connect(namesrv=address, timeout=PATIENCE, attempts=1) as wrong:
            producer = wrong.producer()
            with pytest.raises(error, match=text):
                producer.send("orders", b"x")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_clients_and_administrators_name_an_absent_name_server_alike(host: str) -> None:
    """With the reason in plain words."""
    text = f"cannot reach name server {host}:1 (connection refused)"
    with ferromq.connect(namesrv=f"{host}:1", timeout=PATIENCE, attempts=1) as absent, absent.producer() as producer:
        for call in (absent.admin().topics, lambda: producer.send("orders", b"x")):
            with pytest.raises(ferromq.ConnectionFailed) as failed:
                call()
            assert str(failed.value) == text


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_another_name_server_answers_for_one_that_fails(mq: ferromq.Embedded, fault: Fault) -> None:
    """It hangs, refuses, or answers half: a route is found within the time of the call."""
    with FaultProxy(mq.namesrv) as proxy, names({"broker-a": {0: mq.remoting}}) as other:
        fault(proxy)
        addresses = [proxy.address, other.address]
        with ferromq.connect(namesrv=addresses, timeout=10) as both, both.producer() as producer:
            assert producer.send("orders", b"x").broker_name == "broker-a"
            begin = time.monotonic()
            producer.send("orders", b"y")
            assert time.monotonic() - begin < in_load(1)


def test_a_name_server_that_has_just_started_takes_no_topic_away(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """It knows no broker yet: a new client asks again until it does, another one goes on with its route."""
    brokers: dict[str, dict[int, str]] = {"broker-a": {0: mq.remoting}}
    with (
        names(brokers) as server,
        ferromq.connect(namesrv=server.address, timeout=10) as patient,
        ferromq.connect(namesrv=server.address, timeout=10, attempts=1) as hasty,
        patient.producer() as known,
        patient.producer() as waiting,
        hasty.producer() as fresh,
        ThreadPoolExecutor(1) as pool,
    ):
        known.send("orders", b"before")
        brokers.clear()
        known._client.common.routes.distrust("orders")
        known.send("orders", b"while it is empty")
        with pytest.raises(ferromq.ServerError, match=r"knows no broker.*just started"):
            fresh.send("orders", b"too early")
        sending = pool.submit(waiting.send, "orders", b"soon")
        asked = len(server.asked)
        assert eventually(lambda: len(server.asked) > asked + 1)
        brokers["broker-z"] = {0: mq.remoting}
        assert sending.result(PATIENCE).broker_name == "broker-z"


def test_sends_and_receives_go_on_after_a_restart_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call waits for its return; leases and the client's registration come again."""
    with kept_port() as address, names({"broker-a": {0: address}}) as server:
        options = {"listen": address, "advertise": address, "fast_listen": "off"}
        with ferromq.connect(namesrv=server.address, timeout=PATIENCE) as mq, mq.producer() as producer:
            with ferromq.embedded(tmp_path, **options) as first:  # type: ignore[arg-type]
                with first.admin() as admin:
                    admin.create_topic("orders", 1, message_type="NORMAL")
                    admin.create_group("billing")
                consumer = mq.consumer("billing", "orders", begin="first")
                producer.send("orders", b"one")
                (one,) = consumer.receive(wait=PATIENCE)
                consumer.ack(one)
            with monkeypatch.context() as patched:
                patched.setattr(producer._client.common, "attempts", 1)
                with pytest.raises(ferromq.ConnectionFailed, match=address):
                    producer.send("orders", b"lost")
            with ferromq.embedded(tmp_path, **options):  # type: ignore[arg-type]
                producer.send("orders", b"two")
                (two,) = consumer.receive(wait=PATIENCE)
                assert two.body == b"two"
                consumer.ack(two)


def test_a_call_connects_at_once_however_long_a_broker_was_away() -> None:
    """The pauses between attempts of the connection itself grow to 3 seconds."""
    with (
        kept_port() as address,
        FaultProxy(address) as proxy,
        ferromq.embedded(listen=address, advertise=proxy.address, fast_listen="off") as mq,
        ferromq.connect(namesrv=mq.namesrv, timeout=5) as clients,
        clients.producer() as producer,
    ):
        with mq.admin() as admin:
            admin.create_topic("orders", 1, message_type="NORMAL")
        producer.send("orders", b"before")
        proxy.refuse()
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            with pytest.raises(ferromq.OutcomeUnknown):
                producer.send("orders", b"away", timeout=0.5)
        proxy.resume()
        producer.send("orders", b"again", timeout=in_load(1))


def test_brokers_join_and_leave(eventually: Eventually) -> None:
    """Sends go to those of the route that answer; receives take from all. The thread of one that has left ends."""
    with contextlib.ExitStack() as stack:
        brokers = {}
        for name in ("broker-a", "broker-b"):
            brokers[name] = stack.enter_context(ferromq.embedded(name=name))
            with brokers[name].admin() as admin:
                admin.create_topic("orders", 1, message_type="NORMAL")
                admin.create_group("billing")
        table = {"broker-a": {0: brokers["broker-a"].remoting}}
        server = stack.enter_context(names(table))
        mq = stack.enter_context(ferromq.connect(namesrv=server.address, timeout=5))
        producer, consumer = mq.producer(), mq.consumer("billing", "orders", begin="first")
        assert {producer.send("orders", b"%d" % n).broker_name for n in range(4)} == {"broker-a"}
        table["broker-b"] = {0: brokers["broker-b"].remoting}
        for client in (producer, consumer):
            client._client.common.routes.distrust("orders")
        assert eventually(lambda: producer.send("orders", b"both").broker_name == "broker-b")
        came: set[str] = set()

        def all_came() -> bool:
            for message in consumer.receive(wait=1):
                message.ack()
                came.add(message.endpoint)
            return came == {broker.remoting for broker in brokers.values()}

        assert eventually(all_came)
        brokers["broker-a"].close()
        assert [producer.send("orders", b"x").broker_name for _ in range(4)] == ["broker-b"] * 4
        del table["broker-a"]
        consumer._client.common.routes.distrust("orders")
        consumer.receive(wait=5)
        assert eventually(lambda: [*consumer._leases._lanes] == [brokers["broker-b"].remoting])


def test_a_broker_without_pops_is_named_with_the_way_out() -> None:
    """RocketMQ before 5.0 has none; delays it would ignore are refused, too, and sends work."""
    stored = Frame(0, {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "5"})
    answers = {HEARTBEAT: lambda _: Frame(0), SEND: lambda _: stored}
    with (
        ScriptedServer(answers, version=V4_9_8) as old,
        names({"broker-old": {0: old.address}}) as server,
        ferromq.connect(namesrv=server.address, timeout=5) as mq,
        mq.producer() as producer,
        mq.consumer("billing", "orders") as consumer,
    ):
        assert producer.send("orders", b"x").queue_offset == 5
        with pytest.raises(ferromq.Unsupported, match=r"version 4\.9\.8 and does not know POP_MESSAGE.*pull by offset"):
            consumer.receive(wait=1)
        with pytest.raises(ferromq.Unsupported, match=r"version 4\.9\.8 and ignores delivery times"):
            producer.send("orders", b"x", delay=5)
        assert sum(frame.code == POP for frame in old.asked) == 1
        assert sum(frame.code == SEND for frame in old.asked) == 1


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_receive_that_ends_early_holds_no_message_back(mq: ferromq.Embedded, kind: str) -> None:
    """The broker gives its message to the pop that waits there no more; the client gives it back at once."""

    async def begin_and_cancel(consumer: ferromq.aio.Consumer) -> None:
        task = asyncio.create_task(consumer.receive(wait=20))
        await asyncio.sleep(0.5)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with mq.producer() as producer:
            producer.send("orders", b"x")
        begin = time.monotonic()
        (message,) = await consumer.receive(wait=20)
        assert time.monotonic() - begin < PATIENCE / 2
        assert message.body == b"x"
        await consumer.close()

    namesrv = f"namesrv://{mq.namesrv}"
    options = {"begin": "first", "invisible_duration": 60}
    if kind == "aio":
        asyncio.run(begin_and_cancel(ferromq.aio.Consumer(namesrv, "billing", "orders", **options)))
        return
    with ferromq.Consumer(namesrv, "billing", "orders", **options) as consumer, mq.producer() as producer:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, iter(consumer))
            producer.send("orders", b"first")
            waiting.result(PATIENCE).ack()
        consumer.pause()  # ends the receive ahead
        producer.send("orders", b"x")
        consumer.resume()
        begin = time.monotonic()
        assert consumer.receive(wait=20)[0].body == b"x"
        assert time.monotonic() - begin < PATIENCE / 2


def test_a_slave_is_read_while_its_master_is_away(mq: ferromq.Embedded) -> None:
    """Sends are refused, with the reason."""
    with mq.producer() as direct:
        direct.send("orders", b"kept")
    with (
        names({"broker-a": {1: mq.remoting}}) as server,
        ferromq.connect(namesrv=server.address, timeout=5) as clients,
        clients.reader("orders") as reader,
        clients.producer() as producer,
    ):
        assert [message.body for message in reader.read(wait=5)] == [b"kept"]
        with pytest.raises(ferromq.Forbidden, match="no queue of orders may be written"):
            producer.send("orders", b"x")


def test_wrong_answers_are_errors_that_name_the_server(mq: ferromq.Embedded) -> None:
    """A route and a pop that cannot be decoded."""
    for body in (b"nonsense", b'{"queueDatas": 5}', b'{"queueDatas": [{"brokerName": "a"}]}'):
        with (
            ScriptedServer({105: lambda _, body=body: Frame(0, body=body)}) as server,
            ferromq.connect(namesrv=server.address, timeout=PATIENCE, attempts=1) as clients,
            clients.producer() as producer,
            pytest.raises(ferromq.ServerError, match=server.address),
        ):
            producer.send("orders", b"x")
    for fields, body in (({}, b""), ({}, b"nonsense"), ({"popTime": "x", "invisibleTime": "1", "reviveQid": "1"}, b"")):
        answers = {HEARTBEAT: lambda _: Frame(0), POP: lambda _, f=fields, b=body: Frame(0, f, b)}
        with (
            ScriptedServer(answers) as broker,
            names({"broker-a": {0: broker.address}}) as server,
            ferromq.connect(namesrv=server.address, timeout=PATIENCE, attempts=1) as clients,
            clients.consumer("billing", "orders") as consumer,
            pytest.raises(ferromq.ServerError, match=broker.address),
        ):
            consumer.receive(wait=0)


def test_a_frame_that_cannot_be_read_costs_its_connection_and_no_later_call() -> None:
    """The next attempt connects again; the error of the first call says what came."""
    good = Frame(0, {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "5"})
    frames = [Frame(float("inf"))]  # type: ignore[arg-type]
    answers = {HEARTBEAT: lambda _: Frame(0), SEND: lambda _: frames.pop() if frames else good}
    with (
        ScriptedServer(answers) as broker,
        names({"broker-a": {0: broker.address}}) as server,
        ferromq.connect(namesrv=server.address, timeout=PATIENCE, attempts=1) as clients,
        clients.producer() as producer,
    ):
        with pytest.raises(ferromq.ConnectionFailed, match=r"header that cannot be read.*infinity"):
            producer.send("orders", b"x")
        assert producer.send("orders", b"x").queue_offset == 5
        assert sum(frame.code == HEARTBEAT for frame in broker.asked) == 2


def test_a_refused_end_of_a_transaction_is_no_fault_of_the_broker() -> None:
    """Another attempt would end the same way."""
    stored = Frame(0, {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "5"})
    refused = Frame(1, remark="the transaction was rolled back before")
    answers = {HEARTBEAT: lambda _: Frame(0), SEND: lambda _: stored, END: lambda _: refused}
    with (
        ScriptedServer(answers) as broker,
        names({"broker-a": {0: broker.address}}) as server,
        ferromq.connect(namesrv=server.address, timeout=PATIENCE) as clients,
        clients.producer("orders", checker=lambda _: None) as producer,
    ):
        transaction = producer.transaction()
        transaction.send("orders", b"x")
        with pytest.raises(ferromq.RequestError, match=r"refused END_TRANSACTION: the transaction was rolled back"):
            transaction.commit()
        assert sum(frame.code == END for frame in broker.asked) == 1


def test_a_consumer_that_closes_ends_its_receive_as_closed() -> None:
    """Loops of workers end at `ClientClosed`, and repeat after a `ServerError`."""
    is_asked, is_over = threading.Event(), threading.Event()

    def hang(_: Frame) -> Frame:
        is_asked.set()
        is_over.wait(PATIENCE)
        return Frame(0)

    with (
        ScriptedServer({HEARTBEAT: lambda _: Frame(0), POP: hang}) as broker,
        names({"broker-a": {0: broker.address}}) as server,
        ferromq.connect(namesrv=server.address, timeout=PATIENCE) as clients,
        ThreadPoolExecutor(1) as pool,
    ):
        consumer = clients.consumer("billing", "orders")
        receiving = pool.submit(consumer.receive, wait=PATIENCE)
        assert is_asked.wait(PATIENCE)
        consumer.close(timeout=1)
        assert isinstance(receiving.exception(PATIENCE), ferromq.ClientClosed)
        is_over.set()


def test_a_pull_that_finds_no_message_in_its_time_keeps_the_connection() -> None:
    """RocketMQ's broker answers it later than its client waits; the connection has other calls."""
    is_over = threading.Event()
    nothing = Frame(19, {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"})

    def pull(frame: Frame) -> Frame:
        if frame.fields["suspendTimeoutMillis"] != "0":
            is_over.wait(2)
        return nothing

    with (
        ScriptedServer({HEARTBEAT: lambda _: Frame(0), PULL: pull}) as broker,
        names({"broker-a": {0: broker.address}}) as server,
        ferromq.connect(namesrv=server.address, timeout=PATIENCE) as clients,
        clients.consumer("billing", "orders") as consumer,
    ):
        (queue,) = consumer.queues()
        assert not consumer.pull(queue, 0, wait=1).messages
        is_over.set()
        assert sum(frame.code == HEARTBEAT for frame in broker.asked) == 1
