"""Sends of an idempotent producer, without I/O: the numbers of each attempt, and the queue that it goes to."""

import json
from typing import Any

import pytest
from client_script import LOST, ONE, TWO, Server, request_of, sent

from ferromq._ferromq import Message
from ferromq._proto import messages as pb
from ferromq.core import send_plans
from ferromq.core.numbering import SEQUENCE, Numbering
from ferromq.core.requests import Call, transport_error
from ferromq.core.routes import Queue
from ferromq.errors import ConfigError, ConnectionFailed, FerromqError, OutcomeUnknown, ServerError, Unsupported
from ferromq.message import Batch

REFUSED = sent(code=pb.Code.TOO_MANY_REQUESTS, text="busy")


def described(**fields: object) -> bytes:
    """Return the answer to DescribeBroker."""
    whole = {
        "code": 20000,
        "message": "OK",
        "name": "a",
        "cluster": "c",
        "broker_id": 0,
        "remoting": "h:1",
        "namesrv": [],
    }
    return json.dumps({**whole, **fields}).encode()


ANNOUNCED = described(dedup_window_ms=60_000)


def idempotent(*brokers: str) -> Server:
    """Return a server, and a client of it whose messages are numbered."""
    server = Server(*brokers)
    server.common.numbering = Numbering()
    return server


def run(server: Server, *script: Any, messages: list[Message | bytes] | None = None) -> Batch:
    """Send *messages* while the server answers as the script says."""
    server.script = [*script]
    batch = server.run(send_plans.send(server.common, "orders", messages or [b"1"]))
    assert not server.script
    return batch


def attempts(server: Server) -> list[tuple[str, int, list[str]]]:
    """Return endpoint, queue and numbers of each send."""
    found = []
    for call in server.calls:
        if call.method == "SendMessage":
            request = request_of(call)
            numbers = [message.user_properties[SEQUENCE] for message in request.messages]
            found.append((call.endpoint, request.messages[0].system_properties.queue_id, numbers))
    return found


def test_a_repetition_has_the_queue_and_the_numbers_of_the_lost_attempt() -> None:
    """Another broker, which a plain producer takes, does not know what the first one stored."""
    server = idempotent(ONE, TWO)
    run(server, ANNOUNCED, LOST, ANNOUNCED, LOST, ANNOUNCED, sent(2), messages=[b"1", b"2"])
    first, second, third = attempts(server)
    assert first == second == third
    writer = server.common.numbering.writer if server.common.numbering else ""
    assert first[2] == [f"{writer}/0/0/0", f"{writer}/0/0/1"]


def test_a_repetition_after_a_server_error_stays_in_its_queue() -> None:
    """The server may have failed after it stored the message."""
    server = idempotent(ONE, TWO)
    run(server, ANNOUNCED, sent(code=pb.Code.INTERNAL_SERVER_ERROR), ANNOUNCED, sent())
    first, second = attempts(server)
    assert first == second


def test_a_repetition_after_a_refusal_goes_to_another_broker() -> None:
    """Nothing is stored at the first one."""
    server = idempotent(ONE, TWO)
    run(server, ANNOUNCED, REFUSED, ANNOUNCED, sent())
    assert {endpoint for endpoint, *_ in attempts(server)} == {ONE, TWO}


def test_requests_under_way_at_once_have_different_partitions() -> None:
    """In one partition a later row that overtakes an earlier one would make it a duplicate."""
    numbering, queue = Numbering(), ("orders", "broker", 0)
    first, second = numbering.take(queue), numbering.take(queue)
    other = numbering.take(("orders", "broker", 1))
    assert len({first.number, second.number, other.number}) == 3
    numbering.release(queue, second)
    assert numbering.take(queue) is second


def test_the_rows_of_a_partition_rise() -> None:
    """Also after a send that failed."""
    server = idempotent(ONE)
    server.queue_ids = {ONE: (0,)}
    with pytest.raises(OutcomeUnknown):
        run(server, ANNOUNCED, *[LOST, ANNOUNCED] * 30)
    server.calls.clear()
    run(server, ANNOUNCED, sent(2), messages=[b"1", b"2"])
    run(server, sent())
    rows = [number.rpartition("/0/0/")[2] for *_, numbers in attempts(server) for number in numbers]
    assert rows == ["1", "2", "3"]


def test_the_error_of_a_lost_send_says_where_the_message_may_be() -> None:
    """And what helps."""
    server = idempotent(ONE)
    with pytest.raises(ConnectionFailed, match=r"queue \d of orders on the broker broker-10\.0\.0\.1.* longer timeout"):
        run(server, ANNOUNCED, *[LOST, ANNOUNCED] * 30)


def test_a_kept_queue_follows_its_broker_to_another_endpoint() -> None:
    """A broker may restart elsewhere."""
    server = Server(ONE)
    server.run(server.common.route("orders"))
    route = server.common.routes.fresh("orders")
    assert route is not None
    assert route.now_at(Queue(1, f"broker-{ONE}", "old:1")) == Queue(1, f"broker-{ONE}", ONE)
    assert route.now_at(Queue(1, "gone", "old:1")) == Queue(1, "gone", "old:1")


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (transport_error("UNIMPLEMENTED", "", ONE, "DescribeBroker", 1.0), Unsupported, "it is RocketMQ's"),
        (described(), Unsupported, "an older ferromq"),
        (described(dedup_window_ms=3000), ConfigError, "for 3 s .*raise dedup_window"),
    ],
)
def test_a_server_that_would_store_repetitions_gets_no_message(
    answer: object, error: type[FerromqError], text: str
) -> None:
    """The first send raises."""
    server = idempotent()
    with pytest.raises(error, match=text):
        run(server, answer)
    assert "SendMessage" not in server.methods()


def test_a_description_that_cannot_be_read_is_a_server_error() -> None:
    """Which is asked for again while there is time."""
    server = idempotent()
    with pytest.raises(ServerError, match="something else"):
        run(server, *[b"{}"] * 30)


def test_numbers_leave_a_message_as_it_is() -> None:
    """Its other fields are sent as without numbers."""
    messages: list[Message | bytes] = [
        Message(b"1", keys=["a", "b"], tag="t", properties={"p": "v"}),
        Message(b"2", message_group="g"),
        Message(b"3", delay=5.0),
        Message(b"4", delivery_timestamp=1_800_000_000_000),
        Message(b"5", priority=3),
        b"6",
    ]
    for message in messages:
        requests = []
        for server in (Server(ONE), idempotent(ONE)):
            server.queue_ids = {ONE: (0,)}
            server.common.wall = lambda: 1_700_000_000_000
            run(server, *[ANNOUNCED][: server.common.numbering is not None], sent(), messages=[message])
            call = server.calls[-1]
            assert isinstance(call, Call)
            request = request_of(call)
            request.messages[0].user_properties.pop(SEQUENCE, None)
            request.messages[0].system_properties.ClearField("message_id")
            request.messages[0].system_properties.ClearField("born_host")
            requests.append(request)
        assert requests[0] == requests[1]


def test_the_property_of_numbers_cannot_be_given() -> None:
    """It would be lost without a word."""
    with pytest.raises(ValueError, match="producer without idempotent=True"):
        run(idempotent(), ANNOUNCED, messages=[Message(b"1", properties={SEQUENCE: "w/0/0/0"})])


def test_a_bad_message_is_named() -> None:
    """As without numbers."""
    with pytest.raises(ValueError, match="message 1: the body is empty"):
        run(idempotent(), ANNOUNCED, messages=[b"1", b""])


def test_half_messages_are_not_numbered() -> None:
    """The store refuses a number in a transaction, and a half message is not repeated."""
    server = idempotent()
    draft = send_plans.Draft(send_plans.reserve_ids(server.common, 1), 0)
    server.script = [sent()]
    server.run(send_plans.send(server.common, "orders", [b"1"], half=draft))
    assert SEQUENCE not in request_of(server.calls[-1]).messages[0].user_properties


def test_the_writer_is_a_name_that_the_store_takes() -> None:
    """Each producer has its own."""
    names = {Numbering().writer, Numbering().writer}
    assert len(names) == 2
    assert all(name.startswith("producer-") and len(name) <= 128 for name in names)
