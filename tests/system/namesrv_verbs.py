"""The verbs of clients that know their brokers by name servers: they have more than those of RocketMQ's proxy."""

import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from remoting_peer import Peer
from verbs import PATIENCE, SYNC, TEXT, Cluster, Verbs, awaited, connected, receive, send

from ferromq import MessageView
from ferromq.protocol import java_json

CONSUMERS, PRODUCERS = 203, 328
COMPRESSED = {
    0x301: zlib.compress(TEXT),
    0x101: bytes.fromhex("04224d186040820f0000005f68656c6c6f0500475068656c6c6f00000000"),
    0x201: bytes.fromhex("28b52ffd20646500002868656c6c6f01008ca96801"),
}
"""System flag → the text as zlib, as a frame of lz4, and by zstd."""


class NamesrvVerbs(Verbs):
    """The tests; as of `Verbs`."""

    @staticmethod
    def _read(reader: Any, count: int) -> list[MessageView]:
        found: list[MessageView] = []
        assert awaited(lambda: found.extend(reader.read(wait=0.2)) or len(found) >= count)
        return found

    def test_queues_are_pulled_by_offset_and_offsets_committed(self, cluster: Cluster, kind: str, names: Any) -> None:
        """From any offset; the broker keeps what was committed, and answers a wait once a message comes."""
        topic, group = names(queues=1)
        with self.clients(kind, cluster, group, topic) as (producer, consumer):
            (queue,) = consumer.queues()
            assert (queue.broker_name, queue.queue_id, queue.topic) == (cluster.broker_name, 0, topic)
            producer.send_all(topic, [b"%d" % number for number in range(10)])
            assert awaited(lambda: consumer.offset_at(queue, "end") == 10)
            pulled = consumer.pull(queue, 3, 4)
            assert [message.body for message in pulled.messages] == [b"3", b"4", b"5", b"6"]
            assert pulled.next_offset == 7
            assert consumer.pull(queue, 10) == ([], 10)
            begin = time.monotonic()
            assert consumer.pull(queue, 10, wait=1) == ([], 10)
            assert 0.9 < time.monotonic() - begin < 5
            later = threading.Timer(0.5, producer.send, (topic, b"10"))
            later.start()
            assert [message.body for message in consumer.pull(queue, 10, wait=20).messages] == [b"10"]
            later.join()
            assert consumer.offset_at(queue, "begin") == 0
            assert consumer.offset_at(queue, pulled.messages[0].store_timestamp) <= 3
            consumer.commit_offset(queue, 7)
            assert consumer.committed_offset(queue) == 7
            assert consumer.progress().lag == 4

    def test_readers_leave_no_group_behind(self, cluster: Cluster, kind: str, names: Any) -> None:
        """They read all queues from the first message on."""
        topic, _ = names(queues=3)
        with connected(kind, cluster) as mq, mq.producer() as producer:
            producer.send_all(topic, [b"%d" % number for number in range(20)])
            for number in range(20, 25):
                producer.send(topic, b"%d" % number)
            with mq.reader(topic) as reader:
                assert {message.body for message in self._read(reader, 25)} == {b"%d" % n for n in range(25)}

    def test_readers_compare_tags(self, cluster: Cluster, kind: str, names: Any) -> None:
        """As consumers do: "Aa" and "BB" have one hash code in Java."""
        topic, _ = names()
        with connected(kind, cluster) as mq, mq.producer() as producer, mq.reader(topic, filter="BB") as reader:
            for tag in ("Aa", "BB"):
                producer.send(topic, tag.encode(), tag=tag)
            assert [message.body for message in self._read(reader, 1)] == [b"BB"]

    def test_clients_are_known_while_they_live(self, cluster: Cluster, kind: str, names: Any) -> None:
        """Consumers with their subscriptions, producers that can be asked by their topics."""
        topic, group = names()
        with Peer(cluster.broker) as peer:

            def consumers() -> list[Any]:
                answer = peer.call(CONSUMERS, {"consumerGroup": group})
                return list(java_json.loads_object(answer.body)["connectionSet"]) if answer.code == 0 else []

            def producers() -> bool:
                return topic in java_json.loads_object(peer.call(PRODUCERS, {}).body)["data"]

            with connected(kind, cluster) as mq:
                with (
                    mq.consumer(group, topic, filter="a || b") as consumer,
                    mq.producer(topic, checker=lambda _: None) as producer,
                ):
                    producer.send(topic, b"x")
                    consumer.receive(wait=0)
                    assert len(consumers()) == 1
                    assert awaited(producers)
                assert not consumers()
                assert not producers()

    @pytest.mark.parametrize("flag", COMPRESSED)
    def test_compressed_bodies_are_read(self, cluster: Cluster, names: Any, flag: int) -> None:
        """Those of Java's producers, in each of their three formats."""
        topic, group = names()
        with (
            connected(SYNC, cluster) as mq,
            mq.consumer(group, topic, begin="first") as consumer,
            mq.reader(topic) as reader,
        ):
            send(cluster, topic, COMPRESSED[flag], flag, {"UNIQ_KEY": f"compressed-{flag}"})
            assert [message.body for message in receive(consumer, 1)] == [TEXT]
            assert [message.body for message in self._read(reader, 1)] == [TEXT]

    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_more_compressions_of_javas_producers(self, cluster: Cluster, names: Any, compression: Any) -> None:
        """Those that RocketMQ's gRPC has no words for."""
        self.check_compression(cluster, names, compression)

    def test_requests_are_replied_to(self, cluster: Cluster, kind: str, names: Any) -> None:
        """The requester and the replier find their broker by its route."""
        topic, group = names()
        with (
            connected(kind, cluster) as mq,
            mq.producer() as producer,
            mq.consumer(group, topic, begin="first") as consumer,
            ThreadPoolExecutor(1) as pool,
        ):
            reply = pool.submit(producer.request, topic, b"ping", timeout=PATIENCE)
            (message,) = receive(consumer, 1)
            consumer.reply(message, b"pong")
            consumer.ack(message)
            assert reply.result(PATIENCE).body == b"pong"
