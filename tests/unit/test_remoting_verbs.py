"""gRPC's verbs by remoting requests: what is asked of brokers, and what their answers become; no socket."""

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remoting_rig import BROKER, INFO, NUMBERS, TEXTS, FakeLinks, Rig, message, popped, receive_step, record, run, sent

from ferromq import _ferromq
from ferromq._proto import messages as pb
from ferromq.core.pull_plans import NoLease
from ferromq.core.remoting.handles import Handle, Popped
from ferromq.core.remoting.receives import tag_matches
from ferromq.core.request_plans import Answer
from ferromq.core.requests import Call, Stream, duration, resource
from ferromq.errors import (
    CorruptMessage,
    Forbidden,
    LeaseExpired,
    MessageTooLarge,
    RequestError,
    RequestTimeout,
    ServerError,
    Throttled,
    TopicNotFound,
    Unsupported,
)
from ferromq.message import Records
from ferromq.protocol.codes import RequestCode
from ferromq.protocol.properties import parse_properties

# --- handles -------------------------------------------------------------------------------------------------


@given(st.lists(NUMBERS, min_size=6, max_size=6), st.sampled_from("012"), NUMBERS, NUMBERS)
def test_handles_are_read_as_they_were_written(numbers: list[int], kind: str, offset: int, expiry: int) -> None:
    """All ten words."""
    words = [*map(str, numbers[:4]), kind, "broker-a", str(numbers[4]), str(numbers[5])]
    handle = Handle(" ".join(words), offset, expiry)
    assert Handle.parse(str(handle)) == handle
    assert (handle.queue_id, handle.offset) == (numbers[4], numbers[5])


@given(TEXTS | st.lists(st.sampled_from(["1", "x", "", "-2"]), max_size=12).map(" ".join))
def test_any_other_handle_is_an_expired_lease(text: str) -> None:
    """As of a message that came from another way; no other error."""
    try:
        assert str(Handle.parse(text)).split(" ")[4:6] == text.split(" ")[4:6]
    except LeaseExpired:
        return


def test_handles_name_the_topic_that_holds_the_message() -> None:
    """The retry topics of both forms; a changed lease has a new checkpoint, and the old places."""
    for kind, topic in (("0", "orders"), ("1", "%RETRY%billing_orders"), ("2", "%RETRY%billing+orders")):
        handle = Handle(f"7 1 2 3 {kind} broker-a 2 9", 5, 6)
        assert handle.fields("orders", "billing")["topic"] == topic
    changed = handle.changed({"popTime": "11", "invisibleTime": "12", "reviveQid": "13"}, 99)
    assert changed == Handle("9 11 12 13 2 broker-a 2 9", 5, 99)
    with pytest.raises(ServerError, match="three numbers"):
        handle.changed({"popTime": "11"}, 99)


@given(st.dictionaries(st.sampled_from(["popTime", "invisibleTime", "reviveQid", "startOffsetInfo"]), TEXTS))
def test_fields_of_a_pop_are_read_or_refused(fields: dict[str, str]) -> None:
    """No other error than those that become a `ServerError`."""
    try:
        Popped(fields, "broker-a").extra_info("orders", 0, 0)
    except (ValueError, KeyError):
        return
    assert {"popTime", "invisibleTime", "reviveQid"} <= fields.keys()


def test_extra_infos_have_the_checkpoints_of_their_queues() -> None:
    """By kind of topic and queue; without the field it is the first message of the queue."""
    fields = {"popTime": "1", "invisibleTime": "2", "reviveQid": "3"}
    told = Popped({**fields, "startOffsetInfo": "0 1 5;2 1 8", "orderCountInfo": "0 qo1%6 4;0 1 2"}, "b")
    assert told.extra_info("orders", 1, 6) == "5 1 2 3 0 b 1 6"
    assert told.extra_info("%RETRY%g+orders", 1, 9) == "8 1 2 3 2 b 1 9"
    with pytest.raises(ValueError, match="not in startOffsetInfo"):
        told.extra_info("%RETRY%g_orders", 1, 9)
    assert [told.times_before("orders", 1, offset) for offset in (6, 7)] == [4, 2]
    assert told.times_before("%RETRY%g+orders", 1, 9) is None
    old = Popped(fields, "b")
    assert [old.extra_info("orders", 1, offset).split(" ")[0] for offset in (6, 7)] == ["6", "6"]


# --- sends ---------------------------------------------------------------------------------------------------


def test_a_message_has_the_properties_of_rocketmqs_clients() -> None:
    """Each system property by its name there."""
    rig = Rig({RequestCode.SEND_MESSAGE_V2: (0, None, {"queueOffset": "4", "recallHandle": "h"}, b"")})
    given_message = message(tag="red", keys=["a", "b"], message_group="g", born_host="here", trace_context="t")
    given_message.user_properties["name"] = "value"
    given_message.system_properties.message_type = pb.MessageType.DELAY
    given_message.system_properties.delivery_timestamp.FromMilliseconds(1234)
    given_message.system_properties.born_timestamp.FromMilliseconds(77)
    (entry,) = sent(rig, given_message).entries
    assert (entry.offset, entry.message_id, entry.recall_handle) == (4, "ID0", "h")
    (fields,) = rig.links.fields(RequestCode.SEND_MESSAGE_V2)
    assert (fields["b"], fields["e"], fields["f"], fields["g"]) == ("orders", "1", "0", "77")
    assert parse_properties(fields["i"]) == {
        "name": "value",
        "TAGS": "red",
        "KEYS": "a b",
        "UNIQ_KEY": "ID0",
        "__SHARDINGKEY": "g",
        "TIMER_DELIVER_MS": "1234",
        "TRACE_CONTEXT": "t",
        "__BORNHOST": "here",
    }


@given(
    st.lists(
        st.tuples(st.binary(min_size=1, max_size=50), st.dictionaries(st.text("ab", min_size=1), st.text("xyé"))),
        min_size=2,
        max_size=9,
    )
)
def test_batches_are_in_javas_form(parts: list[tuple[bytes, dict[str, str]]]) -> None:
    """An independent reader finds all bodies and properties."""
    rig = Rig({RequestCode.SEND_BATCH_MESSAGE: (0, None, {"queueOffset": "10"}, b"")})
    messages = []
    for number, (body, properties) in enumerate(parts):
        messages.append(message(number, message_type=pb.MessageType.NORMAL))
        messages[-1].body = body
        messages[-1].user_properties.update(properties)
    response = sent(rig, *messages)
    assert [entry.offset for entry in response.entries] == [*range(10, 10 + len(parts))]
    ((_, fields, batch),) = rig.links.calls
    assert fields["m"] == "true"
    found = []
    while batch:
        size = int.from_bytes(batch[:4])
        record, batch = batch[:size], batch[size:]
        length = int.from_bytes(record[16:20])
        body, rest = record[20 : 20 + length], record[20 + length :]
        assert int.from_bytes(rest[:2]) == len(rest) - 2
        properties = parse_properties(rest[2:].decode())
        assert properties.pop("UNIQ_KEY") == f"ID{len(found)}"
        found.append((body, properties))
    assert found == parts


def test_what_a_batch_cannot_hold_is_sent_alone() -> None:
    """Delays and priorities, which RocketMQ ignores there, and more than 4 MiB; results stay in order."""
    fields = {"queueOffset": "0", "msgId": "7F00000100002A9F0000000000000010"}
    answer: Answer = (0, None, fields, b"")
    rig = Rig({RequestCode.SEND_BATCH_MESSAGE: answer, RequestCode.SEND_MESSAGE_V2: answer})
    kinds = [pb.MessageType.NORMAL, pb.MessageType.NORMAL, pb.MessageType.DELAY, pb.MessageType.NORMAL]
    response = sent(rig, *(message(number, message_type=kind) for number, kind in enumerate(kinds)))
    assert [code for code, _, _ in rig.links.calls] == [320, 310, 310]
    assert [entry.message_id for entry in response.entries] == ["ID0", "ID1", "ID2", "ID3"]
    big = [message(number, message_type=pb.MessageType.FIFO) for number in range(3)]
    for each in big:
        each.body = bytes(2 << 20)
    rig.links.calls.clear()
    sent(rig, *big)
    assert [code for code, _, _ in rig.links.calls] == [310, 310, 310]


@pytest.mark.parametrize(
    ("ids", "places"),
    [
        ("7F00000100002A9F0000000000000010", [None, None]),
        ("7F00000100002A9F0000000000000010,7F00000100002A9F0000000000000020", None),
        ("7F00000100002A9F0000000000000010,7F00000200002A9F0000000000000020", [None, None]),
        ("7F00000100002A9F0000000000000010,7F000001", [None, None]),
        ("not an id,neither", [None, None]),
        ("", [None, None]),
    ],
)
def test_receipts_have_the_second_ids_of_an_answer_that_names_all(ids: str, places: list[str | None] | None) -> None:
    """RocketMQ joins those of a batch by commas. Of an answer that names fewer none is taken."""
    rig = Rig({RequestCode.SEND_BATCH_MESSAGE: (0, None, {"queueOffset": "5", "msgId": ids}, b"")})
    answer = sent(rig, message(0), message(1)).SerializeToString()
    records = Records(*_ferromq.decode_sent(answer)[-1])
    found = [place and place.hex().upper() for place in map(records.place, range(2))]
    assert found == (ids.split(",") if places is None else places)
    assert records.durability == "written"


def test_half_messages_are_named_by_their_places() -> None:
    """The transaction id has what the end of the transaction must tell."""
    fields = {"queueOffset": "5", "msgId": "7F00000100002A9F0000000000000010", "transactionId": "tx.1"}
    rig = Rig({RequestCode.SEND_MESSAGE_V2: (0, None, fields, b"")})
    half = message(message_type=pb.MessageType.TRANSACTION, orphaned_transaction_recovery_duration=duration(9))
    (entry,) = sent(rig, half).entries
    (asked,) = rig.links.fields(RequestCode.SEND_MESSAGE_V2)
    assert (asked["a"], asked["f"]) == ("orders", "4")
    properties = parse_properties(asked["i"])
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "orders")
    assert properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "9"
    request = pb.EndTransactionRequest(
        topic=resource("orders"),
        message_id="ID0",
        transaction_id=entry.transaction_id,
        resolution=pb.TransactionResolution.ROLLBACK,
    )
    rig.call("EndTransaction", request, pb.EndTransactionResponse)
    (end,) = rig.links.fields(RequestCode.END_TRANSACTION)
    assert (end["tranStateTableOffset"], end["commitLogOffset"], end["transactionId"]) == ("5", "16", "tx.1")
    assert (end["commitOrRollback"], end["fromTransactionCheck"], end["producerGroup"]) == ("12", "false", "orders")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"DELAY": "3"}, RequestError),
        ({"": "x"}, RequestError),
        ({"a\x01b": "x"}, RequestError),
        ({"a": "x\x02TAGS\x01y"}, RequestError),
        ({"a": "x" * 40_000}, MessageTooLarge),
    ],
)
def test_properties_that_a_broker_would_misread_are_refused(change: dict[str, str], error: type[Exception]) -> None:
    """Before anything is sent."""
    rig = Rig()
    wrong = message()
    wrong.user_properties.update(change)
    with pytest.raises(error, match="message 1: "):
        sent(rig, message(), wrong)
    assert not rig.links.calls


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (10, pb.Code.MASTER_PERSISTENCE_TIMEOUT),
        (11, pb.Code.HA_NOT_AVAILABLE),
        (12, pb.Code.SLAVE_PERSISTENCE_TIMEOUT),
    ],
)
def test_stored_messages_that_are_not_durable_are_told(code: int, outcome: pb.Code) -> None:
    """They have an offset, and are not sent again."""
    rig = Rig({RequestCode.SEND_MESSAGE_V2: (code, "late", {"queueOffset": "3"}, b"")})
    assert sent(rig, message()).status.code == outcome


def test_refusals_have_the_errors_of_their_codes() -> None:
    """What another try may mend, and what not."""
    for code, error in ((2, Throttled), (14, ServerError), (16, Forbidden), (17, TopicNotFound), (215, Throttled)):
        rig = Rig({RequestCode.SEND_MESSAGE_V2: (code, "why", {}, b"")})
        with pytest.raises(error, match=r"10\.0\.0\.1:10911 refused SEND_MESSAGE_V2: why"):
            sent(rig, message())
    rig = Rig({RequestCode.SEND_MESSAGE_V2: (0, None, {"queueOffset": "x"}, b"")})
    with pytest.raises(ServerError, match="queueOffset='x'"):
        sent(rig, message())
    with pytest.raises(Unsupported, match="Unknown is no verb"):
        rig.bridge.answer(Call(BROKER, "Unknown", b"", 1.0))


# --- receives ------------------------------------------------------------------------------------------------


def test_a_pop_asks_for_what_the_receive_wants() -> None:
    """By the broker's clock, at most 32, and with the group's order."""
    settings = pb.Settings(subscription=pb.Subscription(fifo=True))
    rig = Rig({RequestCode.POP_MESSAGE: (210, "none", {}, b"")}, settings)
    (response,) = rig.receive(tags="a || b")
    assert response.status.code == pb.Code.MESSAGE_NOT_FOUND
    (fields,) = rig.links.fields(RequestCode.POP_MESSAGE)
    assert fields == {
        "consumerGroup": "billing",
        "topic": "orders",
        "queueId": "-1",
        "maxMsgNums": "32",
        "order": "true",
        "invisibleTime": "30000",
        "pollTime": "20000",
        "bornTime": "0",
        "initMode": "1",
        "expType": "TAG",
        "exp": "a || b",
        "attemptId": "again",
    }


def test_a_broker_with_too_many_waiting_receives_is_asked_later() -> None:
    """Else a loop would ask it without a pause."""
    rig = Rig({RequestCode.POP_MESSAGE: (209, "polling full", {}, b"")})
    with pytest.raises(Throttled):
        rig.receive()


def ack_request(*handles: str) -> pb.AckMessageRequest:
    """Return a request that acknowledges messages."""
    entries = [pb.AckMessageEntry(message_id=f"ID{n}", receipt_handle=handle) for n, handle in enumerate(handles)]
    return pb.AckMessageRequest(group=resource("billing"), topic=resource("orders"), entries=entries)


def test_an_expired_lease_is_refused_by_the_clock_of_the_client() -> None:
    """A broker of RocketMQ answers it with success, and delivers the message again."""
    rig = Rig()
    handles = [str(Handle(INFO, 5, expiry_ms)) for expiry_ms in (100_001, 100_000)]
    response = rig.call("AckMessage", ack_request(*handles, "nonsense"), pb.AckMessageResponse)
    codes = [entry.status.code for entry in response.entries]
    stale = pb.Code.INVALID_RECEIPT_HANDLE
    assert (codes, response.status.code) == ([pb.Code.OK, stale, stale], pb.Code.MULTIPLE_RESULTS)
    assert "ended 0 s ago" in response.entries[1].status.message
    assert len(rig.links.fields(RequestCode.ACK_MESSAGE)) == 1


@pytest.mark.parametrize("code", [13, 208])
def test_a_refused_handle_is_an_expired_lease(code: int) -> None:
    """For acknowledgements and changes."""
    answers: dict[int, Answer | None] = dict.fromkeys((200_051, 200_053), (code, "gone", {}, b""))
    rig = Rig(answers)
    handle = str(Handle(INFO, 5, 999_999))
    response = rig.call("AckMessage", ack_request(handle), pb.AckMessageResponse)
    assert response.status.code == pb.Code.INVALID_RECEIPT_HANDLE
    request = pb.ChangeInvisibleDurationRequest(
        group=resource("billing"), topic=resource("orders"), receipt_handle=handle, invisible_duration=duration(5)
    )
    with pytest.raises(LeaseExpired, match="gone"):
        rig.call("ChangeInvisibleDuration", request, pb.ChangeInvisibleDurationResponse)


def given_up(plan: Generator[Any, Any, Any], links: FakeLinks, answer: Answer, *, is_late: bool) -> None:
    """Give a plan up that waits for a pop, before or after its answer."""
    next(plan)
    (future,) = links.open_calls
    if is_late:
        plan.close()
    future.set_result(answer)
    plan.close()


@pytest.mark.parametrize("is_late", [True, False])
def test_messages_of_a_receive_that_was_given_up_are_given_back(
    is_late: bool,
) -> None:
    """Whether they came before its end or after: else they would wait for the end of their leases."""
    rig = Rig({RequestCode.POP_MESSAGE: None})
    answer = popped(record(offset=4), record(offset=5))
    given_up(rig.bridge.answer(receive_step()), rig.links, answer, is_late=is_late)
    changed = rig.links.fields(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    assert [(fields["offset"], fields["invisibleTime"]) for fields in changed] == [("4", "1000"), ("5", "1000")]


def test_other_tags_are_acknowledged_and_failed_messages_become_dead_letters() -> None:
    """As of RocketMQ's proxy: brokers compare hashes of tags, and count attempts without an end."""
    records = [record(offset=0, tag="a"), record(offset=1, tag="b"), record(offset=2, tag="a", times=3)]
    rig = Rig({RequestCode.POP_MESSAGE: popped(*records)})
    _, only = rig.receive(tags="a")
    system = only.message.system_properties
    assert (system.queue_offset, system.delivery_attempt, system.tag) == (0, 1, "a")
    handle = Handle.parse(system.receipt_handle)
    assert (handle.offset, handle.expiry_ms, handle.words[5]) == (0, 130_000, "broker-a")
    assert [fields["offset"] for fields in rig.links.fields(RequestCode.ACK_MESSAGE)] == ["1", "2"]
    (back,) = rig.links.fields(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert (back["delayLevel"], back["group"], back["originTopic"]) == ("-1", "billing", "orders")


@pytest.mark.parametrize("verb", ["receive", "pull"])
def test_a_damaged_body_fails_when_it_is_read_and_holds_up_no_other_message(verb: str) -> None:
    """An error of the whole answer would come again with each try."""
    good, damaged = record(offset=0), record(offset=1).replace(b"body", b"BODY")
    if verb == "receive":
        rig = Rig({RequestCode.POP_MESSAGE: popped(good, damaged, record(offset=2))})
        responses = [response.SerializeToString() for response in rig.receive()]
    else:
        answer = (0, None, {"nextBeginOffset": "3"}, good + damaged + record(offset=2))
        rig = Rig({RequestCode.PULL_MESSAGE: answer})
        request = pb.PullMessageRequest(message_queue=pb.MessageQueue(topic=resource("orders")), batch_size=9)
        responses = run(rig.bridge.answer(Stream(BROKER, "PullMessage", request.SerializeToString(), 5.0))).packets
    _, views, _ = _ferromq.decode_received(responses, packed=False, lease=NoLease(), endpoint=BROKER)
    assert [view.raw_body for view in views] == [b"body", b"BODY", b"body"]
    assert (views[0].body, views[2].body) == (b"body", b"body")
    with pytest.raises(CorruptMessage, match=r"topic orders, queue 0, offset 1: .*checksum"):
        _ = views[1].body


def test_records_whose_lengths_are_wrong_are_an_error_of_the_answer() -> None:
    """The client cannot tell where the next one begins."""
    rig = Rig({RequestCode.POP_MESSAGE: popped(record(), record()[:-1])})
    with pytest.raises(ServerError, match=r"10\.0\.0\.1:10911 answered with bytes that are no records"):
        rig.receive()


def test_a_group_that_reads_dead_letters_gets_them_whatever_their_attempts() -> None:
    """They have had all of another group's."""
    rig = Rig({RequestCode.POP_MESSAGE: popped(record(topic="%DLQ%other", times=16))})
    _, letter = rig.receive(topic="%DLQ%other")
    assert letter.message.system_properties.delivery_attempt == 1


@pytest.mark.parametrize(
    ("expression", "tag", "matches"),
    [("*", None, True), ("a || b", "b", True), ("a||b", "c", False), ("a", None, False), ("", "x", True)],
)
def test_tags_match_by_their_names(expression: str, tag: str | None, matches: bool) -> None:
    """Not by their hashes."""
    wanted = pb.FilterExpression(type=pb.FilterType.TAG, expression=expression)
    assert tag_matches(wanted, tag) is matches


def test_a_group_begins_where_its_first_pop_says() -> None:
    """At the first message or the end; a time is no mode of a pop."""
    rig = Rig({RequestCode.POP_MESSAGE: (210, "", {}, b"")})
    queue = pb.MessageQueue(topic=resource("orders"))
    request = pb.GetOffsetRequest(group=resource("billing"), message_queue=queue).SerializeToString()
    for start, mode in (("first", "0"), ("last", "1")):
        run(rig.bridge.answer(Call(BROKER, "GetOffset", request, 1.0, (("x-ferromq-begin", start),))))
        rig.receive()
        assert rig.links.fields(RequestCode.POP_MESSAGE)[-1]["initMode"] == mode
    with pytest.raises(Unsupported, match="resetOffsetByTime"):
        run(rig.bridge.answer(Call(BROKER, "GetOffset", request, 1.0, (("x-ferromq-begin", "1700"),))))


@pytest.mark.parametrize(("wait", "timeout", "limit"), [(20, 22.8, 20.2), (20, 3.0, 2.0), (1, 1.0, 0.5)])
def test_a_pull_waits_as_long_as_it_may_and_then_asks_without_a_wait(wait: int, timeout: float, limit: float) -> None:
    """RocketMQ's broker ends waits every 5 s only; the second answer tells it from one that hangs."""
    rig = Rig({RequestCode.PULL_MESSAGE: None})
    request = pb.PullMessageRequest(
        message_queue=pb.MessageQueue(topic=resource("orders")), offset=7, long_polling_timeout=duration(wait)
    )
    plan = rig.bridge.answer(Stream(BROKER, "PullMessage", request.SerializeToString(), timeout))
    next(plan)
    rig.now += limit
    rig.links.answers[RequestCode.PULL_MESSAGE] = (19, "", {"nextBeginOffset": "7"}, b"")
    step = plan.throw(RequestTimeout("no answer"))
    with pytest.raises(StopIteration) as ended:
        plan.send(step.future.result(0))
    assert pb.PullMessageResponse.FromString(ended.value.value.packets[-1]).next_offset == 7
    assert rig.links.timeouts == pytest.approx([limit, timeout - limit])
    flags = [(fields["sysFlag"], fields["suspendTimeoutMillis"]) for fields in rig.links.fields(11)]
    assert flags == [("6", str(wait * 1000)), ("4", "0")]


@pytest.mark.parametrize(("asked", "found"), [("", "TOOLS_CONSUMER"), ("billing", "billing")])
def test_a_reader_pulls_in_the_group_of_rocketmqs_tools(asked: str, found: str) -> None:
    """It leaves no group behind; an offset beyond the queue is told with its range."""
    moved = {"minOffset": "3", "maxOffset": "5", "nextBeginOffset": "3"}
    rig = Rig({RequestCode.PULL_MESSAGE: (21, "", moved, b"")})
    request = pb.PullMessageRequest(group=resource(asked), offset=1)
    answer = run(rig.bridge.answer(Stream(BROKER, "PullMessage", request.SerializeToString(), 3.0)))
    (fields,) = rig.links.fields(RequestCode.PULL_MESSAGE)
    assert fields["consumerGroup"] == found
    status = pb.PullMessageResponse.FromString(answer.packets[0]).status
    assert (status.code, status.message) == (
        pb.Code.ILLEGAL_OFFSET,
        "offset 1 is out of range: the queue has the offsets 3 to 5",
    )
