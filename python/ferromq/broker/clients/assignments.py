"""
Queue assignments that the broker computes (request 400), and the request modes of groups (401, 402).

RocketMQ's strategies are in `queue_allocation`, the modes in `metadata.request_modes`.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ferromq._ferromq import Request
from ferromq.broker.clients.queue_allocation import STRATEGIES, share_to_pop
from ferromq.broker.clients.subscription import BROADCASTING, CLUSTERING
from ferromq.broker.clients.table import ClientTable
from ferromq.broker.cluster.name_servers import NameServerFailed
from ferromq.broker.cluster.route_cache import RouteCache
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.request_modes import POP, RequestMode, RequestModes
from ferromq.broker.metadata.topics import TopicTable
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.message_queue import MessageQueue
from ferromq.protocol.remoting import Answer, BadRequest, failure, success
from ferromq.protocol.route import Permission, QueueData

_log = logging.getLogger("ferromq.broker")


class Assignments:
    """Answers remoting requests 400, 401 and 402."""

    def __init__(
        self,
        broker_name: str,
        modes: RequestModes,
        *,
        table: ClientTable,
        topics: TopicTable,
        groups: GroupTable,
        routes: RouteCache | None,
    ) -> None:
        self._broker_name = broker_name
        self._modes = modes
        self._table = table
        self._topics = topics
        self._groups = groups
        self._routes = routes

    def query(self, request: Request) -> Answer:
        """
        Answer request 400: the queues that a member of a group reads, and how.

        If the topic, the strategy or the client is unknown, the body has no list and the client keeps its assignment.
        """
        body = _body(request)
        topic, group, client_id = (_text(body, name) for name in ("topic", "consumerGroup", "clientId"))
        model, strategy = body.get("messageModel") or CLUSTERING, body.get("strategyName")
        if model not in {BROADCASTING, CLUSTERING}:
            raise BadRequest(f"messageModel is {str(model)[:100]!r}; it may be {BROADCASTING} or {CLUSTERING}")
        mode = self._modes.get(topic, group)
        queues = self._readable(topic)
        if queues is not None and model == CLUSTERING:
            queues = self._share(queues, mode, group, client_id, strategy)
        if queues is None:
            return success(body=b"{}")
        assignments = [{"messageQueue": queue.to_json(), "mode": mode.mode} for queue in dict.fromkeys(queues)]
        return success(body=java_json.dumps({"messageQueueAssignments": assignments}))

    def set_mode(self, request: Request) -> Answer:
        """Answer request 401: set how a group asks for the messages of a topic."""
        body = _body(request)
        topic, group = _text(body, "topic"), _text(body, "consumerGroup")
        try:
            mode = RequestMode.from_json(body)
        except ValueError as error:
            raise BadRequest(str(error)) from error
        if topic.startswith(naming.RETRY_PREFIX):
            return failure(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._topics.find(topic) is None:
            return failure(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if self._groups.get(group) is None:
            return failure(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group does not exist: {group}; create it first",
            )
        self._modes.put(topic, group, mode)
        _log.info("request mode changed topic=%s group=%s mode=%s peer=%s", topic, group, mode.mode, request.peer)
        return success()

    def all_modes(self, _request: Request) -> Answer:
        """Answer request 402: all modes that were set, for slaves."""
        return success(body=self._modes.encode())

    def _readable(self, topic: str) -> list[MessageQueue] | None:
        """Return the readable queues of a topic on all brokers, in order; None if the topic is unknown."""
        try:
            route = self._routes.route(topic) if self._routes else None
        except NameServerFailed as error:
            # Without the other brokers' queues an assignment would be wrong.
            _log.debug("queues not assigned topic=%s: %s", topic, error)
            return None
        own = self._topics.get(topic)
        found: Sequence[QueueData] = route.queues if route else [own.queue_data(self._broker_name)] if own else ()
        if not found:
            return None
        return sorted(
            MessageQueue(topic, queue.broker_name, queue_id)
            for queue in found
            if queue.permission & Permission.READ
            for queue_id in range(queue.read_queues)
        )

    def _share(
        self, queues: list[MessageQueue], mode: RequestMode, group: str, client_id: str, strategy: Any
    ) -> list[MessageQueue] | None:
        members = self._table.members(group)
        share = STRATEGIES.get(strategy) if isinstance(strategy, str) else None
        if share is None or not members or not queues:
            _log.debug("queues not assigned group=%s strategy=%s members=%d", group, strategy, len(members))
            return None
        if mode.mode == POP:
            return share_to_pop(share, queues, members, client_id, mode.pop_share)
        return share(queues, members, client_id)


def _body(request: Request) -> dict[str, Any]:
    try:
        return java_json.loads_object(request.body)
    except ValueError as error:
        raise BadRequest(f"the body is not a JSON object: {error}") from error


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{name} is {str(value)[:100]!r}; a text is expected")
    return value
