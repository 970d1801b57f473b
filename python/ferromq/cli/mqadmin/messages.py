"""The commands of `mqadmin` that send, find and print messages."""

import os
import random
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ferromq._ferromq import MessageIds, StoredMessage, decode_records
from ferromq.admin import messages
from ferromq.admin.dead_letters import fields_again
from ferromq.cli.administration.output import FAILED, Missing, fail
from ferromq.cli.mqadmin.clients import connections_of, running
from ferromq.cli.mqadmin.groups import consumed
from ferromq.cli.mqadmin.options import LITE_PARENT, Command, Given, flag, may, must
from ferromq.cli.mqadmin.running_info import is_push
from ferromq.cli.mqadmin.session import Session, file_name, java
from ferromq.cli.mqadmin.times import HOUR_MS, parsed, second, stamp
from ferromq.cli.mqadmin.topics import groups_of
from ferromq.errors import (
    ConfigError,
    CorruptMessage,
    Forbidden,
    OutcomeUnknown,
    RequestError,
    ServerError,
    Unsupported,
)
from ferromq.protocol import java_json, message_traces, naming
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.properties import format_properties
from ferromq.protocol.route import MASTER, Permission

_FIELD = "{:<20} {}"
_SENT = "{:<32}  {:<4}  {:<20}    {}"
_FOUND = "{:<50} {:>4} {:>40} {}"
_TRACED = "{:<10} {:<20} {:<20} {:<20} {:<10} {:<10}"
_TRACED_HEAD = ("#Type", "#CostTimes", "#Status")
_STATUS = {
    ResponseCode.SUCCESS: "SEND_OK",
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
}
_PULLED = {
    ResponseCode.SUCCESS: "FOUND",
    ResponseCode.PULL_NOT_FOUND: "NO_NEW_MSG",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "NO_MATCHED_MSG",
    ResponseCode.PULL_OFFSET_MOVED: "OFFSET_ILLEGAL",
}
_WITH_SUBSCRIPTION = 1 << 2
_PAGE = 32
_UNIQUE_KEY = "UNIQ_KEY"
_MOST_ALIKE = 32
_BODIES = Path("/tmp/rocketmq/msgbodys")  # noqa: S108 (RocketMQ's place; it is made for its owner alone)


class Queue(NamedTuple):
    """A queue of a topic at a broker."""

    topic: str
    broker: str
    number: int
    address: str

    def __str__(self) -> str:
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker}, queueId={self.number}]"


class Pulled(NamedTuple):
    """The answer to a pull."""

    status: str
    following: int
    least: int
    end: int
    records: list[tuple[StoredMessage, int, int]]
    """Each with its size and the checksum of its body."""


def pull(session: Session, queue: Queue, offset: int, count: int, expression: str = "*") -> Pulled:
    """Return messages of a queue from an offset on, without a lease."""
    fields = {
        "consumerGroup": naming.TOOLS_GROUP,
        "topic": queue.topic,
        "queueId": str(queue.number),
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": str(_WITH_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": expression,
        "expressionType": "TAG",
        "subVersion": "0",
    }
    request = RequestCode.PULL_MESSAGE
    code, header, body = session.calls.exchange(queue.address, request, fields, tuple(_PULLED))
    following, least, end = session.decoded(
        queue.address, request, lambda: [int(header[f"{name}Offset"]) for name in ("nextBegin", "min", "max")]
    )
    records = session.decoded(queue.address, request, _records, body) if code == ResponseCode.SUCCESS else []
    tags = {tag.strip() for tag in expression.split("||")}
    # Brokers compare the hashes of tags.
    wanted = [each for each in records if "*" in tags or each[0].tag in tags]
    return Pulled(_PULLED[ResponseCode(code)], following, least, end, wanted)


def _records(body: bytes) -> list[tuple[StoredMessage, int, int]]:
    records, place = [], 0
    for message in decode_records(body):
        size = int.from_bytes(body[place : place + 4])
        records.append((message, size, int.from_bytes(body[place + 8 : place + 12])))
        place += size
    return records


def send_message(session: Session, given: Given) -> None:
    """Send a message, to a queue if one is given."""
    if given.truth("m", default=False):
        raise Unsupported("this mqadmin sends no message traces; leave out -m")
    if "i" in given and "b" not in given:
        raise ConfigError("a queue (-i) belongs to one broker; give its name (-b), too")
    place = _queue_to(session, given)
    unique = _unique_id()
    properties = {_UNIQUE_KEY: unique, "WAIT": "true"}
    properties |= {key: given[letter] for letter, key in (("c", "TAGS"), ("k", "KEYS")) if letter in given}
    status, queue_id = _send(session, given["t"], place, properties, given["p"].encode())
    session.say(_SENT.format("#Broker Name", "#QID", "#Send Result", "#MsgId"))
    session.say(_SENT.format(place[0], queue_id, status, unique))


def _unique_id() -> str:
    """Return a new id in the form of gRPC producers: the machine, the process, the time and a number."""
    process = uuid.getnode().to_bytes(6) + (os.getpid() & 0xFFFF).to_bytes(2)
    seconds = int((datetime.now(UTC) - messages.GRPC_EPOCH).total_seconds())
    return MessageIds.reserve(process, seconds, 1)[0]


def _queue_to(session: Session, given: Given) -> tuple[str, int]:
    """Return the broker and the queue that are given, or one that takes messages."""
    if "i" in given:
        return given["b"], given.number("i", 0)
    route = session.route(given["t"])
    masters = {broker.broker_name for broker in route.brokers if broker.master is not None}
    queues = [
        (queue.broker_name, number)
        for queue in route.queues
        if queue.permission & Permission.WRITE and given.get("b") in {None, queue.broker_name}
        for number in range(queue.write_queues)
        if queue.broker_name in masters
    ]
    if not queues:
        raise Forbidden(
            f"the topic {given['t']} has no queue that takes messages" + (f" on {given['b']}" if "b" in given else "")
        )
    return random.choice(queues)  # noqa: S311 (it spreads messages)


def _send(
    session: Session, topic: str, place: tuple[str, int], properties: dict[str, str], body: bytes, *, sys_flag: int = 0
) -> tuple[str, int]:
    """Send a message to a queue of a broker, and return how it is stored, and in which queue."""
    broker, number = place
    fields = {
        "producerGroup": naming.TOOLS_GROUP,
        "topic": topic,
        "defaultTopic": naming.AUTO_CREATE_TOPIC,
        "defaultTopicQueueNums": "4",
        "queueId": str(number),
        "sysFlag": str(sys_flag),
        "bornTimestamp": str(round(time.time() * 1000)),
        "flag": "0",
        "properties": format_properties(properties),
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    address = session.address_of(broker)
    request = RequestCode.SEND_MESSAGE
    code, header, _ = session.calls.exchange(address, request, fields, tuple(_STATUS), body=body)
    queue_id = session.decoded(address, request, lambda: int(header.get("queueId", number)))
    return _STATUS[ResponseCode(code)], queue_id


def by_key(session: Session, given: Given) -> None:
    """Print ids and places of the messages with a key."""
    if given.get("p") not in {None, "", "K"} or "l" in given:
        raise Unsupported("the index has keys alone, and answers in one part; leave out -l, and -p other than K")
    fields = {
        "topic": given["t"],
        "key": given["k"],
        "maxNum": given.number("m", 64),
        "beginTimestamp": given.number("b", 0),
        "endTimestamp": given.number("e", 2**63 - 1),
        "_UNIQUE_KEY_QUERY": False,
    }
    found = [
        message
        for message in _query(session, given["t"], given.get("c"), fields)
        if given["k"] in message.keys and message.topic == given["t"]
    ]
    if not found:
        raise Missing(f"no message of {given['t']} has the key {given['k']}; it may be deleted, or not be indexed yet")
    session.say("{:<50} {:>4} {:>40} {}".format("#Message ID", "#QID", "#Offset", "#IndexKey"))
    for each in found:
        hour = each.store_timestamp // HOUR_MS * HOUR_MS
        index = f"{hour}@{each.topic}@K@{given['k']}@{each.message_id}@{each.physical_offset}"
        session.say(_FOUND.format(each.message_id, each.queue_id, each.queue_offset, index))


def _query(session: Session, topic: str, cluster: str | None, fields: dict[str, object]) -> list[StoredMessage]:
    """
    Return what the index of each broker of a topic finds; a hash may find others, too.

    Goes on without a broker that does not answer, and tells its error, or raises it if the others find nothing.
    """
    found: list[StoredMessage] = []
    failures: list[OutcomeUnknown] = []
    for address in session.brokers_of(topic, cluster):
        code = RequestCode.QUERY_MESSAGE
        try:
            body = session.ask(address, code, fields, also=ResponseCode.QUERY_NOT_FOUND)
        except OutcomeUnknown as error:
            failures.append(error)
        else:
            found += session.decoded(address, code, decode_records, body)
    for failure in failures:
        if not found:
            raise failure
        session.code = fail(failure)
    return found


def by_unique_key(session: Session, given: Given) -> None:
    """Print the messages with an id of a producer, or let a consumer handle one again."""
    found = _of_unique_key(session, given["t"], given.get("c"), given["i"], given)
    if "g" in given and "d" in given:
        for message in found[:1]:
            _push(session, given, message)
        return
    for number, message in enumerate(found if "a" in given else found[:1]):
        _print_message(session, message, suffix=f"_{number}" if number else "")


def _of_unique_key(
    session: Session, topic: str, cluster: str | None, unique: str, given: Given | None = None
) -> list[StoredMessage]:
    """Return the messages with an id of a producer, the oldest first. Raises `Missing` without a message."""
    fields: dict[str, object] = {"topic": topic, "key": unique, "maxNum": _MOST_ALIKE, "_UNIQUE_KEY_QUERY": True}
    fields["beginTimestamp"] = given.number("s", 0) if given is not None else 0
    fields["endTimestamp"] = given.number("e", 2**63 - 1) if given is not None else 2**63 - 1
    found = [message for message in _query(session, topic, cluster, fields) if message.message_id == unique]
    if not found:
        raise Missing(f"no message of {topic} has the id {unique}; it may be deleted, or not be indexed yet")
    return sorted(found, key=lambda message: message.store_timestamp)


def trace(session: Session, given: Given) -> None:
    """Print the sends and consumptions of a message that clients traced."""
    topic, message_id = given.get("t") or naming.TRACE_TOPIC, given["i"]
    fields = {
        "topic": topic,
        "key": message_id,
        "maxNum": given.number("c", 64),
        "beginTimestamp": given.number("b", 0),
        "endTimestamp": given.number("e", 2**63 - 1),
        "_UNIQUE_KEY_QUERY": False,
    }
    found = [each for each in _query(session, topic, None, fields) if message_id in each.keys]
    if not found:
        raise Missing(f"no client traced the message {message_id} in {topic}; ferromq message trace says more")
    consumptions: dict[str, list[str]] = {}
    for message in found:
        host = message.born_host.rpartition(":")[0].strip("[]")
        for record in message_traces.read(message):
            if not isinstance(record, message_traces.Sent | message_traces.Ended) or record.message_id != message_id:
                continue
            status = "success" if record.is_success else "failed"
            kind = "Pub" if isinstance(record, message_traces.Sent) else "Sub"
            moment = second(record.at or 0)
            row = _TRACED.format(kind, java(record.group), host, moment, f"{record.latency}ms", status)
            if kind == "Sub":
                consumptions.setdefault(java(record.group), []).append(row)
                continue
            session.say(
                _TRACED.format(*_TRACED_HEAD[:1], "#ProducerGroup", "#ClientHost", "#SendTime", *_TRACED_HEAD[1:])
            )
            session.say(f"{row}\n")
    for _, rows in sorted(consumptions.items()):
        session.say(
            _TRACED.format(*_TRACED_HEAD[:1], "#ConsumerGroup", "#ClientHost", "#ConsumerTime", *_TRACED_HEAD[1:])
        )
        session.say("\n".join(rows) + "\n")


def by_id(session: Session, given: Given) -> None:
    """Print messages by their ids, send them again, or let a consumer handle them again."""
    if "u" in given:
        raise Unsupported("this mqadmin knows no units; leave out -u")
    for message_id in given.words("i"):
        message = _of_id(session, given["t"], given.get("c"), message_id)
        if "g" in given and "d" in given:
            _push(session, given, message)
        elif given.truth("s", default=False):
            _send_again(session, message)
        elif "s" not in given:
            _print_message(session, message, with_id=True, charset=given.get("f"))


def _of_id(session: Session, topic: str, cluster: str | None, message_id: str) -> StoredMessage:
    place = messages.location(message_id)
    if place is not None:
        known = [broker.address for broker in session.names.brokers(None)]
        address = messages.registered(place, known, str(session.names))
        found = messages.at(session.calls, address, topic, place.offset)
        if found is not None:
            return found
    return _of_unique_key(session, topic, cluster, message_id)[0]


def _send_again(session: Session, message: StoredMessage) -> None:
    session.say(f"prepare resend msg. originalMsgId={message.message_id}")
    properties, sys_flag = fields_again(message)
    properties[_UNIQUE_KEY] = unique = _unique_id()
    place = _queue_to(session, Given({"t": message.topic}))
    status, queue_id = _send(session, message.topic, place, properties, message.body, sys_flag=sys_flag)
    queue = f"MessageQueue [topic={message.topic}, brokerName={place[0]}, queueId={queue_id}]"
    session.say(f"SendResult [sendStatus={status}, msgId={unique}, messageQueue={queue}]")


def _push(session: Session, given: Given, message: StoredMessage) -> None:
    """Let a consumer handle a message, and print what came of it."""
    client = given["d"]
    if not is_push(running(session, given["g"], client)):
        raise Unsupported(f"the client {client} is no push consumer, and handles no message on demand")
    place = messages.location(message.offset_message_id)
    if place is None:
        raise ServerError(f"the message {message.message_id} does not tell where it is stored")
    known = [broker.address for broker in session.names.brokers(None)]
    address = messages.registered(place, known, str(session.names))
    fields = {
        "consumerGroup": given["g"],
        "clientId": client,
        "msgId": message.offset_message_id,
        "brokerName": session.name_of(address).name,
        "topic": message.topic,
    }
    answer = session.table(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    names = "order", "autoCommit", "consumeResult", "remark", "spentTimeMills"
    facts = ", ".join(f"{name}={java(answer.get(name))}" for name in names)
    session.say(f"ConsumeMessageDirectlyResult [{facts}]")


def by_offset(session: Session, given: Given) -> None:
    """Print the message at an offset of a queue."""
    if "r" in given:
        session.note("-r has no effect: the broker is found by its name")
    queue = Queue(given["t"], given["b"], given.number("i", 0), session.address_of(given["b"]))
    found = pull(session, queue, given.number("o", 0), 1)
    if not found.records:
        raise Missing(f"queue {queue.number} of {queue.topic} on {queue.broker} has no message at {given['o']}")
    also = {"MIN_OFFSET": str(found.least), "MAX_OFFSET": str(found.end)}
    _print_message(session, found.records[0][0], with_id=True, charset=given.get("f"), also=also)


def _print_message(
    session: Session,
    message: StoredMessage,
    *,
    with_id: bool = False,
    charset: str | None = None,
    suffix: str = "",
    also: dict[str, str] | None = None,
) -> None:
    body = body_of(session, message)
    path = _kept(message.message_id + suffix, body)
    fields: dict[str, object] = {"OffsetID": message.offset_message_id} if with_id else {}
    fields |= {
        "Topic": message.topic,
        "Tags": f"[{java(message.tag)}]",
        "Keys": f"[{java(message.properties.get('KEYS'))}]",
        "Queue ID": message.queue_id,
        "Queue Offset": message.queue_offset,
        "CommitLog Offset": message.physical_offset,
        "Reconsume Times": message.reconsume_times,
        "Born Timestamp": stamp(message.born_timestamp),
        "Store Timestamp": stamp(message.store_timestamp),
        "Born Host": message.born_host,
        "Store Host": message.store_host,
        "System Flag": message.sys_flag,
        "Properties": java({**message.properties, **(also or {})}),
        "Message Body Path": path,
    }
    if charset is not None:
        fields["Message Body"] = _text(body, charset)
    for name, value in fields.items():
        session.say(_FIELD.format(f"{name}:", value))
    tracks = list(_tracks(session, message))
    session.say("\n\n" + "\n".join(tracks or ["WARN: No Consumer"]))


def _text(body: bytes, charset: str) -> str:
    try:
        return body.decode(charset, errors="replace")
    except LookupError:
        raise ConfigError(f"{charset!r} is no character set that is known here") from None


def _kept(name: str, body: bytes) -> Path:
    """
    Write a body to a file, as RocketMQ does, and return its path. An id may come from a stranger.

    Raises `PermissionError` for a directory that another user can write.
    """
    path = _BODIES / file_name(name)
    directory = _own_directory()
    try:
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=directory)
        created = os.open(path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
        with os.fdopen(created, "wb") as file:
            file.write(body)
    finally:
        os.close(directory)
    return path


def _own_directory() -> int:
    """Make `_BODIES` and the directory above it if they are missing, and return an open descriptor of `_BODIES`."""
    base = _BODIES.parent.parent
    found = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for level in (_BODIES.parent, _BODIES):
        above = found
        try:
            with suppress(FileExistsError):
                os.mkdir(level.name, 0o700, dir_fd=above)
            found = _opened_own(level, above)
        finally:
            os.close(above)
    return found


def _opened_own(level: Path, above: int) -> int:
    refusal = f"{level} is not a directory that you alone can write; move it away, or run chmod go-w on your own"
    try:
        found = os.open(level.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except OSError as error:
        raise PermissionError(refusal) from error
    facts = os.fstat(found)
    if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(found)
        raise PermissionError(refusal)
    return found


def body_of(session: Session, message: StoredMessage) -> bytes:
    """Return the body as it was sent; one that cannot be decompressed as it is stored, with a line on stderr."""
    try:
        return message.plain_body
    except CorruptMessage as error:
        session.code = FAILED
        session.note(f"{error}; it is shown as it is stored")
        return message.body


def _tracks(session: Session, message: StoredMessage) -> Iterator[str]:
    """Yield what became of a message in each group of its topic."""
    for group in groups_of(session, message.topic):
        kind, error = "UNKNOWN", None
        try:
            kind = _track(session, message, group)
        except RequestError as failure:
            kind = "NOT_ONLINE" if failure.code == ResponseCode.CONSUMER_NOT_ONLINE else kind
            error = f"CODE:{failure.code} DESC:{failure.remark}"
        yield f"MessageTrack [consumerGroup={group}, trackType={kind}, exceptionDesc={java(error)}]"


def _track(session: Session, message: StoredMessage, group: str) -> str:
    connections = connections_of(session, group)
    if connections.get("consumeType") == "CONSUME_ACTIVELY":
        return "PULL"
    if connections.get("consumeType") != "CONSUME_PASSIVELY":
        return "UNKNOWN"
    masters = {broker.name: broker.address for broker in session.names.brokers(None) if broker.broker_id == MASTER}
    for queue, row in consumed(session, group)[0].items():
        is_its = (queue.topic, queue.queue_id) == (message.topic, message.queue_id)
        if is_its and masters.get(queue.broker_name) == message.store_host:
            if row["consumerOffset"] <= message.queue_offset:
                return "NOT_CONSUME_YET"
            data = (connections.get("subscriptionTable") or {}).get(message.topic) or {}
            tags = data.get("tagsSet") or ()
            return "CONSUMED" if not tags or message.tag in tags or "*" in tags else "CONSUMED_BUT_FILTERED"
    return "NOT_CONSUME_YET"


def print_messages(session: Session, given: Given) -> None:
    """Print the messages of all queues of a topic."""
    topic, expression = given["t"], given.get("s") or "*"
    with_body, charset = given.truth("d", default=True), given.get("c") or "UTF-8"
    for queue in _queues(session, topic, given.get("l")):
        begin, end = (
            _offset(session, queue, given, letter, code)
            for letter, code in (("b", RequestCode.GET_MIN_OFFSET), ("e", RequestCode.GET_MAX_OFFSET))
        )
        session.say(f"minOffset={begin}, maxOffset={end}, {queue}")
        offset = begin
        while offset < end:
            found = pull(session, queue, offset, min(_PAGE, end - offset), expression)
            for record in found.records:
                body = body_of(session, record[0])
                text = _text(body, charset) if with_body else "NOT PRINT BODY"
                session.say(f"MSGID: {record[0].message_id} {_record_text(queue, record, body, found)} BODY: {text}")
            if found.status in {"NO_NEW_MSG", "OFFSET_ILLEGAL"} or found.following <= offset:
                session.say(f"{queue} print msg finished. status={found.status}, offset={found.following}")
                break
            if found.status == "NO_MATCHED_MSG":
                session.say(f"{queue} no matched msg. status={found.status}, offset={found.following}")
            offset = found.following
        session.say("-" * 56)


def _queues(session: Session, topic: str, parent: str | None) -> list[Queue]:
    """Return the queues of a topic that may be read."""
    route = session.route(parent or topic)
    addresses = {broker.broker_name: broker.master_or_slave for broker in route.brokers if broker.addresses}
    return [
        Queue(topic, queue.broker_name, number, addresses[queue.broker_name])
        for queue in sorted(route.queues, key=lambda queue: queue.broker_name)
        if queue.permission & Permission.READ and queue.broker_name in addresses
        for number in range(queue.read_queues)
    ]


def _offset(session: Session, queue: Queue, given: Given, letter: str, code: RequestCode) -> int:
    fields: dict[str, str] = {"topic": queue.topic, "queueId": str(queue.number)}
    time_given = given.get(letter)
    if time_given is not None:
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        fields["timestamp"] = str(parsed(letter, time_given))
    _, header, _ = session.calls.exchange(queue.address, code, fields)
    return session.decoded(queue.address, code, lambda: int(header["offset"]))


def _record_text(queue: Queue, record: tuple[StoredMessage, int, int], body: bytes, found: Pulled) -> str:
    """Return a message with all its fields, as RocketMQ prints it: its body as signed bytes."""
    message, size, checksum = record
    properties = {**message.properties, "MIN_OFFSET": str(found.least), "MAX_OFFSET": str(found.end)}
    fields = {
        "brokerName": queue.broker,
        "queueId": message.queue_id,
        "storeSize": size,
        "queueOffset": message.queue_offset,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": f"/{message.born_host}",
        "storeTimestamp": message.store_timestamp,
        "storeHost": f"/{message.store_host}",
        "msgId": message.offset_message_id,
        "commitLogOffset": message.physical_offset,
        "bodyCRC": checksum,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "toString()": f"Message{{topic='{message.topic}', flag={message.flag}, properties={java(properties)}, "
        f"body={java(list(memoryview(body).cast('b')))}, transactionId='null'}}",
    }
    return "MessageExt [" + ", ".join(f"{name}={value}" for name, value in fields.items()) + "]"


def consume_queue(session: Session, given: Given) -> None:
    """Print entries of a queue."""
    index = given.number("i", 0)
    address = given.get("b") or next(iter(session.brokers_of(given["t"])), None)
    if address is None:
        raise Missing(f"no broker has the topic {given['t']}")
    fields = {"topic": given["t"], "queueId": given.number("q", 0), "index": index, "count": given.number("c", 10)}
    found = session.table(address, RequestCode.QUERY_CONSUME_QUEUE, {**fields, "consumerGroup": given.get("g")})
    line = "=" * 38
    if found.get("subscriptionData") is not None:
        session.say(f"Subscription data: \n{java_json.dumps(found['subscriptionData']).decode()}\n{line}")
    if found.get("filterData") is not None:
        session.say(f"Filter data: \n{found['filterData']}\n{line}")
    session.say(f"Queue data: \nmax: {found.get('maxQueueIndex', 0)}, min: {found.get('minQueueIndex', 0)}\n{line}")
    for number, entry in enumerate(found.get("queueData") or (), index):
        session.say(f"idx: {number}\n{_entry(entry)}\n{line}")


def _entry(entry: dict[str, Any]) -> str:
    numbers = ", ".join(f"{name}={entry.get(name, 0)}" for name in ("physicOffset", "physicSize", "tagsCode"))
    texts = ", ".join(f"{name}='{java(entry.get(name))}'" for name in ("extendDataJson", "bitMap"))
    last = f"eval={java(bool(entry.get('eval')))}, msg='{java(entry.get('msg'))}'"
    return f"ConsumeQueueData{{{numbers}, {texts}, {last}}}"


_CLIENT = (
    may("g", "consumerGroup", "consumer group name"),
    may("d", "clientId", "The consumer's client id"),
)
_ID = must("i", "msgId", "Message Id")
_BODY_FORMAT = may("f", "bodyFormat", "print message body by the specified format")
_TIME_OF_PRINT = "timestamp[currentTimeMillis|yyyy-MM-dd#HH:mm:ss:SSS]"

COMMANDS = (
    Command(
        "queryMsgById",
        "Query Message by Id.",
        by_id,
        (
            must("t", "topic", "topic name"),
            _ID,
            *_CLIENT,
            may("s", "sendMessage", "resend message"),
            may("u", "unitName", "unit name"),
            _BODY_FORMAT,
            LITE_PARENT,
        ),
    ),
    Command(
        "queryMsgByKey",
        "Query Message by Key.",
        by_key,
        (
            must("t", "topic", "Topic name"),
            must("k", "msgKey", "Message Key"),
            may("b", "beginTimestamp", "Begin timestamp(ms). default:0, eg:1676730526212"),
            may("e", "endTimestamp", "End timestamp(ms). default:Long.MAX_VALUE, eg:1676730526212"),
            may("m", "maxNum", "The maximum number of messages returned by the query, default:64"),
            LITE_PARENT,
            may("p", "keyType", "Index key type, default index key type is K, you can use K for keys OR T for tags"),
            may("l", "lastKey", "Last Key"),
        ),
    ),
    Command(
        "queryMsgByUniqueKey",
        "Query Message by Unique key.",
        by_unique_key,
        (
            _ID,
            *_CLIENT,
            must("t", "topic", "The topic of msg"),
            flag("a", "showAll", "Print all message, the limit is 32"),
            LITE_PARENT,
            may("s", "startTime", "startTime"),
            may("e", "endTime", "endTime"),
        ),
    ),
    Command(
        "queryMsgByOffset",
        "Query Message by offset.",
        by_offset,
        (
            must("t", "topic", "topic name"),
            must("b", "brokerName", "Broker Name"),
            must("i", "queueId", "Queue Id"),
            must("o", "offset", "Queue Offset"),
            _BODY_FORMAT,
            may("r", "routeTopic", "the topic which is used to find route info"),
        ),
    ),
    Command(
        "queryMsgTraceById",
        "Query a message trace.",
        trace,
        (
            must("i", "msgId", "Message Id"),
            may("t", "traceTopic", "The name value of message trace topic"),
            may("b", "beginTimestamp", "Begin timestamp(ms). default:0, eg:1676730526212"),
            may("e", "endTimestamp", "End timestamp(ms). default:Long.MAX_VALUE, eg:1676730526212"),
            may("c", "maxNum", "The maximum number of messages returned by the query, default:64"),
        ),
    ),
    Command(
        "printMsg",
        "Print Message Detail.",
        print_messages,
        (
            must("t", "topic", "topic name"),
            may("c", "charsetName", "CharsetName(eg: UTF-8,GBK)"),
            may("s", "subExpression", "Subscribe Expression(eg: TagA || TagB)"),
            may("b", "beginTimestamp", f"Begin {_TIME_OF_PRINT}"),
            may("e", "endTimestamp", f"End {_TIME_OF_PRINT}"),
            may("d", "printBody", "print body"),
            may("l", "lmqParentTopic", "Lmq parent topic, lmq is used to find the route."),
        ),
    ),
    Command(
        "queryCq",
        "Query cq command.",
        consume_queue,
        (
            must("t", "topic", "topic name"),
            must("q", "queue", "queue num, ie. 1"),
            must("i", "index", "start queue index."),
            may("c", "count", "how many."),
            may("b", "broker", "broker addr."),
            may("g", "consumer", "consumer group."),
        ),
    ),
    Command(
        "sendMessage",
        "Send a message.",
        send_message,
        (
            must("t", "topic", "Topic name"),
            must("p", "body", "UTF-8 string format of the message body"),
            may("k", "key", "Message keys"),
            may("c", "tags", "Message tags"),
            may("b", "broker", "Send message to target broker"),
            may("i", "qid", "Send message to target queue"),
            may("m", "msgTraceEnable", "Message Trace Enable, Default: false"),
        ),
    ),
)
