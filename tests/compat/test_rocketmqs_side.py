"""With `compat = "rocketmq"` a program gets the same answers from ferromq and from RocketMQ with its proxy."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from grpc_session import Held, Session
from java_processes import JavaBroker, JavaNameServer, JavaProxy

import ferromq
from ferromq._ferromq import RemotingClient, decode_records
from ferromq._proto import messages as pb

POP, ACK, SEND, PULL = 200_050, 200_051, 310, 11
POPPED = {
    "consumerGroup": "popped",
    "topic": "popped",
    "queueId": "0",
    "order": "true",
    "invisibleTime": "8000",
    "pollTime": "0",
    "initMode": "0",
    "expType": "TAG",
    "exp": "*",
}
PATIENCE = 60.0
SECOND = timedelta(seconds=1)
LEASE = 60 * SECOND
SOON = 0.3
"""Seconds of a lease until its expiry, and a margin for the proxy."""


class Side(NamedTuple):
    """One of the two servers."""

    namesrv: str
    broker: str
    endpoint: str


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Side]]:
    """Run both: the original first."""
    directory = tmp_path_factory.mktemp("side")
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(JavaNameServer(directory / "namesrv"))
        broker = stack.enter_context(JavaBroker(directory / "broker", names.address))
        proxy = stack.enter_context(JavaProxy(directory / "proxy", names.address))
        mq = stack.enter_context(ferromq.embedded(directory / "ours", compat="rocketmq"))
        with ThreadPoolExecutor(2) as both:
            made = [Side(names.address, broker.address, proxy.address), Side(mq.namesrv, mq.remoting, mq.endpoint)]
            list(both.map(_create, made))
        yield made


def _create(side: Side) -> None:
    """Make topics and groups, before a proxy caches that they are missing."""
    with ferromq.Admin(side.namesrv, timeout=PATIENCE) as admin:
        for name in ("ordered", "popped", "dying"):
            admin.create_topic(name, queues=1, message_type="FIFO")
            admin.create_group(name, fifo=True, retries=1 if name == "dying" else 16)
        admin.create_topic("plain", queues=1, message_type="NORMAL")
        admin.create_topic("numbered", queues=1, message_type="NORMAL")
        admin.create_topic("late", queues=1, message_type="DELAY")
        admin.create_group("plain")


def _same(sides: list[Side], program: Callable[[Side], Any]) -> Any:
    """Run a program on both sides at once, and return both results."""
    with ThreadPoolExecutor(2) as both:
        original, ours = both.map(program, sides)
    assert ours == original
    return original


def _shown(messages: list[Held]) -> list[tuple[str, int]]:
    return [(held.body, held.attempt) for held in messages]


def _end(session: Session, messages: list[Held]) -> None:
    """Let leases end soon, and wait for it."""
    assert [session.change(held, SECOND / 10).code for held in messages] == [pb.Code.OK] * len(messages)
    threading.Event().wait(SOON)


def _fill(side: Side, session: Session, topic: str, count: int) -> None:
    """Send messages 0, 1, … of one message group, and return once all of them can be read."""
    for number in range(count):
        assert session.send(topic, str(number), message_group="one").code == pb.Code.OK
    _until_read(side, topic, count)


def _until_read(side: Side, topic: str, count: int) -> None:
    """Return once the first messages of a topic can be read."""
    names = {"consumerGroup": "plain", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": str(count)}
    more = {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
    deadline = time.monotonic() + PATIENCE
    with contextlib.closing(RemotingClient()) as client:
        while len(decode_records(client.call(side.broker, PULL, {**names, **more}, timeout=20)[3])) < count:
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)


def _sent(topic: str) -> dict[str, str]:
    """Return the header of a send over remoting."""
    named = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    return {**named, "i": "", "j": "0", "k": "false", "m": "false"}


def test_missing_topics_and_groups_over_grpc(sides: list[Side]) -> None:
    """Four questions, and none creates the topic; a group is created."""

    def program(side: Side) -> list[int]:
        with Session(side.endpoint, "plain", "plain") as session:
            sent = [session.send("unknown", "a").code, session.send("unknown", "a", message_group="one").code]
            received = session.receive(1, topic="unknown", invisible=LEASE)[0].code
            return [session.route("unknown"), session.assignment("unknown"), *sent, received, session.route("unknown")]

    missing, conflict = pb.Code.TOPIC_NOT_FOUND, pb.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert _same(sides, program) == [missing, missing, conflict, conflict, missing, missing]


def test_a_send_over_remoting_creates_a_topic_that_grpc_finds(sides: list[Side]) -> None:
    """`autoCreateTopicEnable` is on in both."""

    def program(side: Side) -> list[int]:
        with contextlib.closing(RemotingClient()) as client, Session(side.endpoint, "plain", "plain") as session:
            return [client.call(side.broker, SEND, _sent("remoting"), b"a", timeout=20)[0], session.route("remoting")]

    assert _same(sides, program) == [0, pb.Code.OK]


def test_invisible_durations_and_delays_have_the_originals_limits(sides: list[Side]) -> None:
    """And its texts, if they name only the limit; changes and renewed receives have no lower bound."""

    def program(side: Side) -> list[Any]:
        told = list[Any]()
        with Session(side.endpoint, "plain", "plain") as session:
            assert session.send("plain", "a").code == pb.Code.OK
            _until_read(side, "plain", 1)
            for invisible in (9.999, 43_200.001):
                status, _ = session.receive(1, invisible=invisible * SECOND)
                told.append((status.code, status.message))
            status, messages = session.receive(1, invisible=43_200 * SECOND)
            told.append((status.code, _shown(messages)))
            changes = [session.change(messages[0], invisible * SECOND) for invisible in (43_200.001, 0)]
            told += [(status.code, status.message) for status in changes[:1]] + [changes[1].code]
            threading.Event().wait(SOON)
            status, messages = session.receive(1, invisible=SECOND, auto_renew=True)
            told += [status.code, _shown(messages), [session.ack(held) for held in messages]]
            for ahead in (86_300, 87_000):
                due = pb.SystemProperties().delivery_timestamp
                due.FromMilliseconds(int((time.time() + ahead) * 1000))
                status = session.send("late", "b", delivery_timestamp=due)
                told.append((status.code, status.message))
        return told

    told = _same(sides, program)
    assert told[:2] == [
        (pb.Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small. min is 10000"),
        (pb.Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too large. max is 43200000"),
    ]
    assert told[-1][0] == pb.Code.ILLEGAL_DELIVERY_TIME


def test_times_of_delivery_over_remoting_have_the_originals_limit(sides: list[Side]) -> None:
    """Three days, in both modes."""

    def program(side: Side) -> list[int]:
        with contextlib.closing(RemotingClient()) as client:
            answers = list[int]()
            for seconds in (259_100, 259_300):
                due = f"TIMER_DELIVER_MS\x01{int((time.time() + seconds) * 1000)}\x02"
                answers.append(client.call(side.broker, SEND, {**_sent("late"), "i": due}, b"a", timeout=20)[0])
            return answers

    assert _same(sides, program) == [0, 13]


def test_an_ordered_group_gets_everything_again(sides: list[Side]) -> None:
    """From the first unacknowledged message on; attempts, sizes and attempt ids as measured."""

    def program(side: Side) -> list[Any]:
        told = list[Any]()
        with Session(side.endpoint, "ordered", "ordered") as session:

            def take(count: int, attempt: str) -> list[Held]:
                messages = session.receive(count, attempt=attempt, invisible=LEASE)[1]
                told.append(_shown(messages))
                return messages

            _fill(side, session, "ordered", 6)
            first = take(4, "a")
            told.append([session.ack(first[1]), session.ack(first[2])])
            again = take(2, "a")
            _end(session, again)
            third = take(6, "c")
            told.append([session.ack(held) for held in third[1:]])
            _end(session, third[:1])
            fourth = take(2, "d")
            told.append([session.ack(held) for held in fourth])
            fifth = take(6, "e")
            told.append([session.ack(held) for held in fifth])
            assert session.send("ordered", "late", message_group="one").code == pb.Code.OK
            take(6, "f")
        return told

    ok = pb.Code.OK
    assert _same(sides, program) == [
        *([("0", 1), ("1", 1), ("2", 1), ("3", 1)], [ok] * 2, [("0", 1), ("1", 1)]),
        *([("0", 2), ("1", 2), ("2", 1), ("3", 1), ("4", 1), ("5", 1)], [ok] * 5),
        *([("0", 3), ("1", 3)], [ok] * 2, [("2", 1), ("3", 1), ("4", 1), ("5", 1)], [ok] * 4, [("late", 1)]),
    ]


def test_messages_over_the_limit_are_dead_even_if_acknowledged(sides: list[Side]) -> None:
    """A batch whose first message fails dies with it."""

    def program(side: Side) -> list[Any]:
        told = list[Any]()
        with Session(side.endpoint, "dying", "dying") as session:
            _fill(side, session, "dying", 4)
            for attempt in "ab":
                messages = session.receive(3, attempt=attempt, invisible=LEASE)[1]
                told.append((_shown(messages), [session.ack(held) for held in messages[1:]]))
                _end(session, messages[:1])
            # The original's proxy answers such a receive with nothing, and gives the next message to the next one.
            for attempt in "cd":
                messages = session.receive(3, attempt=attempt, invisible=LEASE)[1]
                if messages:
                    told.append(_shown(messages))
                    break
        with ferromq.Admin(side.namesrv, timeout=PATIENCE) as admin:
            deadline = time.monotonic() + PATIENCE
            while not (dead := "%DLQ%dying" in admin.topics()) and time.monotonic() < deadline:
                threading.Event().wait(0.1)
        return [*told, dead]

    ok = pb.Code.OK
    batch = ["0", "1", "2"]
    assert _same(sides, program) == [
        *(([(body, attempt) for body in batch], [ok] * 2) for attempt in (1, 2)),
        *([("3", 1)], True),
    ]


def test_ordered_pops_over_remoting(sides: list[Side]) -> None:
    """As over gRPC; acknowledged messages are redelivered."""

    def program(side: Side) -> list[Any]:
        with Session(side.endpoint, "popped", "popped") as session:
            _fill(side, session, "popped", 4)
        with contextlib.closing(RemotingClient()) as client:

            def pop(count: int) -> tuple[list[str], dict[str, str]]:
                fields = {**POPPED, "maxMsgNums": str(count)}
                deadline = time.monotonic() + PATIENCE
                while True:
                    # Messages with an old birth time are skipped.
                    fields["bornTime"] = str(int(time.time() * 1000))
                    code, remark, answer, body = client.call(side.broker, POP, fields, timeout=20)
                    if code == 0:
                        return [each.body.decode() for each in decode_records(body)], answer
                    assert time.monotonic() < deadline, (code, remark)
                    threading.Event().wait(0.05)

            def ack(answer: dict[str, str], offset: int) -> int:
                start = answer["startOffsetInfo"].split(" ")[2]
                told = " ".join(answer[name] for name in ("popTime", "invisibleTime", "reviveQid"))
                info = f"{start} {told} 0 broker 0 {offset}"
                place = {"consumerGroup": "popped", "topic": "popped", "queueId": "0", "offset": str(offset)}
                return client.call(side.broker, ACK, {**place, "extraInfo": info}, timeout=20)[0]

            first, answer = pop(3)
            told = [first, ack(answer, 1), ack(answer, 2)]
            second, answer = pop(4)
            return [*told, second, answer["orderCountInfo"], *(ack(answer, offset) for offset in (0, 1, 2, 3))]

    told = _same(sides, program)
    assert told[:4] == [["0", "1", "2"], 0, 0, ["0", "1", "2", "3"]]
    assert told[5:] == [0] * 4


def test_an_idempotent_producer_sends_nothing_to_rocketmq(sides: list[Side]) -> None:
    """RocketMQ stores each repetition; ferromq announces that it stores one."""
    theirs, ours = sides
    with ferromq.Producer(theirs.endpoint, idempotent=True) as producer:
        for each in range(2):
            with pytest.raises(ferromq.Unsupported, match="does not announce"):
                producer.send("numbered", b"%d" % each)
    with ferromq.Producer(ours.endpoint, idempotent=True) as producer:
        assert producer.send("numbered", b"1").message_id


def test_receipts_name_the_brokers(sides: list[Side]) -> None:
    """RocketMQ's proxy names its brokers in routes, too."""
    for side in sides:
        with ferromq.Producer(side.endpoint) as producer:
            assert producer.send("numbered", b"1").broker_name


def test_our_consumer_has_several_topics_at_either_server(sides: list[Side]) -> None:
    """Each acknowledgement ends its own message; what follows is not among RocketMQ's answers over gRPC."""

    def program(side: Side) -> list[str]:
        with ferromq.Admin(side.namesrv, timeout=PATIENCE) as admin:
            for topic in ("mixed_one", "mixed_two"):
                admin.create_topic(topic, queues=1, message_type="NORMAL")
            admin.create_group("mixed")
        topics = {"mixed_one": "red", "mixed_two": ferromq.Sql("n > 1")}
        with ferromq.Consumer(side.endpoint, "mixed", topics, invisible_duration=10) as consumer:
            with ferromq.Producer(side.endpoint) as producer:
                producer.send("mixed_one", b"1", tag="red")
                producer.send("mixed_one", b"2", tag="blue")
                producer.send("mixed_two", b"3", properties={"n": "1"})
                producer.send("mixed_two", b"4", properties={"n": "2"})
            seen: list[str] = []
            until = time.monotonic() + PATIENCE
            while len(seen) < 2 and time.monotonic() < until:
                messages = consumer.receive(wait=20)
                consumer.ack(messages)
                seen += [f"{message.topic} {message.body.decode()}" for message in messages]
        return sorted(seen)

    assert _same(sides, program) == ["mixed_one 1", "mixed_two 4"]


def test_a_pull_past_the_end_of_a_queue_without_messages(sides: list[Side]) -> None:
    """PULL_OFFSET_MOVED over remoting; over gRPC, which RocketMQ has no pulls on, it is an error, too."""

    def program(side: Side) -> list[int]:
        with ferromq.Admin(side.namesrv, timeout=PATIENCE) as admin:
            admin.create_topic("empty", queues=1, message_type="NORMAL")
        fields = {"consumerGroup": "plain", "topic": "empty", "queueId": "0", "maxMsgNums": "1", "subVersion": "0"}
        fields |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}
        with contextlib.closing(RemotingClient()) as client:
            return [client.call(side.broker, PULL, {**fields, "queueOffset": offset}, timeout=20)[0] for offset in "05"]

    assert _same(sides, program) == [19, 21]
    with ferromq.Consumer(sides[1].endpoint, "plain", "empty") as consumer:
        queue = consumer.queues()[0]
        with pytest.raises(ferromq.RequestError, match="the offset 5 is out of range"):
            consumer.pull(queue, 5)


def test_a_transaction_has_one_end(sides: list[Side]) -> None:
    """A producer whose transaction was ended otherwise gets an error, at RocketMQ's proxy for the same end, too."""

    def program(side: Side) -> list[str]:
        with ferromq.Admin(side.namesrv, timeout=PATIENCE) as admin:
            admin.create_topic("ended", queues=1, message_type="TRANSACTION")
        seen = []
        with ferromq.Producer(side.endpoint, checker=lambda _: None, timeout=5) as producer:
            for resolution in (ferromq.Resolution.COMMIT, ferromq.Resolution.ROLLBACK):
                tx = producer.transaction()
                tx.send("ended", b"x")
                halves = list(tx._open.halves)
                (tx.commit if resolution is ferromq.Resolution.COMMIT else tx.rollback)()
                tx._open.halves, tx._open.resolution = halves, ferromq.Resolution.UNKNOWN
                try:
                    (tx.rollback if resolution is ferromq.Resolution.COMMIT else tx.commit)()
                except ferromq.RequestError:
                    seen.append(f"refused after {resolution.value}")
        return seen

    assert _same(sides, program) == ["refused after commit", "refused after rollback"]


def test_a_member_of_an_unknown_group_is_refused(sides: list[Side]) -> None:
    """Where groups are not created on first use: a receive and a loop end with the error, and do not go on for ever."""
    option, configure = "autoCreateSubscriptionGroup", 25
    with contextlib.closing(RemotingClient()) as client:
        for side in sides:
            assert client.call(side.broker, configure, {}, f"{option}=false\n".encode(), timeout=20)[0] == 0

    def program(side: Side) -> list[str]:
        seen = []
        with ferromq.Consumer(side.endpoint, "missing", "plain") as consumer:
            for call in (lambda: consumer.receive(wait=20), lambda: next(iter(consumer))):
                try:
                    call()
                except ferromq.FerromqError as error:
                    seen.append(type(error).__name__)
        return seen

    try:
        assert _same(sides, program) == ["GroupNotFound", "GroupNotFound"]
    finally:
        with contextlib.closing(RemotingClient()) as client:
            for side in sides:
                client.call(side.broker, configure, {}, f"{option}=true\n".encode(), timeout=20)


def test_a_compression_that_a_server_does_not_announce_is_refused_and_zlib_is_not(sides: list[Side]) -> None:
    """RocketMQ's gRPC has one word for compressed bodies, which its servers take for zlib."""
    original = sides[0]
    body = b"compressible " * 1_000
    with ferromq.Producer(original.endpoint, compress="lz4") as producer:
        for send in (
            producer.send,
            lambda *what: producer.submit(*what).result(),
            lambda *what: producer.send_all(what[0], [what[1]]),
        ):
            with pytest.raises(ferromq.Unsupported, match=r'lz4.*compress="zlib"'):
                send("plain", body)

    def program(side: Side) -> list[bool]:
        with ferromq.Admin(side.namesrv, timeout=PATIENCE) as admin:
            admin.create_topic("compressed", queues=1, message_type="NORMAL")
            admin.create_group("compressed")
        with ferromq.Producer(side.endpoint, compress="zlib", timeout=PATIENCE) as producer:
            producer.send("compressed", body)
        with ferromq.Consumer(side.endpoint, "compressed", "compressed") as consumer:
            [message] = consumer.receive(wait=PATIENCE)
            consumer.ack(message)
            return [message.body == body, len(message.raw_body) < 1_000]

    assert _same(sides, program) == [True, True]
