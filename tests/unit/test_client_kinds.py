"""The client's plans for message groups, delays and transactions, without I/O: run against a script."""

import base64
import gc
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from client_script import LOST, ONE, TWO, Server, request_of, sent
from hypothesis import given
from hypothesis import strategies as st

from ferromq._ferromq import Message, MessageView, queue_of_group
from ferromq._proto import messages as pb
from ferromq.client.session import Session, _Stream
from ferromq.client.transactions import Checks, Decisions, Open
from ferromq.core import send_plans
from ferromq.core.batching import MAX_MESSAGES, Linger, batches, in_order, is_ordered, lane_of
from ferromq.core.requests import Call, Plan, T
from ferromq.core.retry import InOrder
from ferromq.core.routes import Queue
from ferromq.core.send_plans import Half
from ferromq.errors import ConnectionFailed, OutcomeUnknown, RequestError, ServerError, Unsupported
from ferromq.message import Resolution, SendReceipt

lanes = st.sampled_from([{}, {"message_group": "a"}, {"message_group": "b"}, {"delay": 1}, {"priority": 3}])


def ended(code: int = pb.OK, text: str = "") -> bytes:
    """Return the answer to EndTransaction."""
    return pb.EndTransactionResponse(status=pb.Status(code=code, message=text)).SerializeToString()


def half_stored(transaction_id: str = "T1") -> bytes:
    """Return the answer to a half message."""
    entry = pb.SendResultEntry(status=pb.Status(code=pb.OK), offset=3, transaction_id=transaction_id)
    return pb.SendMessageResponse(status=pb.Status(code=pb.OK), entries=[entry]).SerializeToString()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"message_group": "g", "delay": 1}, ValueError, "not message_group and delay"),
        ({"priority": 1, "delivery_timestamp": 5}, ValueError, "not delivery_timestamp and priority"),
        ({"message_group": " "}, ValueError, "message group"),
        ({"message_group": "a\x01"}, ValueError, "control character"),
        ({"priority": -1}, ValueError, "0 or more"),
        ({"delay": 0}, ValueError, "more than zero"),
        ({"delay": timedelta(days=50)}, ValueError, "49 days"),
        ({"delay": "5s"}, TypeError, "timedelta"),
        ({"delivery_timestamp": datetime(2026, 1, 1)}, ValueError, "time zone"),  # noqa: DTZ001
        ({"delivery_timestamp": -1}, ValueError, "since 1970"),
        ({"delivery_timestamp": "noon"}, TypeError, "datetime"),
    ],
)
def test_an_impossible_delivery_is_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    """Two kinds at once, and values out of range, when the message is made."""
    with pytest.raises(error, match=text):
        Message(b"x", **options)


def test_a_message_says_how_it_is_delivered() -> None:
    """Its attributes and its representation."""
    when = datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=UTC)
    assert Message(b"x", delivery_timestamp=when).delivery_timestamp == 1_795_262_400_250
    assert Message(b"x", delay=1.5).delay == timedelta(seconds=1.5)
    assert Message(b"x", message_group="g").message_group == "g"
    assert Message(b"x", priority=7).priority == 7
    assert repr(Message(b"x", message_group="g")).endswith("message_group='g')")
    plain = Message(b"x")
    assert (plain.message_group, plain.delivery_timestamp, plain.delay, plain.priority, plain.lane) == (None,) * 5


@pytest.mark.parametrize(
    ("group", "places"),
    [("account-1", (0, 2, 7, 7)), ("account-2", (0, 1, 5, 13)), ("账户", (0, 2, 3, 3)), ("order-42", (0, 2, 5, 13))],
)
def test_a_message_group_has_the_queue_that_rocketmqs_clients_choose(group: str, places: tuple[int, ...]) -> None:
    """SipHash-2-4 as the Java, Go and Node clients have it; the numbers were made by another implementation."""
    assert tuple(queue_of_group(group, queues) for queues in (1, 3, 8, 16)) == places


def test_a_message_group_counts_queues_in_the_order_of_the_route() -> None:
    """Not in the order in which this client takes turns."""
    server = Server(TWO, ONE)
    server.queue_ids = {TWO: (0, 1), ONE: (0, 1)}
    server.script = [sent()] * 3
    for _ in range(3):
        server.run(send_plans.send(server.common, "orders", [Message(b"x", message_group="account-1")]))
    places = {(call.endpoint, request_of(call).messages[0].system_properties.queue_id) for call in server.calls[1:]}
    route = [Queue(0, "", TWO), Queue(1, "", TWO), Queue(0, "", ONE), Queue(1, "", ONE)]
    expected = route[queue_of_group("account-1", 4)]
    assert places == {(expected.endpoint, expected.queue_id)}


def test_a_message_group_stays_with_its_broker_when_that_fails() -> None:
    """Elsewhere it would be out of order."""
    server = Server(ONE, TWO)
    server.script = [LOST, LOST, sent()]
    server.run(send_plans.send(server.common, "orders", [Message(b"x", message_group="account-1")]))
    assert len({call.endpoint for call in server.calls if call.method == "SendMessage"}) == 1


@given(st.lists(lanes, max_size=700))
def test_a_request_has_one_kind_of_delivery_and_each_keeps_its_order(options: list[dict[str, Any]]) -> None:
    """Nothing is lost, numbers are those of the messages, and receipts come in the order of sending."""
    messages = [Message(b"%d" % number, **given) for number, given in enumerate(options)]
    parts = list(batches(messages))
    seen: dict[str | None, list[int]] = {}
    for part in parts:
        assert {lane_of(message) for message in part.messages} == {part.lane}
        assert len(part.messages) <= MAX_MESSAGES
        assert [messages[number] for number in part.numbers] == part.messages
        seen.setdefault(part.lane, []).extend(part.numbers)
    for lane, numbers in seen.items():
        assert numbers == [n for n, message in enumerate(messages) if message.lane == lane]
    server = Server()
    done = []
    for part in parts:
        server.script = [stored_at_their_number]
        done.append((part, server.run(send_plans.send(server.common, "t", part.messages, part.numbers))))
    assert [receipt.queue_offset for receipt in in_order(done)] == list(range(len(messages)))


def stored_at_their_number(call: Call) -> bytes:
    """Answer a send with the numbers in the bodies as queue offsets."""
    ok = pb.Status(code=pb.OK)
    entries = [pb.SendResultEntry(status=ok, offset=int(message.body)) for message in request_of(call).messages]
    return pb.SendMessageResponse(status=ok, entries=entries).SerializeToString()


def test_submitted_messages_of_different_deliveries_do_not_share_a_request() -> None:
    """A broker takes the queue of a request from its first message."""
    linger: Linger[int] = Linger(1.0)
    for number, options in enumerate([{}, {"message_group": "a"}, {"message_group": "b"}, {"message_group": "a"}]):
        linger.add("t", Message(b"x", **options), 1, number, 0.0)  # type: ignore[arg-type]
    gathered = {batch.lane: batch for batch in linger.all()}
    assert {lane: batch.futures for lane, batch in gathered.items()} == {None: [0], "group:a": [1, 3], "group:b": [2]}
    assert {lane for lane, batch in gathered.items() if batch.order} == {"group:a", "group:b"}
    assert [alone.order for alone in gathered["group:a"].apart()] == [("t", "group:a")] * 2
    assert not is_ordered(None)
    assert not is_ordered("delayed")


def test_a_recall_goes_to_the_broker_that_the_handle_names() -> None:
    """RocketMQ's first form of handles; one that cannot be read goes to the given endpoint."""
    handle = base64.urlsafe_b64encode(f"v1 orders broker-{TWO} 1795262400250 0A".encode()).decode().rstrip("=")
    ok = pb.RecallMessageResponse(status=pb.Status(code=pb.OK), message_id="0A").SerializeToString()
    server = Server(ONE, TWO)
    server.script = [ok, ok]
    assert server.run(send_plans.recall(server.common, SendReceipt("0A", 0, 0, "orders", handle))) == "0A"
    server.run(send_plans.recall(server.common, SendReceipt("0A", 0, 0, "orders", "another form")))
    assert [call.endpoint for call in server.calls if call.method == "RecallMessage"] == [TWO, "seed:8081"]
    request = pb.RecallMessageRequest.FromString(server.calls[1].request)
    assert (request.topic.name, request.recall_handle) == ("orders", handle)
    with pytest.raises(ValueError, match="only delayed"):
        server.run(send_plans.recall(server.common, SendReceipt("0A", 0, 0, "orders")))


def test_a_delay_counts_from_the_clients_clock() -> None:
    """So that an embedded broker's virtual clock makes it due."""
    server = Server()
    server.common.wall = lambda: 5_000
    server.script = [sent()]
    server.run(send_plans.send(server.common, "orders", [Message(b"x", delay=2)]))
    system = request_of(server.calls[-1]).messages[0].system_properties
    assert (system.born_timestamp.ToMilliseconds(), system.delivery_timestamp.ToMilliseconds()) == (5_000, 7_000)


class Tx:
    """A transaction against a script."""

    def __init__(self, *answers: Any) -> None:
        self.server = Server()
        self.server.script = list(answers)
        self.decisions = Decisions()
        self.open = Open(self.decisions)

    def send(self, message: Message | None = None) -> str:
        """Send a half message and return its id."""
        plan = self.open.send(self.server.common, "orders", message or Message(b"x"), 0)
        return self.server.run(plan).ids[0]

    def end(self, resolution: Resolution) -> None:
        """Decide, and send the end to the broker."""
        self.open.decide(resolution)
        self.server.run(self.open.end(self.server.common))


@pytest.mark.parametrize("resolution", [Resolution.COMMIT, Resolution.ROLLBACK])
def test_the_end_of_a_transaction_goes_to_the_broker_that_has_it(resolution: Resolution) -> None:
    """With topic, message id and the broker's transaction id; afterwards nothing is remembered."""
    tx = Tx(half_stored("T9"), ended())
    message_id = tx.send()
    assert tx.decisions.known(message_id) is Resolution.UNKNOWN
    tx.end(resolution)
    call = tx.server.calls[-1]
    request = pb.EndTransactionRequest.FromString(call.request)
    assert (call.endpoint, request.topic.name, request.transaction_id) == (ONE, "orders", "T9")
    assert (request.message_id, request.source) == (message_id, pb.TransactionSource.SOURCE_CLIENT)
    assert request.resolution == getattr(pb.TransactionResolution, resolution.name)
    assert tx.decisions.known(message_id) is None
    with pytest.raises(RuntimeError, match=resolution.value):
        tx.send()
    other = Resolution.ROLLBACK if resolution is Resolution.COMMIT else Resolution.COMMIT
    with pytest.raises(RuntimeError, match=resolution.value):
        tx.open.decide(other)


def test_a_commit_whose_answer_is_lost_is_decided_and_not_repeated() -> None:
    """The check-back settles it, and the error says so."""
    tx = Tx(half_stored(), LOST)
    message_id = tx.send()
    with pytest.raises(OutcomeUnknown) as caught:
        tx.end(Resolution.COMMIT)
    assert "is decided" in caught.value.__notes__[0]
    assert tx.decisions.known(message_id) is Resolution.COMMIT
    assert tx.server.methods().count("EndTransaction") == 1
    tx.server.script = [ended()]
    tx.end(Resolution.COMMIT)  # again, on purpose
    assert tx.decisions.known(message_id) is None


def test_a_commit_that_was_surely_refused_is_repeated() -> None:
    """A busy broker did nothing."""
    tx = Tx(half_stored(), ended(pb.Code.TOO_MANY_REQUESTS), ended())
    tx.send()
    tx.end(Resolution.COMMIT)
    assert tx.server.methods().count("EndTransaction") == 2


def test_a_half_message_that_may_be_stored_is_not_repeated_and_rolled_back_when_asked_for() -> None:
    """Two half messages with one id would both be committed."""
    tx = Tx(LOST)
    with pytest.raises(ConnectionFailed):
        tx.send()
    (call,) = [call for call in tx.server.calls if call.method == "SendMessage"]
    message_id = request_of(call).messages[0].system_properties.message_id
    assert tx.decisions.known(message_id) is Resolution.ROLLBACK


def test_a_half_message_that_was_refused_leaves_nothing_behind() -> None:
    """Nothing is stored, so no check-back comes."""
    tx = Tx(sent(code=pb.Code.FORBIDDEN, text="no"), sent(code=pb.Code.FORBIDDEN, text="no"))
    with pytest.raises(RequestError):
        tx.send()
    (message_id,) = {
        request_of(c).messages[0].system_properties.message_id for c in tx.server.calls[1:] if c.method == "SendMessage"
    }
    assert tx.decisions.known(message_id) is None


def test_a_broker_without_transactions_is_told_from_one_with() -> None:
    """An answer without a transaction id is no half message."""
    with pytest.raises(Unsupported, match="no transactions"):
        Tx(sent()).send()


def test_messages_of_a_transaction_are_ordinary_ones() -> None:
    """RocketMQ has no ordered, delayed or urgent half messages."""
    with pytest.raises(ValueError, match="no message group"):
        Tx().send(Message(b"x", delay=1))


def test_a_lost_transaction_is_left_to_the_checker() -> None:
    """A thread that died in the middle must not keep it open for ever."""
    tx = Tx(half_stored())
    message_id = tx.send()
    assert tx.decisions.known(message_id) is Resolution.UNKNOWN
    decisions = tx.decisions
    del tx
    gc.collect()
    assert decisions.known(message_id) is None


class Asked:
    """A client with scripted telemetry, and its check-backs."""

    def __init__(self, checker: Callable[[MessageView], Any]) -> None:
        self.server = Server()
        self.ended = threading.Event()
        self.session = SimpleNamespace(on_orphan=None, publish=lambda _topic: None)
        self.common = self.server.common
        self.decisions = Decisions()
        self.checks = Checks(self, self.decisions, checker)  # type: ignore[arg-type]

    def run(self, plan: Plan[T]) -> T:
        """Run a plan."""
        try:
            return self.server.run(plan)
        finally:
            self.ended.set()

    def ask(self, message_id: str = "M1", transaction_id: str = "T7") -> None:
        """Ask as a broker does."""
        message = pb.Message(topic=pb.Resource(name="orders"), body=b"half")
        message.system_properties.message_id = message_id
        command = pb.RecoverOrphanedTransactionCommand(message=message, transaction_id=transaction_id)
        self.session.on_orphan(TWO, command)


@pytest.mark.parametrize(("answer", "resolution"), [(Resolution.COMMIT, 1), (Resolution.ROLLBACK, 2)])
def test_the_checkers_answer_goes_to_the_broker_that_asked(answer: Resolution, resolution: int) -> None:
    """With the transaction id of the question."""
    seen: list[tuple[str, bytes]] = []

    def checker(message: MessageView) -> Resolution:
        seen.append((message.message_id, message.body))
        with pytest.raises(TypeError, match="no received one"):
            message.ack()
        return answer

    asked = Asked(checker)
    asked.server.script = [ended()]
    asked.ask()
    assert asked.ended.wait(10)
    asked.checks.close()
    (call,) = asked.server.calls
    request = pb.EndTransactionRequest.FromString(call.request)
    assert (call.endpoint, request.transaction_id, request.message_id) == (TWO, "T7", "M1")
    assert (request.resolution, request.source) == (resolution, pb.TransactionSource.SOURCE_SERVER_CHECK)
    assert seen == [("M1", b"half")]


def test_a_checker_that_fails_or_does_not_know_leaves_the_transaction_open(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is answered, the failure is logged, and the next one is checked."""
    answers = [Resolution.UNKNOWN, None, "commit", ValueError("database gone"), Resolution.COMMIT]

    def checker(_message: MessageView) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    asked = Asked(checker)
    asked.server.script = [ended()]
    for number in range(5):
        asked.ask(f"M{number}")
    assert asked.ended.wait(10)
    asked.checks.close()
    (call,) = asked.server.calls
    assert pb.EndTransactionRequest.FromString(call.request).message_id == "M4"
    assert "database gone" in caplog.text
    assert "ferromq.Resolution" in caplog.text


def test_what_this_process_decided_is_answered_without_the_checker() -> None:
    """An open one here stays open: its checker would look for a row that does not exist yet."""
    never: list[str] = []
    asked = Asked(lambda message: never.append(message.message_id))
    asked.server.script = [ended()]
    transaction = Open(asked.decisions)
    asked.decisions.begin("open", transaction)
    asked.decisions.decide("done", is_commit=True)
    asked.ask("open")
    asked.ask("done")
    assert asked.ended.wait(10)
    asked.checks.close()
    (call,) = asked.server.calls
    assert pb.EndTransactionRequest.FromString(call.request).message_id == "done"
    assert never == []
    assert transaction.resolution is Resolution.UNKNOWN


def test_a_refused_end_is_an_error() -> None:
    """The broker's text reaches the caller."""
    server = Server()
    server.script = [ended(pb.Code.INTERNAL_SERVER_ERROR, "bug")] * 30
    with pytest.raises(ServerError, match="bug"):
        server.run(
            send_plans.end_transaction(server.common, Half("M", "orders", "T", ONE), is_commit=True, is_checked=False)
        )


def test_rocketmqs_proxy_refuses_a_second_end_with_the_code_of_a_failure() -> None:
    """It is not repeated until the time is over."""
    tx = Tx(half_stored("T9"), ended(pb.Code.INTERNAL_SERVER_ERROR, "ProxyException: cannot found transaction data"))
    tx.send()
    with pytest.raises(RequestError, match="knows no open transaction of message") as refused:
        tx.end(Resolution.COMMIT)
    assert type(refused.value) is RequestError


def test_brokers_are_told_the_topics_of_a_producer_once_and_the_last_word_holds() -> None:
    """However many threads name topics at once: each send has the current topics."""
    session = Session(None, pb.Settings(publishing=pb.Publishing()), lambda _: None)  # type: ignore[arg-type]
    stream = _Stream("127.0.0.1:1", None, session._told, lambda *_: True, threading.Event())  # type: ignore[arg-type]
    session._streams["127.0.0.1:1"] = stream
    threads = [threading.Thread(target=session.publish, args=(f"t{number}",)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stream._outgoing.qsize() == 1
    encoded = stream._outgoing.get()
    assert encoded is not None
    session.publish("later")
    for told in (encoded(), encoded()):
        topics = pb.TelemetryCommand.FromString(told).settings.publishing.topics
        assert {topic.name for topic in topics} == {"later", *(f"t{number}" for number in range(20))}


def test_acknowledgements_of_others_are_not_kept() -> None:
    """Of an order only the last used message is: the next may be used once it is acknowledged."""
    in_order = InOrder()
    one, two, other = (
        cast(
            "MessageView",
            SimpleNamespace(topic="t", message_group=group, endpoint="b:1", queue_id=0, queue_offset=offset),
        )
        for group, offset in (("a", 0), ("a", 1), ("z", 9))
    )
    in_order.acknowledged(other)
    assert [in_order.may_use(one), in_order.may_use(two)] == [True, False]
    in_order.acknowledged(one)
    assert in_order.may_use(two)
    assert in_order._unacknowledged == {("b:1", "t", 0, 1)}


@pytest.mark.parametrize("group", [None, "g"])
def test_messages_of_different_topics_do_not_wait_for_each_other(group: str | None) -> None:
    """Though their queues have the same number, or their message groups the same name."""
    in_order = InOrder()
    places = [("orders", 0), ("prices", 0), ("orders", 1)]
    one, other, two = (
        cast(
            "MessageView",
            SimpleNamespace(topic=topic, message_group=group, endpoint="b:1", queue_id=0, queue_offset=offset),
        )
        for topic, offset in places
    )
    assert [in_order.may_use(message) for message in (one, other, two)] == [True, True, False]


def test_a_client_answers_its_stacks_and_refuses_to_verify() -> None:
    """Each answer has the request's nonce and goes to the asking broker."""
    session = Session(None, pb.Settings(), lambda _: None)  # type: ignore[arg-type]
    answers: list[pb.TelemetryCommand] = []
    session._streams["b:1"] = SimpleNamespace(answer=answers.append)  # type: ignore[assignment]
    ask = pb.TelemetryCommand(print_thread_stack_trace_command=pb.PrintThreadStackTraceCommand(nonce="1"))
    assert session._on_command("b:1", ask)
    verify = pb.TelemetryCommand(verify_message_command=pb.VerifyMessageCommand(nonce="2"))
    assert session._on_command("b:1", verify)
    threads, refused = answers
    assert threads.status.code == pb.OK
    assert threads.thread_stack_trace.nonce == "1"
    assert "test_a_client_answers_its_stacks" in threads.thread_stack_trace.thread_stack_trace
    assert (refused.status.code, refused.verify_message_result.nonce) == (pb.Code.NOT_IMPLEMENTED, "2")
    assert not session._on_command("b:1", pb.TelemetryCommand(reconnect_endpoints_command={"nonce": "3"}))
