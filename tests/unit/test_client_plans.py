"""The client's plans, without I/O: run against a script."""

import math
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, cast

import pytest
from client_script import LOST, ONE, SEED, TWO, Server, request_of, sent

from ferromq import _ferromq
from ferromq._ferromq import Message, MessageView
from ferromq._proto import messages as pb
from ferromq.client import runner
from ferromq.client.direct_sends import Attempts
from ferromq.core import plans, pull_plans, receive_plans, send_plans
from ferromq.core.filters import filter_expression
from ferromq.core.receive_plans import Wish
from ferromq.core.requests import Call, Packets, Pause, Stream, error_of, may_be_one, named, seconds, transport_error
from ferromq.core.routes import endpoints_message
from ferromq.core.subscriptions import Subscription, filters_of
from ferromq.errors import (
    ConfigError,
    ConnectionFailed,
    FerromqError,
    Forbidden,
    GroupNotFound,
    IllegalFilter,
    IllegalName,
    LeaseExpired,
    MessageTooLarge,
    NotDurable,
    OutcomeUnknown,
    RequestError,
    RequestTimeout,
    ServerError,
    StoreFull,
    Throttled,
    TopicNotFound,
    Unsupported,
)
from ferromq.protocol.endpoints import parse_endpoints


def test_a_repeated_send_keeps_its_message_ids_and_changes_the_broker() -> None:
    """The broker that failed is avoided, the ids are the same, the pause grows, the route is asked for anew."""
    server = Server(ONE, TWO)
    server.queue_ids = {ONE: (0, 1, 2), TWO: (5,)}  # without avoiding, the next queue would be on ONE again
    server.script = [LOST, LOST, sent(2)]
    batch = server.run(send_plans.send(server.common, "orders", [b"1", b"2"]))
    sends = [call for call in server.calls if call.method == "SendMessage"]
    assert {call.endpoint for call in sends[:2]} == {ONE, TWO}
    ids = [[m.system_properties.message_id for m in request_of(call).messages] for call in sends]
    assert ids[0] == ids[1] == ids[2] == [batch.ids[0], batch.ids[1]]
    assert list(batch.queue_offsets) == [10, 11]
    assert server.methods().count("QueryRoute") == 3
    assert server.pauses == sorted(server.pauses)


def test_a_batch_that_rocketmqs_proxy_would_change_is_not_sent() -> None:
    """It takes plain messages together; those of a group, with a priority, or compressed it takes one by one."""
    server = Server()
    server.common.takes_batches = lambda _endpoint: False
    grouped: list[Message | bytes] = [Message(b"1", message_group="g"), Message(b"2", message_group="g")]
    urgent: list[Message | bytes] = [Message(b"1", priority=1), Message(b"2", priority=2)]
    server.script = [sent(2), sent(), sent()]
    server.run(send_plans.send(server.common, "orders", [b"1", b"2"]))
    server.run(send_plans.send(server.common, "orders", grouped[:1]))
    for together in (grouped, urgent):
        with pytest.raises(send_plans.MustPartError):
            server.run(send_plans.send(server.common, "orders", together))
    server.common.compression = "zlib"
    with pytest.raises(send_plans.MustPartError):
        server.run(send_plans.send(server.common, "orders", [b"1", b"2"]))
    server.run(send_plans.send(server.common, "orders", [b"1"]))
    assert server.methods().count("SendMessage") == 3
    server.common.takes_batches = lambda _endpoint: True
    server.script = [sent(2)]
    server.run(send_plans.send(server.common, "orders", grouped))


def test_a_send_that_keeps_failing_ends_with_the_last_error() -> None:
    """Once the timeout has passed."""
    server = Server()
    busy, bug = sent(code=pb.Code.TOO_MANY_REQUESTS), sent(code=pb.Code.INTERNAL_SERVER_ERROR, text="bug")
    server.script = [busy, busy, takes(server, 3.0, bug)]
    with pytest.raises(ServerError, match="bug") as caught:
        server.run(send_plans.send(server.common, "orders", [b"1"]))
    assert (caught.value.code, caught.value.remark) == (50001, "bug")
    assert not server.script


def test_a_slow_server_that_refuses_has_the_last_word() -> None:
    """A last try with less time than the server needs would end without its answer."""
    server = Server()

    def busy(call: Call) -> bytes | FerromqError:
        server.now += min(0.2, call.timeout)
        return sent(code=pb.Code.TOO_MANY_REQUESTS) if call.timeout >= 0.2 else RequestTimeout("no answer")

    server.script = [busy] * 30
    with pytest.raises(Throttled):
        server.run(send_plans.send(server.common, "orders", [b"1"], timeout=2.0))
    assert 1.5 <= server.now <= 2.0


def test_another_broker_is_asked_after_a_slow_failure() -> None:
    """It may be quick; so may be a busy one whose route took its time."""
    server = Server(ONE, TWO)
    server.script = [takes(server, 1.6, sent(code=pb.Code.INTERNAL_SERVER_ERROR)), sent()]
    server.run(send_plans.send(server.common, "orders", [b"1"], timeout=3.0))
    server.now, server.script = 0.0, [takes(server, 2.0, sent(code=pb.Code.TOO_MANY_REQUESTS)), sent()]
    server.run(send_plans.send(server.common, "orders", [b"1"], timeout=5.0))
    assert not server.script


def test_a_refused_send_without_time_for_another_ends_with_the_refusal() -> None:
    """Not with a timeout, which would leave open whether the message is stored."""
    refused = send_plans.Earlier(_ferromq.MessageIds(bytes(8), 1, 1, 1), ONE, Throttled("busy"))
    attempts = Attempts(cast("Any", None))
    assert attempts.left(1.0, refused) == 1.0
    with pytest.raises(Throttled, match="busy"):
        attempts.left(0.01, refused)


@pytest.mark.parametrize("refusal", [pb.Code.TOO_MANY_REQUESTS, pb.Code.INTERNAL_SERVER_ERROR, pb.Code.FORBIDDEN])
def test_a_refusal_does_not_undo_a_lost_answer(refusal: int) -> None:
    """The first try may have stored the message: the outcome stays unknown."""
    server = Server()
    server.script = [ConnectionFailed("the connection broke"), *[takes(server, 1.0, sent(code=refusal, text="no"))] * 9]
    with pytest.raises(ConnectionFailed, match="the connection broke") as caught:
        server.run(send_plans.send(server.common, "orders", [b"1"]))
    assert "no" in caught.value.__notes__[0]


def test_a_broker_that_was_never_reached_leaves_no_doubt() -> None:
    """Nothing was sent before the refusal, so the refusal is the answer."""
    server = Server()
    server.route_error = LOST
    server.script = [sent(code=pb.Code.FORBIDDEN, text="no")]
    plan = send_plans.send(server.common, "orders", [b"1"])
    with pytest.raises(ConnectionFailed):
        server.take(next(plan))
    assert isinstance(plan.throw(LOST), Pause)
    server.route_error = None
    with pytest.raises(Forbidden):
        server.run(plan)


def test_a_refusal_of_an_old_route_asks_for_a_new_one() -> None:
    """A queue was closed since: the message goes to another one, at once; a fresh route is not doubted."""
    server = Server()
    server.script = [sent(), sent(code=pb.Code.FORBIDDEN, text="closed"), sent()]
    server.run(send_plans.send(server.common, "orders", [b"1"]))
    server.queue_ids[ONE] = (1,)
    server.run(send_plans.send(server.common, "orders", [b"2"]))
    assert (len(server.calls), server.pauses, server.script) == (5, [], [])
    server.now += 60
    server.script = [sent(code=pb.Code.FORBIDDEN, text="closed")]
    with pytest.raises(Forbidden):
        server.run(send_plans.send(server.common, "orders", [b"3"]))


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_attempts_that_fail_at_once_go_on_until_the_timeout(attempts: int) -> None:
    """A restart of a second is ridden out; one attempt is one, and in the end it is over."""
    server = Server()
    server.common.attempts = attempts
    server.script = [lambda _: LOST if server.now < 2.0 else sent()] * 30
    if attempts > 1:
        server.run(send_plans.send(server.common, "orders", [b"1"]))
        assert 2.0 <= server.now <= 3.0
    server.now, server.script = 0.0, [LOST] * 30
    with pytest.raises(ConnectionFailed):
        server.run(send_plans.send(server.common, "orders", [b"1"]))
    assert server.now == (pytest.approx(3.0, abs=0.05) if attempts > 1 else 0.0)
    assert len(server.script) > 20


@pytest.mark.parametrize(("timeout", "limits"), [(10.0, {3.0}), (2.0, {2.0})])
def test_no_attempt_takes_more_than_three_seconds(timeout: float, limits: set[float]) -> None:
    """And no call, whatever hangs, more than its timeout: routes, settings, sends."""
    server = Server()
    hangs = RequestTimeout("no answer")

    def hang(call: Call) -> FerromqError:
        server.now += call.timeout
        return hangs

    server.script = [hang] * 9
    with pytest.raises(RequestTimeout):
        server.run(send_plans.send(server.common, "orders", [b"1"], timeout=timeout))
    assert timeout - 0.05 <= server.now <= timeout
    sends = [call for call in server.calls if call.method == "SendMessage"]
    assert max(call.timeout for call in sends) == pytest.approx(max(limits))


def test_a_broker_that_does_not_answer_is_avoided_for_a_while() -> None:
    """By messages that may go to any queue; its turn comes again."""
    server = Server(ONE, TWO)
    server.script = [lambda call: LOST if call.endpoint == ONE else sent()] * 30
    for _ in range(8):
        server.run(send_plans.send(server.common, "orders", [b"1"]))
    sends = [call.endpoint for call in server.calls if call.method == "SendMessage"]
    assert (sends.count(ONE), sends.count(TWO)) == (1, 8)
    server.now += 30
    server.script = [sent()] * 8
    for _ in range(8):
        server.run(send_plans.send(server.common, "orders", [b"1"]))
    assert [call.endpoint for call in server.calls[-9:]].count(ONE) > 1


def test_a_route_is_asked_for_at_every_broker_that_is_known() -> None:
    """The only given one may be absent."""
    server = Server(ONE, TWO)
    server.script = [sent()] * 2
    server.run(send_plans.send(server.common, "orders", [b"1"]))
    server.now = 31.0
    server.away = {SEED}
    server.run(send_plans.send(server.common, "orders", [b"1"]))
    asked = [call.endpoint for call in server.calls if call.method == "QueryRoute"]
    assert asked[:2] == [SEED, SEED]
    assert asked[2] in {ONE, TWO}


def test_new_clients_begin_at_any_queue() -> None:
    """Programs that send one message each do not fill the first one."""
    queues = set()
    for _ in range(60):
        server = Server()
        server.script = [sent()]
        queues.add(server.run(send_plans.send(server.common, "orders", [b"1"])).queue_id)
    assert queues == {0, 1}


@pytest.mark.parametrize(
    ("error", "one"),
    [
        (RequestError("odd key"), True),
        (MessageTooLarge("5 MiB"), True),
        (ServerError("bug"), False),
        (Throttled("busy"), False),
        (TopicNotFound("no"), False),
        (LOST, False),
    ],
)
def test_a_batch_is_taken_apart_only_after_a_sure_refusal(error: FerromqError, one: bool) -> None:
    """Messages that may be stored, or would be refused one by one, are not sent anew."""
    assert may_be_one(error) is one


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (pb.Code.TOPIC_NOT_FOUND, TopicNotFound),
        (pb.Code.MASTER_PERSISTENCE_TIMEOUT, NotDurable),
        (pb.Code.FORBIDDEN, Forbidden),
    ],
)
def test_a_clear_answer_is_not_asked_for_again(code: int, error: type[FerromqError]) -> None:
    """A refusal is final; a late success is not stored twice."""
    server = Server()
    server.script = [sent(code=code, text="why")]
    with pytest.raises(error, match="why"):
        server.run(send_plans.send(server.common, "orders", [b"1"]))
    assert server.pauses == []


def test_queues_take_turns_and_only_writable_ones() -> None:
    """Batches go round over the writable queues of all brokers."""
    server = Server(ONE, TWO)
    server.script = [sent()] * 8
    for _ in range(8):
        server.run(send_plans.send(server.common, "orders", [b"1"]))
    sends = [call for call in server.calls if call.method == "SendMessage"]
    places = [(call.endpoint, request_of(call).messages[0].system_properties.queue_id) for call in sends]
    assert places[:4] == places[4:]
    assert sorted(places[:4]) == [(ONE, 0), (ONE, 1), (TWO, 0), (TWO, 1)]


def test_an_old_route_is_fetched_again_and_kept_without_an_answer() -> None:
    """One question in 30 seconds; an old route is better than none."""
    server = Server()
    server.script = [sent()] * 4
    for now, questions in [(0.0, 1), (29.0, 1), (31.0, 2)]:
        server.now = now
        server.run(send_plans.send(server.common, "orders", [b"1"]))
        assert server.methods().count("QueryRoute") == questions
    server.now, server.route_error = 100.0, LOST
    server.run(send_plans.send(server.common, "orders", [b"1"]))
    with pytest.raises(ConnectionFailed):
        server.run(send_plans.send(server.common, "never-heard-of", [b"1"]))


def test_a_failed_message_of_a_batch_is_named() -> None:
    """Index and id are in the error."""
    server = Server()
    entries = [
        pb.SendResultEntry(status=pb.Status(code=pb.OK)),
        pb.SendResultEntry(status=pb.Status(code=pb.Code.ILLEGAL_MESSAGE_KEY, message="odd key")),
    ]
    response = pb.SendMessageResponse(status=pb.Status(code=pb.MULTIPLE_RESULTS), entries=entries)
    server.script = [response.SerializeToString()]
    with pytest.raises(RequestError, match=r"^message 257 \(id 01.{32}\): odd key"):
        server.run(send_plans.send(server.common, "orders", [b"1", b"2"], [256, 257]))


def test_a_failed_batch_is_named_by_its_messages() -> None:
    """Counted over all that were given."""
    server = Server()
    server.script = [sent(code=pb.Code.FORBIDDEN, text="why")]
    with pytest.raises(Forbidden, match=r"^messages 256 to 258: why"):
        server.run(send_plans.send(server.common, "orders", [b"x"] * 3, range(256, 259)))
    server.script = [sent(code=pb.Code.FORBIDDEN, text="why")]
    with pytest.raises(Forbidden, match=r"^3 of the messages 1 to 9: why"):
        server.run(send_plans.send(server.common, "orders", [b"x"] * 3, [1, 5, 9]))


def test_rocketmqs_single_result_for_a_batch_counts_up() -> None:
    """Java stores a batch as one and answers its first queue offset."""
    server = Server()
    server.script = [sent(1)]
    batch = server.run(send_plans.send(server.common, "orders", [b"1", b"2", b"3"]))
    assert list(batch.queue_offsets) == [10, 11, 12]


def test_a_body_over_the_servers_limit_is_not_sent() -> None:
    """The settings of the server count."""
    server = Server()
    server.common.max_body = 3
    for numbers, count, which in [(None, 1, "^"), ([300], 1, "^message 300: "), ([7, 301], 2, "^message 301: ")]:
        with pytest.raises(MessageTooLarge, match=f"{which}the body has 4 bytes; the limit is 3"):
            server.run(send_plans.send(server.common, "orders", [b"1"] * (count - 1) + [b"four"], numbers))
    assert "SendMessage" not in server.methods()


def test_an_illegal_name_is_refused_without_a_request() -> None:
    """The rule is known here."""
    server = Server()
    with pytest.raises(IllegalName, match="' '"):
        server.run(send_plans.send(server.common, "two words", [b"1"]))
    assert server.calls == []


class Keeper:
    """Leases nothing."""

    def ack_later(self, message: MessageView) -> None:
        """Do nothing."""

    def change_invisible_duration(self, message: MessageView, duration: timedelta) -> None:
        """Do nothing."""


def received(*bodies: bytes, code: int = pb.OK) -> Packets:
    """Return the answer to a receive, as RocketMQ streams it."""
    found = [
        pb.ReceiveMessageResponse(
            message=pb.Message(
                body=body, system_properties=pb.SystemProperties(message_id=body.decode(), receipt_handle="h")
            )
        )
        for body in bodies
    ]
    status = pb.ReceiveMessageResponse(status=pb.Status(code=code, message="why"))
    return Packets([part.SerializeToString() for part in (status, *found)], packed=False)


def receive(server: Server, wait: float = 5.0) -> list[MessageView]:
    """Run a receive."""
    subscription = Subscription("billing", {"orders": filter_expression("a||b")})
    return server.run(receive_plans.receive(server.common, subscription, Wish(32, wait, 30.0), Keeper()))


def test_a_receive_request_has_the_arguments() -> None:
    """Group, filter, batch, wait and lease are in the request; its deadline leaves room for the long poll."""
    server = Server()
    server.script = [received(b"1")]
    assert [message.body for message in receive(server)] == [b"1"]
    call = server.calls[-1]
    assert isinstance(call, Stream)
    assert call.timeout > 5.0
    request = pb.ReceiveMessageRequest.FromString(call.request)
    assert (request.group.name, request.message_queue.topic.name) == ("billing", "orders")
    assert (request.filter_expression.type, request.filter_expression.expression) == (pb.FilterType.TAG, "a||b")
    assert (request.batch_size, request.invisible_duration.seconds, request.long_polling_timeout.seconds) == (32, 30, 5)
    assert request.message_queue.broker.name == f"broker-{ONE}"


def takes(server: Server, duration: float, answer: Any) -> Callable[[Call], Any]:
    """Return an answer that takes time."""

    def later(_call: Call) -> Any:
        server.now += duration
        return answer

    return later


def test_an_empty_receive_is_an_empty_list() -> None:
    """No message in time is no error."""
    server = Server()
    server.script = [takes(server, 5.0, received(code=pb.Code.MESSAGE_NOT_FOUND))]
    assert receive(server) == []


def test_a_receive_goes_on_over_a_restart() -> None:
    """An absent broker is asked again until the wait is over."""
    server = Server()
    server.script = [*[LOST] * 6, received(b"back")]
    assert [message.body for message in receive(server, wait=20.0)] == [b"back"]
    server.script = [takes(server, 1.0, LOST)] * 50
    with pytest.raises(ConnectionFailed):
        receive(server, wait=20.0)


def test_a_receive_from_several_brokers_asks_each() -> None:
    """None is waited on for the whole wait while another may have messages."""
    server = Server(ONE, TWO)
    empty = received(code=pb.Code.MESSAGE_NOT_FOUND)
    server.script = [takes(server, 1.0, empty), takes(server, 1.0, empty), received(b"3")]
    assert len(receive(server)) == 1
    asked = [call for call in server.calls if call.method == "ReceiveMessage"]
    assert [call.endpoint for call in asked] in ([ONE, TWO, ONE], [TWO, ONE, TWO])
    waits = [pb.ReceiveMessageRequest.FromString(call.request).long_polling_timeout.seconds for call in asked]
    assert waits == [0, 0, 1]  # what one has is not held up by a long poll at one that has nothing


def test_a_receive_avoids_a_broker_that_did_not_answer_for_a_while() -> None:
    """The others are asked meanwhile; its turn comes again."""
    server = Server(ONE, TWO)

    def answer(call: Call) -> Any:
        return LOST if call.endpoint == ONE else received(b"1")

    server.script = [answer] * 60
    for _ in range(8):
        assert len(receive(server)) == 1
    asked = [call.endpoint for call in server.calls if call.method == "ReceiveMessage"]
    assert (asked.count(ONE), asked.count(TWO)) == (1, 8)
    server.now += 10
    for _ in range(2):
        receive(server)
    asked = [call.endpoint for call in server.calls if call.method == "ReceiveMessage"]
    assert asked.count(ONE) == 2


def test_a_receive_that_does_not_wait_asks_each_broker_once() -> None:
    """The second one's messages arrive."""
    server = Server(ONE, TWO)
    nothing = received(code=pb.Code.MESSAGE_NOT_FOUND)
    server.script = [nothing, received(b"1")]
    assert [message.body for message in receive(server, wait=0)] == [b"1"]
    server.script = [nothing, nothing]
    assert receive(server, wait=0) == []


def asked_of(server: Server) -> list[tuple[str, str, float]]:
    """Return topic, broker and wait of each receive."""
    requests = [
        (call.endpoint, pb.ReceiveMessageRequest.FromString(call.request))
        for call in server.calls
        if call.method == "ReceiveMessage"
    ]
    return [
        (request.message_queue.topic.name, endpoint, request.long_polling_timeout.ToTimedelta().total_seconds())
        for endpoint, request in requests
    ]


def test_a_receive_of_several_topics_asks_each_and_waits_at_one_after_the_other() -> None:
    """With the topic's own filter; between two waits each topic is asked at each broker."""
    server = Server(ONE, TWO)
    subscription = Subscription("billing", filters_of({"orders": "a", "prices": "b"}, "*"))
    empty = received(code=pb.Code.MESSAGE_NOT_FOUND)
    server.script = [lambda call: wait_at(server, call) or empty] * 40
    assert server.run(receive_plans.receive(server.common, subscription, Wish(32, 3.5, 30.0), Keeper())) == []
    asked = asked_of(server)
    sweep = [(topic, broker) for topic, broker, wait in asked[:4] if not wait]
    assert sorted(sweep) == [("orders", ONE), ("orders", TWO), ("prices", ONE), ("prices", TWO)]
    assert [wait for _, _, wait in asked[:10]] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    assert len({(topic, broker) for topic, broker, wait in asked if wait}) == 4
    filters = {
        request.message_queue.topic.name: request.filter_expression.expression
        for request in (
            pb.ReceiveMessageRequest.FromString(call.request)
            for call in server.calls
            if call.method == "ReceiveMessage"
        )
    }
    assert filters == {"orders": "a", "prices": "b"}


def test_a_receive_that_waits_at_all_brokers_asks_them_again_each_second() -> None:
    """A wait at a broker is over without a word when its connection breaks; it must not last for the whole receive."""
    server = Server(ONE, TWO)
    server.common.takes_records = lambda _endpoint: True
    empty = received(code=pb.Code.MESSAGE_NOT_FOUND)
    server.arrived = [[], [], [f"{TWO} orders"]]
    server.script = [empty, empty, received(b"1")]
    assert [message.body for message in receive(server, wait=60.0)] == [b"1"]
    assert server.arrives == [1.0, 1.0, 1.0]
    assert server.calls[-1].endpoint == TWO
    before = len(asked_of(server))
    server.script = [empty] * 6
    assert receive(server, wait=30.0) == []
    assert len(asked_of(server)) <= before + 6, "each is asked for messages at first, after 20 s, and at the end"


def wait_at(server: Server, call: Call) -> None:
    """Let the time of a receive's wait pass."""
    request = pb.ReceiveMessageRequest.FromString(call.request)
    server.now += request.long_polling_timeout.ToTimedelta().total_seconds()


def test_a_topic_that_is_never_empty_does_not_keep_another_one_waiting() -> None:
    """The next receive goes on where the last one ended."""
    server = Server()
    subscription = Subscription("billing", filters_of(["orders", "prices"], "*"))
    server.script = [received(b"1")] * 6
    for _ in range(6):
        server.run(receive_plans.receive(server.common, subscription, Wish(32, 5.0, 30.0), Keeper()))
    topics = [topic for topic, _, _ in asked_of(server)]
    assert (topics.count("orders"), topics.count("prices")) == (3, 3)


def test_several_topics_are_received_from_a_proxy_that_refuses_short_receives() -> None:
    """RocketMQ's waits for five seconds at least: each turn gets that time, as long as there is time."""
    server = Server()
    subscription = Subscription("billing", filters_of(["orders", "prices"], "*"))
    refused = pb.ReceiveMessageResponse(
        status=pb.Status(code=40000, message="The deadline time remaining is not enough for polling")
    )
    empty = received(code=pb.Code.MESSAGE_NOT_FOUND)

    def proxy(call: Call) -> Any:
        if call.timeout <= 5.0:
            return Packets([refused.SerializeToString()], packed=False)
        server.now += 5.0
        return empty

    server.script = [proxy] * 20
    wish = Wish(32, 20.0, 30.0)
    assert server.run(receive_plans.receive(server.common, subscription, wish, Keeper())) == []
    assert 15.0 <= server.now <= 22.8
    asked = [topic for topic, _, _ in asked_of(server)]
    assert min(asked.count("orders"), asked.count("prices")) >= 2
    for filters in (["orders", "prices"], ["orders"]):
        subscription = Subscription("billing", filters_of(filters, "*"))
        with pytest.raises(Unsupported, match=r"not enough for polling.*wait=3 or more"):
            server.run(receive_plans.receive(server.common, subscription, Wish(32, 1.0, 30.0), Keeper()))


def test_a_receive_that_the_proxy_answered_a_moment_too_early_is_empty() -> None:
    """What is left of the time is too short for another one, which RocketMQ's proxy refuses."""
    server = Server()
    subscription = Subscription("billing", filters_of(["orders"], "*"))
    status = pb.Status(code=40000, message="The deadline time remaining is not enough for polling")
    refused = pb.ReceiveMessageResponse(status=status).SerializeToString()
    empty = received(code=pb.Code.MESSAGE_NOT_FOUND)

    def proxy(call: Call) -> Any:
        if call.timeout < 5.0:
            return Packets([refused], packed=False)
        server.now += 4.97
        return empty

    server.script = [proxy] * 20
    assert server.run(receive_plans.receive(server.common, subscription, Wish(32, 5.0, 30.0), Keeper())) == []


def message_of(topic: str, message_id: str) -> MessageView:
    """Return a received message of a topic."""
    properties = pb.SystemProperties(message_id=message_id, receipt_handle="h")
    message = pb.Message(topic=pb.Resource(name=topic), body=b"", system_properties=properties)
    parts = (pb.ReceiveMessageResponse(status=pb.Status(code=pb.OK)), pb.ReceiveMessageResponse(message=message))
    _, messages, _ = _ferromq.decode_received([part.SerializeToString() for part in parts], False, Keeper(), ONE)  # noqa: FBT003
    return messages[0]


def test_acknowledgements_of_several_topics_name_the_topic_of_each_message() -> None:
    """A topic whose acknowledgements are refused takes nothing from the others."""
    server = Server()
    subscription = Subscription("billing", filters_of(["orders", "prices"], "*"))
    messages = [message_of("orders", "1"), message_of("prices", "2"), message_of("orders", "3")]
    good = pb.AckMessageResponse(status=pb.Status(code=pb.OK)).SerializeToString()
    bad = pb.AckMessageResponse(status=pb.Status(code=pb.Code.TOPIC_NOT_FOUND, message="why")).SerializeToString()
    server.script = [bad, good]
    refused = server.run(plans.ack(server.common, subscription, ONE, messages))
    assert [(message_id, type(error)) for message_id, error in refused] == [("1", TopicNotFound), ("3", TopicNotFound)]
    requests = [pb.AckMessageRequest.FromString(call.request) for call in server.calls if call.method == "AckMessage"]
    named = {request.topic.name: [entry.message_id for entry in request.entries] for request in requests}
    assert named == {"orders": ["1", "3"], "prices": ["2"]}


def offset_answer(code: int) -> bytes:
    """Return the answer to GetOffset."""
    return pb.GetOffsetResponse(status=pb.Status(code=code, message="why"), offset=7).SerializeToString()


def test_where_a_group_begins_is_told_once_before_the_first_receive_from_a_broker() -> None:
    """A broker that joins the topic later begins at its first message."""
    server = Server()
    subscription = Subscription("billing", filters_of("orders", "*"), "last")
    server.script = [offset_answer(pb.OK), received(b"1"), received(b"2")]
    for _ in range(2):
        server.run(receive_plans.receive(server.common, subscription, Wish(32, 5.0, 30.0), Keeper()))
    assert server.methods() == ["QueryRoute", "GetOffset", "ReceiveMessage", "ReceiveMessage"]
    server.brokers, server.queue_ids = (ONE, TWO), {ONE: (0, 1), TWO: (0, 1)}
    server.now += 60
    server.script = [lambda call: offset_answer(pb.OK) if call.method == "GetOffset" else received(b"3")] * 4
    while ("orders", f"broker-{TWO}") not in subscription.begun:
        server.run(receive_plans.receive(server.common, subscription, Wish(32, 5.0, 30.0), Keeper()))
    told = [call.metadata for call in server.calls if call.method == "GetOffset" and isinstance(call, Call)]
    assert told == [(("x-ferromq-begin", "last"),), (("x-ferromq-begin", "first"),)]


@pytest.mark.parametrize("answer", [offset_answer(pb.Code.OFFSET_NOT_FOUND), Unsupported("no GetOffset")])
def test_a_broker_that_does_not_know_where_to_begin_is_refused(answer: bytes | Exception) -> None:
    """Nothing is received from the wrong place."""
    server = Server()
    server.script = [answer]
    subscription = Subscription("billing", filters_of("orders", "*"), "last")
    with pytest.raises(Unsupported, match="begin= needs brokers of ferromq"):
        server.run(receive_plans.receive(server.common, subscription, Wish(32, 5.0, 30.0), Keeper()))
    assert "ReceiveMessage" not in server.methods()


@pytest.mark.parametrize(("code", "error"), [(pb.Code.CONSUMER_GROUP_NOT_FOUND, GroupNotFound), (40010, RequestError)])
def test_a_refused_receive_says_why(code: int, error: type[FerromqError]) -> None:
    """It is not repeated."""
    server = Server()
    server.script = [received(code=code)]
    with pytest.raises(error, match="why"):
        receive(server)


def hangs(server: Server) -> Callable[[Call | Stream], Any]:
    """Return an answer that does not come in the time of the call."""

    def hang(call: Call | Stream) -> FerromqError:
        server.now += call.timeout
        return RequestTimeout("hung")

    return hang


def pulled() -> Packets:
    """Return the answer to a pull that found nothing."""
    parts = (
        pb.PullMessageResponse(status=pb.Status(code=pb.Code.MESSAGE_NOT_FOUND)),
        pb.PullMessageResponse(next_offset=7),
    )
    return Packets([part.SerializeToString() for part in parts], packed=False)


@pytest.mark.parametrize("wait", [0.0, 8.0, 30.0])
def test_a_pull_ends_within_its_wait_and_the_timeout(wait: float) -> None:
    """Whatever hangs; its long polls together take no longer than the wait."""
    server = Server()
    server.script = [hangs(server)] * 30
    subscription = Subscription("billing", {"orders": filter_expression("*")})
    queue = pull_plans.Queue(f"broker-{ONE}", 0)
    plan = pull_plans.pull(server.common, subscription, queue, 0, Wish(32, wait, 0.0))
    with pytest.raises(RequestTimeout):
        server.run(plan)
    assert server.now <= wait + server.common.timeout + 0.001
    pulls = [call for call in server.calls if call.method == "PullMessage"]
    polls = [pb.PullMessageRequest.FromString(call.request).long_polling_timeout for call in pulls]
    assert [poll.ToTimedelta().total_seconds() for poll in polls] == [wait] + [0.0] * (len(pulls) - 1)


def test_a_pull_may_wait_longer_than_the_timeout() -> None:
    """A broker that answers at the end of the wait answered in time."""
    server = Server()
    server.script = [takes(server, 30.0, pulled())]
    subscription = Subscription("billing", {"orders": filter_expression("*")})
    queue = pull_plans.Queue(f"broker-{ONE}", 0)
    plan = pull_plans.pull(server.common, subscription, queue, 7, Wish(32, 30.0, 0.0))
    assert server.run(plan).next_offset == 7
    assert server.calls[-1].timeout > 30.0


def test_the_queues_of_a_topic_are_asked_for_within_the_timeout() -> None:
    """However many servers hang."""
    server = Server()
    server.common.endpoints = (SEED, ONE, TWO)
    hang = hangs(server)

    def route() -> Any:
        return hang(server.calls[-1])

    server.route = route  # type: ignore[method-assign]
    with pytest.raises(RequestTimeout):
        server.run(pull_plans.queues(server.common, Subscription("g", {"orders": filter_expression("*")})))
    assert server.now <= server.common.timeout + 0.001


def acked(*refused: tuple[str, int], code: int = pb.OK) -> bytes:
    """Return the answer to acknowledgements."""
    entries = [pb.AckMessageResultEntry(message_id=i, status=pb.Status(code=c, message="stale")) for i, c in refused]
    return pb.AckMessageResponse(status=pb.Status(code=code, message="why"), entries=entries).SerializeToString()


def test_acknowledgements_name_those_refused() -> None:
    """A stale handle is `LeaseExpired`; after a lost answer it may have been acknowledged, which is not known."""
    server = Server()
    server.script = [received(b"1", b"2")]
    messages = receive(server)
    subscription = Subscription("billing", {"orders": filter_expression("*")})
    server.script = [acked(("2", pb.Code.INVALID_RECEIPT_HANDLE), code=pb.MULTIPLE_RESULTS)]
    (refused,) = server.run(plans.ack(server.common, subscription, ONE, messages))
    assert refused[0] == "2"
    assert isinstance(refused[1], LeaseExpired)
    server.script = [LOST, acked(("2", pb.Code.INVALID_RECEIPT_HANDLE), code=pb.Code.INVALID_RECEIPT_HANDLE)]
    (refused,) = server.run(plans.ack(server.common, subscription, ONE, messages))
    assert refused[0] == "2"
    assert isinstance(refused[1], OutcomeUnknown)
    server.script = [acked(code=pb.Code.FORBIDDEN)]
    with pytest.raises(Forbidden):
        server.run(plans.ack(server.common, subscription, ONE, messages))


def test_a_changed_lease_has_a_new_handle() -> None:
    """The message is acknowledged by it from then on."""
    server = Server()
    server.script = [received(b"1")]
    (message,) = receive(server)
    response = pb.ChangeInvisibleDurationResponse(status=pb.Status(code=pb.OK), receipt_handle="new")
    server.script = [response.SerializeToString()]
    server.run(
        plans.change_invisible_duration(
            server.common, Subscription("g", {"t": filter_expression("*")}), message, 0.5, suspend=True
        )
    )
    request = pb.ChangeInvisibleDurationRequest.FromString(server.calls[-1].request)
    assert (request.receipt_handle, request.invisible_duration.nanos, request.suspend) == ("h", 500_000_000, True)
    assert message.receipt_handle == "new"


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (40002, "", IllegalName),
        (41301, "", MessageTooLarge),
        (42900, "", Throttled),
        (50001, "disk full: 5 bytes free", StoreFull),
        (50001, "", ServerError),
        (50400, "", RequestTimeout),
        (50402, "", NotDurable),
        (50500, "", Unsupported),
        (40000, "", RequestError),
        (99999, "", ServerError),
    ],
)
def test_every_code_has_its_exception(code: int, text: str, error: type[FerromqError]) -> None:
    """Exactly this class, with code and text, also after the message is added to it."""
    made = error_of(code, text)
    assert type(made) is error
    again = named(made, "message 7")
    assert type(again) is error
    assert str(again).startswith("message 7: ")
    if isinstance(again, RequestError):
        assert again.code == code


@pytest.mark.parametrize(
    ("code", "details", "error"),
    [
        ("DEADLINE_EXCEEDED", "", RequestTimeout),
        ("UNAVAILABLE", "Connection refused", ConnectionFailed),
        ("UNIMPLEMENTED", "", Unsupported),
        ("RESOURCE_EXHAUSTED", "CLIENT: Sent message larger than max (5 vs. 4)", MessageTooLarge),
        ("RESOURCE_EXHAUSTED", "too many requests under way", Throttled),
        ("INVALID_ARGUMENT", "group not found: g", GroupNotFound),
        ("INVALID_ARGUMENT", "there is no subscription data", RequestError),
        ("INTERNAL", "", OutcomeUnknown),
        ("UNKNOWN", "", OutcomeUnknown),
        ("ABORTED", None, OutcomeUnknown),
    ],
)
def test_every_failure_of_a_call_has_its_exception(code: str, details: str | None, error: type[FerromqError]) -> None:
    """A busy broker is no large message, and a call that broke may have done its work."""
    assert type(transport_error(code, details, ONE, "SendMessage", 3.0)) is error


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:0", "host:99999", ":8081"])
def test_an_endpoint_is_host_and_port(text: str) -> None:
    """Anything else is refused with an example."""
    with pytest.raises(ConfigError, match="8081"):
        parse_endpoints(text)


def test_endpoints_and_durations_are_read() -> None:
    """Several brokers, IPv6, timedelta or seconds."""
    assert parse_endpoints("a:1; [::1]:2") == ("a:1", "[::1]:2")
    assert endpoints_message(["[::1]:2"]).scheme == pb.AddressScheme.IPv6
    assert endpoints_message(["1.2.3.4:2"]).scheme == pb.AddressScheme.IPv4
    assert endpoints_message(["host:2"]).scheme == pb.AddressScheme.DOMAIN_NAME
    assert (seconds(timedelta(milliseconds=5)), seconds(2)) == (0.005, 2.0)
    with pytest.raises(ValueError, match="negative"):
        seconds(-1)


def test_the_smallest_packed_answer_is_understood() -> None:
    """An empty packet holds no response."""
    assert _ferromq.decode_received([b""], packed=True, lease=Keeper(), endpoint=ONE) == (None, [], None)


@pytest.mark.parametrize(
    ("expression", "position"),
    [("a |", 0), ("a | b", 0), ("|", 0), ("a ||", 4), ("|| a", 0), ("a || || b", 5), ("a || b|c", 5), ("a || *", 5)],
)
def test_tags_that_never_match_are_refused(expression: str, position: int) -> None:
    """With the position, and the separator of tags."""
    with pytest.raises(IllegalFilter, match=rf"position {position}\b") as caught:
        filter_expression(expression)
    assert "||" in str(caught.value)


@pytest.mark.parametrize("expression", ["*", "", " * ", "a", "a||b", " a || b ", "new-1 || new_2"])
def test_tags_that_match_are_taken(expression: str) -> None:
    """As they are written."""
    assert filter_expression(expression).expression == expression


class Late(Future[int]):
    """A future that ends between the end of a wait and the look at it."""

    def result(self, timeout: float | None = None) -> int:
        """Return the result of the second wait."""
        if self.done():
            return super().result(timeout)
        self.set_result(7)
        raise TimeoutError


def test_a_result_that_comes_at_the_end_of_the_wait_is_returned() -> None:
    """It was not in time for the wait, and is there."""
    assert runner._result(Late(), math.inf, None) == 7
    failed: Future[int] = Future()
    failed.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        runner._result(failed, math.inf, None)
