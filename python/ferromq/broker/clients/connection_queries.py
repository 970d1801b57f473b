"""
Queries of connected clients: members of groups, producers, subscriptions, and consumed topics.

They read the client table and the store's offsets, and change nothing. `client_calls` asks the clients themselves.
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
        """Answer request 203: the members of a consumer group, over both protocols, and its subscriptions."""
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
        """Answer request 204: the members of a producer group; a gRPC producer's group is named like its topic."""
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
        """Answer request 300: the groups that subscribe to a topic or have consumed it."""
        topic = required(request.fields, "topic")
        groups = self._table.subscribers(topic) | {
            group for _, group in map(_split, self._store.committed_offsets(topic=topic))
        }
        return success(body=java_json.dumps({"groupList": sorted(groups)}))

    def topics_of(self, request: Request) -> Answer:
        """Answer request 343: the topics that a group has consumed."""
        group = required(request.fields, "group")
        topics = {topic for topic, _ in map(_split, self._store.committed_offsets(group=group))}
        return success(body=java_json.dumps({"brokerAddr": self._address, "topicList": sorted(topics)}))

    def subscription(self, request: Request) -> Answer:
        """Answer request 345: a group's subscription to a topic, if it has one."""
        group, topic = required(request.fields, "group"), required(request.fields, "topic")
        wanted = self._table.subscription(group, topic)
        known = {} if wanted is None else {"subscriptionData": wanted.to_json()}
        return success(body=java_json.dumps({"group": group, "topic": topic, **known}))

    def subscriptions(self, group: str) -> dict[str, dict[str, Any]]:
        """Return a group's subscriptions by topic, in Java's form; empty without members."""
        known = self._table.group(group)
        return {topic: wanted.to_json() for topic, wanted in known.subscriptions.items()} if known else {}


def _connection(client: Client) -> dict[str, Any]:
    return {
        "clientAddr": client.peer,
        "clientId": client.client_id,
        "language": client.language,
        # Java does not tell it, and ignores it.
        "protocol": "grpc" if client.is_grpc else "remoting",
        "version": client.version,
    }


def _producer(client: Client, seen_at: int) -> dict[str, Any]:
    return {
        "clientId": client.client_id,
        "language": client.language,
        "lastUpdateTimestamp": seen_at,
        # Java puts a slash before an address without a host name.
        "remoteIP": f"/{client.peer}",
        "version": client.version,
    }


def _split(key: str) -> tuple[str, str]:
    """Return topic and group of RocketMQ's `topic@group`."""
    topic, _, group = key.rpartition("@")
    return topic, group
