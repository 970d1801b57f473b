"""
Questions about who is connected: members of groups, producers, and what groups are subscribed to or have consumed.

It reads the table of clients and the store's offsets, and changes nothing. What only a client itself knows is asked by
`client_calls`.
"""

from typing import Any

from ferromq._ferromq import Request, Store
from ferromq.broker.clients.client import Client
from ferromq.broker.clients.table import ClientTable
from ferromq.protocol import java_json
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, failure, required, success


class ConnectionQueries:
    """Answers remoting requests 203, 204, 300, 328, 343 and 345."""

    def __init__(self, table: ClientTable, store: Store, address: str) -> None:
        self._table = table
        self._store = store
        self._address = address

    def of_consumers(self, request: Request) -> Answer:
        """Answer request 203: who is in a consumer group, over both protocols, and what it is subscribed to."""
        name = required(request.fields, "consumerGroup")
        group = self._table.group(name)
        if group is None:
            return failure(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = {
            "connectionSet": [_connection(client) for client in group.members],
            "consumeFromWhere": group.consume_settings.from_where,
            "consumeType": group.consume_settings.consume_type,
            "messageModel": group.consume_settings.message_model,
            "subscriptionTable": {topic: wanted.to_json() for topic, wanted in group.subscriptions.items()},
        }
        return success(body=java_json.dumps(body))

    def of_producers(self, request: Request) -> Answer:
        """Answer request 204: who is in a producer group; that of a gRPC producer has the name of its topic."""
        name = required(request.fields, "producerGroup")
        producers = self._table.producers(name)
        if not producers:
            return failure(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return success(body=java_json.dumps({"connectionSet": [_connection(client) for client in producers]}))

    def all_producers(self, _request: Request) -> Answer:
        """Answer request 328: every producer, by group."""
        data = {
            group: [_producer(client, seen_at) for client, seen_at in members]
            for group, members in self._table.all_producers().items()
        }
        return success(body=java_json.dumps({"data": data}))

    def consumers_of(self, request: Request) -> Answer:
        """Answer request 300: the groups that are subscribed to a topic, or have consumed it."""
        topic = required(request.fields, "topic")
        groups = self._table.subscribers(topic) | {
            group for _, group in map(_split, self._store.committed_offsets(topic=topic))
        }
        return success(body=java_json.dumps({"groupList": sorted(groups)}))

    def topics_of(self, request: Request) -> Answer:
        """Answer request 343: the topics a group has consumed."""
        group = required(request.fields, "group")
        topics = {topic for topic, _ in map(_split, self._store.committed_offsets(group=group))}
        return success(body=java_json.dumps({"brokerAddr": self._address, "topicList": sorted(topics)}))

    def subscription(self, request: Request) -> Answer:
        """Answer request 345: what a group wants of a topic; nothing is said of one it is not subscribed to."""
        group, topic = required(request.fields, "group"), required(request.fields, "topic")
        wanted = self._table.subscription(group, topic)
        known = {} if wanted is None else {"subscriptionData": wanted.to_json()}
        return success(body=java_json.dumps({"group": group, "topic": topic, **known}))

    def subscriptions(self, group: str) -> dict[str, dict[str, Any]]:
        """Return what a group's members are subscribed to, by topic, in Java's form; empty where nobody is in it."""
        known = self._table.group(group)
        return {topic: wanted.to_json() for topic, wanted in known.subscriptions.items()} if known else {}


def _connection(client: Client) -> dict[str, Any]:
    return {
        "clientAddr": client.peer,
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
    }


def _producer(client: Client, seen_at: int) -> dict[str, Any]:
    return {
        "clientId": client.client_id,
        "language": client.language,
        "lastUpdateTimestamp": seen_at,
        # With Java's slash before an address that no name was looked up for.
        "remoteIP": f"/{client.peer}",
        "version": client.version,
    }


def _split(key: str) -> tuple[str, str]:
    """Return topic and group of RocketMQ's `topic@group`."""
    topic, _, group = key.rpartition("@")
    return topic, group
