"""The commands of `mqadmin` for connected clients."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ferromq.cli.mqadmin.options import Command, Given, flag, may, must
from ferromq.cli.mqadmin.running_info import complaints, subscribe_alike, text_of
from ferromq.cli.mqadmin.session import Session, file_name, java, version
from ferromq.errors import RequestError
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.message_queue import MessageQueue, table_of

_CONSUMER = "{:<36} {:<22} {:<10} {}"
_PRODUCER = "{:04d}  {:<32} {:<22} {:<8} {}"
_STATUS = "{:<10} {:<40} {:<20} {}"


def connections_of(session: Session, group: str, broker: str | None = None) -> dict[str, Any]:
    """
    Return the members of a group and their subscriptions, as the first broker of the group with members tells them.

    Raises `RequestError` without a connection.
    """
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    failure: RequestError | None = None
    for address in session.of_group(group) if broker is None else [broker]:
        try:
            return session.table(address, code, {"consumerGroup": group})
        except RequestError as error:
            failure = error
    raise failure or RequestError(f"no broker of the group {group} is registered")


def consumers(session: Session, given: Given) -> None:
    """Print the members of a group and their subscriptions."""
    found = connections_of(session, given["g"], given.get("b"))
    session.say(_CONSUMER.format("#ClientId", "#ClientAddr", "#Language", "#Version"))
    for each in found.get("connectionSet") or ():
        session.say(_CONSUMER.format(*_client(each)))
    session.say("\nBelow is subscription:")
    session.say("{:<20} {}".format("#Topic", "#SubExpression"))
    for topic, data in (found.get("subscriptionTable") or {}).items():
        session.say(f"{topic:<20} {java(data.get('subString'))}")
    session.say()
    for title, name in (("ConsumeType", "consumeType"), ("MessageModel", "messageModel")):
        session.say(f"{title}: {java(found.get(name))}")
    session.say(f"ConsumeFromWhere: {java(found.get('consumeFromWhere'))}")


def _client(connection: Mapping[str, Any]) -> tuple[str, str, str, str]:
    texts = (str(connection.get(name)) for name in ("clientId", "clientAddr", "language"))
    client_id, address, language = texts
    return client_id, address, language, version(connection.get("version") or 0)


def producers(session: Session, given: Given) -> None:
    """Print the connections of a producer group."""
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    failure: RequestError | None = None
    for address in session.brokers_of(given["t"]):
        try:
            found = session.table(address, code, {"producerGroup": given["g"]})
        except RequestError as error:
            failure = error
            continue
        for number, each in enumerate(found.get("connectionSet") or (), 1):
            session.say(_PRODUCER.format(number, *_client(each)))
        return
    if failure is not None:
        raise failure


def all_producers(session: Session, given: Given) -> None:
    """Print all producer groups at a broker."""
    found = session.table(given["b"], RequestCode.GET_ALL_PRODUCER_INFO).get("data") or {}
    for group, instances in found.items():
        if not instances:
            session.say(f"producer group ({group}) instances are empty")
        for each in instances or ():
            facts = [f"{name}={each.get(name)}" for name in ("remoteIP", "language", "version", "lastUpdateTimestamp")]
            session.say(f"producer group ({group}) instance : clientId={each.get('clientId')},{', '.join(facts)}")


def running(session: Session, group: str, client: str, *, with_stacks: bool = False) -> dict[str, Any]:
    """Return what a consumer tells about itself, by the broker of its group that it is connected with."""
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    fields = {"consumerGroup": group, "clientId": client, "jstackEnable": with_stacks}
    failure: RequestError | None = None
    for address in session.of_group(group):
        try:
            return session.nested(address, code, fields)
        except RequestError as error:
            failure = error
    raise failure or RequestError(f"no broker of the group {group} is registered")


def holders(session: Session, group: str) -> dict[MessageQueue, str]:
    """Return the host of the member that has each queue of a group; none if it has no members."""
    found: dict[MessageQueue, str] = {}
    try:
        members = connections_of(session, group).get("connectionSet") or ()
        for member in members:
            client = str(member["clientId"])
            queues = table_of(running(session, group, client), "mqTable")
            found |= dict.fromkeys(queues, client.partition("@")[0])
    except RequestError as error:
        if error.code not in {ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.TOPIC_NOT_EXIST}:
            raise
    return found


def consumer_status(session: Session, given: Given) -> None:
    """Write what each member of a group tells about itself to a file, or print that of one."""
    with_stacks = "s" in given
    if "i" in given:
        session.say(text_of(running(session, given["g"], given["i"], with_stacks=with_stacks)))
        return
    found = connections_of(session, given["g"], given.get("b"))
    directory = Path(str(round(time.time() * 1000)))
    session.say(_STATUS.format("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"))
    infos: dict[str, dict[str, Any]] = {}
    for member in found.get("connectionSet") or ():
        client = str(member["clientId"])
        info = session.part(running, session, given["g"], client, with_stacks=with_stacks)
        if info is not None:
            infos[client] = info
            path = directory / file_name(client)
            directory.mkdir(exist_ok=True)
            path.write_text(text_of(info))
            session.say(_STATUS.format(len(infos), client, version(member.get("version") or 0), path))
    if infos and not subscribe_alike(infos):
        session.say("\n\nWARN: Different subscription in the same group of consumer!!!")
    elif infos:
        session.say("\n\nSame subscription in the same group of consumer\n\nRebalance OK")
        for client in sorted(infos):
            for line in complaints(client, infos[client]):
                session.say(line)


_GROUP = must("g", "consumerGroup", "consumer group name")
_BROKER = may("b", "brokerAddr", "broker address")

COMMANDS = (
    Command(
        "consumerConnection",
        "Query consumer's socket connection, client version and subscription.",
        consumers,
        (_GROUP, _BROKER),
    ),
    Command(
        "consumerStatus",
        "Query consumer's internal data structure.",
        consumer_status,
        (
            _GROUP,
            may("i", "clientId", "The consumer's client id"),
            _BROKER,
            flag("s", "jstack", "Run jstack command in the consumer progress"),
        ),
    ),
    Command(
        "producerConnection",
        "Query producer's socket connection and client version.",
        producers,
        (must("g", "producerGroup", "producer group name"), must("t", "topic", "topic name")),
    ),
    Command(
        "producer",
        "Query producer's instances, connection, status, etc.",
        all_producers,
        (must("b", "broker", "broker address"),),
    ),
)
