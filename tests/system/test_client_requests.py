"""Requests and replies between our clients: each request gets its reply, or an error in time that says why."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from consumer_shells import Shell
from contract import EACH_WAY
from fault_proxy import FaultProxy
from machine import in_load
from ports import kept_port
from remoting_peer import Peer
from tls_files import SHOWN

import ferromq
from ferromq import aio
from ferromq._ferromq import decode_records
from ferromq.broker.controller import BrokerController
from ferromq.broker.metadata.topics import TopicConfig
from ferromq.client.links import Links
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.core.plans import Common
from ferromq.core.request_plans import REQUESTERS, Requests
from ferromq.core.requests import Plan
from ferromq.embedding import SMALL_FILES
from ferromq.namesrv.server import NamesrvController

Eventually = Callable[[Callable[[], bool]], bool]
TLS = Path(__file__).parents[1] / "fixtures" / "tls"
PRODUCERS_OF, SEND, PULL, REPLY, SHORT_REPLY, PUSH_REPLY = 204, 10, 11, 324, 325, 326
FREE = "127.0.0.1:0"
LONG, SHORT = 30.0, 1.0
FIRST = 3.0
"""For a request that connects."""


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Run a broker that shows its certificate over remoting, too."""
    files = {"tls_certificate": str(TLS / "first.pem"), "tls_key": str(TLS / "first.key"), **SHOWN}
    with ferromq.embedded(**files) as embedded:  # type: ignore[arg-type]
        yield embedded


def echo(consumer: ferromq.Consumer) -> Callable[[ferromq.MessageView], None]:
    """Return a handler that replies with the body of its request."""
    return lambda message: consumer.reply(message, b"re:" + message.body)


@contextmanager
def replying(
    mq: Any, handler: Callable[[ferromq.Consumer], Callable[[ferromq.MessageView], object]] = echo, **options: Any
) -> Iterator[ferromq.Consumer]:
    """Run a consumer of `asked` on a thread."""
    with mq.consumer("repliers", "asked", **options) as consumer:
        thread = threading.Thread(target=consumer.run, args=(handler(consumer),), kwargs={"concurrency": 4})
        thread.start()
        try:
            yield consumer
        finally:
            consumer.stop()
            thread.join()


def asked(mq: ferromq.Embedded) -> int:
    """Return how many requests are stored."""
    return sum(mq.store.max_offset("asked", queue) for queue in range(8))


@EACH_WAY
def test_each_thread_gets_the_reply_to_its_own_request(mq: ferromq.Embedded, shell: Shell) -> None:
    """They share one connection."""
    with replying(mq), shell.producer(mq) as producer, ThreadPoolExecutor(8) as threads:
        bodies = [b"%d" % number for number in range(40)]
        replies = list(threads.map(lambda body: producer.request("asked", body, timeout=LONG), bodies))
        assert [reply.body for reply in replies] == [b"re:" + body for body in bodies]
        with Peer(mq.remoting) as peer:
            connections = peer.call(PRODUCERS_OF, {"producerGroup": REQUESTERS}).json()["connectionSet"]
        assert len(connections) == 1


def test_a_reply_brings_what_the_replier_gave(mq: ferromq.Embedded) -> None:
    """And a request brings what its producer gave; neither shows RocketMQ's own properties."""
    seen: list[ferromq.MessageView] = []

    def handler(consumer: ferromq.Consumer) -> Callable[[ferromq.MessageView], None]:
        def handle(message: ferromq.MessageView) -> None:
            seen.append(message)
            consumer.reply(message, ferromq.Message(b"done", keys=["a", "b"], tag="T", properties={"to": "you"}))

        return handle

    with replying(mq, handler), mq.producer() as producer:
        reply = producer.request("asked", b"do", keys="k", tag="S", properties={"from": "me"}, message_group="g")
    (request,) = seen
    assert (request.keys, request.tag, request.properties, request.message_group) == (("k",), "S", {"from": "me"}, "g")
    assert (reply.body, reply.keys, reply.tag, reply.properties) == (b"done", ("a", "b"), "T", {"to": "you"})
    assert reply.topic == "DefaultCluster_REPLY_TOPIC"
    assert abs(reply.born_timestamp - time.time() * 1000) < 60_000


def test_a_request_without_a_reply_ends_in_time_and_says_why(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic has no group; its group has no member; its member does not reply."""
    look = Requests._silence

    def patient(plans: Requests, common: Common, topic: str, until: float) -> Plan[str]:
        return look(plans, common, topic, until + LONG)

    # A busy broker may not answer within what is left of the timeout, and the error could not say why.
    monkeypatch.setattr(Requests, "_silence", patient)
    with mq.producer() as producer:
        begin = time.monotonic()
        with pytest.raises(ferromq.RequestTimeout, match="no consumer group reads asked"):
            producer.request("asked", b"x", timeout=FIRST)
        assert time.monotonic() - begin < in_load(2 * FIRST)
        with mq.consumer("repliers", "asked") as consumer:
            consumer.ack(consumer.receive(wait=LONG))
            with pytest.raises(ferromq.RequestTimeout, match="repliers, has members: they did not reply in time"):
                producer.request("asked", b"x", timeout=SHORT)
            consumer.ack(consumer.receive(wait=LONG))
            consumer.flush()
        with pytest.raises(ferromq.RequestTimeout, match=r"no consumer group of asked has a member \(repliers\)"):
            producer.request("asked", b"x", timeout=SHORT)


def test_a_reply_to_a_producer_that_is_gone_is_an_error(mq: ferromq.Embedded) -> None:
    """In `run` it is logged, and the message is acknowledged: another attempt would be as useless."""
    with mq.consumer("repliers", "asked") as consumer:
        with mq.producer() as producer, pytest.raises(ferromq.RequestTimeout):
            producer.request("asked", b"x", timeout=FIRST)
        (message,) = consumer.receive(wait=LONG)
        with pytest.raises(ferromq.RequesterGone, match="cannot deliver the reply"):
            consumer.reply(message, b"y")
        consumer.change_invisible_duration(message, 0)
        handled = threading.Event()

        def handle(message: ferromq.MessageView) -> None:
            handled.set()
            consumer.reply(message, b"y")

        running = threading.Thread(target=consumer.run, args=(handle,))
        running.start()
        assert handled.wait(LONG)
        consumer.stop()
        running.join()
        consumer.flush()
        (queue,) = [each for each in consumer.queues() if mq.store.max_offset("asked", each.queue_id)]
        assert consumer.committed_offset(queue) == 1


def test_an_asynchronous_handler_whose_requester_is_gone_ends_its_message(mq: ferromq.Embedded) -> None:
    """As a synchronous one: it is called once."""

    async def main() -> int | None:
        async with aio.connect(mq.endpoint) as connection:
            async with connection.producer() as producer:
                with pytest.raises(ferromq.RequestTimeout):
                    await producer.request("asked", b"x", timeout=FIRST)
            consumer = connection.consumer("repliers", "asked")

            async def handle(message: ferromq.MessageView) -> None:
                consumer.stop()
                await consumer.reply(message, b"y")

            await consumer.run(handle)
            await consumer.flush()
            (queue,) = [each for each in await consumer.queues() if mq.store.max_offset("asked", each.queue_id)]
            return await consumer.committed_offset(queue)

    assert asyncio.run(main()) == 1


def test_a_reply_to_a_message_that_is_no_request_is_refused(mq: ferromq.Embedded) -> None:
    """As are delays, which requests and replies do not have."""
    with mq.producer() as producer, mq.consumer("repliers", "asked") as consumer:
        producer.send("asked", b"x")
        (message,) = consumer.receive(wait=LONG)
        with pytest.raises(ValueError, match=f"the message {message.message_id} is no request"):
            consumer.reply(message, b"y")
        with pytest.raises(ValueError, match="a reply has no message_group"):
            consumer.reply(message, b"y", message_group="g")
        with pytest.raises(ValueError, match="a request has no delay"):
            producer.request("asked", b"x", delay=1)
        with pytest.raises(ferromq.MessageTooLarge, match="the limit is"):
            producer.request("asked", bytes(5 << 20))


def test_a_request_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    """One that waits for its reply meanwhile gets it afterwards, over a new connection; and later ones get theirs."""
    with (
        kept_port() as grpc,
        kept_port() as remoting,
        ferromq.connect(grpc, timeout=60) as clients,
        ThreadPoolExecutor(1) as thread,
    ):
        ports = {"grpc_listen": grpc, "listen": remoting, "fast_listen": "off"}
        producer = clients.producer()
        with ferromq.embedded(tmp_path, **ports) as mq:
            waiting = thread.submit(producer.request, "asked", b"before", timeout=60)
            with mq.consumer("waiters", "asked") as consumer:
                assert [message.body for message in consumer.receive(wait=LONG)] == [b"before"]
        assert not waiting.done()
        with ferromq.embedded(tmp_path, **ports), replying(clients):
            assert waiting.result(60).body == b"re:before"
            assert producer.request("asked", b"after", timeout=LONG).body == b"re:after"


def test_a_broker_that_hangs_costs_no_more_than_the_timeout(tmp_path: Path) -> None:
    """And when it goes on, the same producer gets replies again."""
    with kept_port() as remoting, FaultProxy(remoting) as proxy:
        options = {"listen": remoting, "advertise": proxy.address, "fast_listen": "off"}
        with ferromq.embedded(tmp_path, **options) as mq, mq.producer() as producer, replying(mq):
            assert producer.request("asked", b"1", timeout=LONG).body == b"re:1"
            proxy.hang()
            begin = time.monotonic()
            with pytest.raises(ferromq.OutcomeUnknown):
                producer.request("asked", b"2", timeout=SHORT)
            assert time.monotonic() - begin < in_load(3 * SHORT)
            proxy.resume()
            assert producer.request("asked", b"3", timeout=LONG).body == b"re:3"
            proxy.drop()
            assert producer.request("asked", b"4", timeout=LONG).body == b"re:4"


def test_a_reply_waits_for_a_requester_that_connects_again(
    mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the requester waits, which its request says; after a restart a replier may be faster than it."""
    properties = "CORRELATION_ID\x017\x02REPLY_TO_CLIENT\x01me\x02TTL\x0160000\x02"
    fields = {"producerGroup": "p", "topic": "asked", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
    fields |= {"queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": properties}
    refused = threading.Event()
    with mq.consumer("repliers", "asked") as consumer, ThreadPoolExecutor(1) as thread:
        with Peer(mq.remoting, client_id="me") as asking:
            assert asking.call(SEND, fields, b"x").code == 0
        (message,) = consumer.receive(wait=LONG)
        call = Links.call

        def spy(links: Links, address: str, code: int, *rest: Any, **options: Any) -> Any:
            future = call(links, address, code, *rest, **options)
            if code == SHORT_REPLY:
                future.add_done_callback(lambda _: refused.set())
            return future

        monkeypatch.setattr(Links, "call", spy)
        replying = thread.submit(consumer.reply, message, b"y")
        assert refused.wait(LONG)
        with Peer(mq.remoting, client_id="me") as asking:
            asking.heartbeat(produces=("p",))
            assert asking.asked(PUSH_REPLY).body == b"y"
            replying.result(LONG)


def test_closing_the_producer_ends_its_requests(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """At once, with an error; and the broker forgets the requester."""
    with ThreadPoolExecutor(1) as thread, Peer(mq.remoting) as peer:
        producer = mq.producer()
        waiting = thread.submit(producer.request, "asked", b"x", timeout=LONG)
        assert eventually(lambda: asked(mq) == 1)
        producer.close()
        with pytest.raises(ferromq.ConnectionFailed, match="closed while a request waited"):
            waiting.result(LONG / 2)
        assert peer.call(PRODUCERS_OF, {"producerGroup": REQUESTERS}).code != 0
        with pytest.raises(ferromq.ClientClosed):
            producer.request("asked", b"x")


def test_a_cancelled_request_harms_no_other(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Its reply is dropped when it comes."""

    async def main() -> bytes:
        async with aio.connect(mq.endpoint) as connection:
            producer, consumer = connection.producer(), connection.consumer("repliers", "asked")
            given_up = asyncio.create_task(producer.request("asked", b"1", timeout=LONG))
            (message,) = await consumer.receive(wait=LONG)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            await consumer.reply(message, b"late")
            other = asyncio.create_task(producer.request("asked", b"2", timeout=LONG))
            (message,) = await consumer.receive(wait=LONG)
            await consumer.reply(message, b"in time")
            return (await other).body

    assert asyncio.run(main()) == b"in time"


def test_a_forked_child_is_refused_and_the_parent_goes_on(mq: ferromq.Embedded) -> None:
    """The threads and connections of requests stay with the parent."""
    with mq.producer() as producer, replying(mq) as consumer:
        assert producer.request("asked", b"1", timeout=LONG).body == b"re:1"
        child = os.fork()
        if child == 0:
            try:
                producer.request("asked", b"2", timeout=SHORT)
            except ferromq.ForkedProcess:
                producer.close()
                consumer.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert producer.request("asked", b"3", timeout=LONG).body == b"re:3"


def test_requests_travel_over_tls() -> None:
    """To the remoting listener, too, with the same options."""
    files = {"certificate": str(TLS / "first.pem"), "key": str(TLS / "first.key")}
    options: dict[str, Any] = {f"{kind}_{name}": path for kind in ("grpc_tls", "tls") for name, path in files.items()}
    with (
        ferromq.embedded(grpc_tls_mode="enforcing", tls_mode="enforcing", **options) as mq,
        ferromq.connect(mq.endpoint, tls=TLS / "ca.pem") as clients,
        replying(clients),
    ):
        assert clients.producer().request("asked", b"x", timeout=LONG).body == b"re:x"


def broker(directory: Path, name: str, namesrv: str) -> BrokerController:
    """Start a broker with free ports."""
    options = {"store": directory / name, "listen": FREE, "grpc_listen": FREE, "name": name, "namesrv": namesrv}
    return BrokerController(BrokerConfig.from_options({**options, **SMALL_FILES, "fast_listen": "off"}))


def test_a_reply_may_come_by_any_broker_of_the_cluster(tmp_path: Path) -> None:
    """RocketMQ's repliers choose one: the requester is known at all, also where the topic is not."""
    with ExitStack() as stack:
        names = stack.enter_context(closing(NamesrvController(NameServerConfig(listen=FREE))))
        first, second = (stack.enter_context(closing(broker(tmp_path, name, names.address))) for name in ("a", "b"))
        first.topics.create(TopicConfig("asked", 1, 1), "test")
        clients = stack.enter_context(ferromq.connect(first.endpoint))
        producer, consumer = clients.producer(), clients.consumer("repliers", "asked")
        thread = stack.enter_context(ThreadPoolExecutor(1))
        waiting = thread.submit(producer.request, "asked", b"x", timeout=LONG)
        consumer.receive(wait=LONG)
        one, other = (stack.enter_context(Peer(each.address)) for each in (first, second))
        pull = {"consumerGroup": "repliers", "topic": "asked", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
        pull |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}
        pull |= {"subscription": "*", "expressionType": "TAG"}
        (record,) = decode_records(one.call(PULL, pull).body)
        wanted = ("CORRELATION_ID", "REPLY_TO_CLIENT")
        properties = "".join(f"{name}\x01{record.properties[name]}\x02" for name in wanted)
        fields = {"producerGroup": "p", "topic": "DefaultCluster_REPLY_TOPIC", "queueId": "0"}
        assert other.call(REPLY, {**fields, "properties": properties}, b"by b").code == 0
        assert waiting.result(LONG).body == b"by b"
