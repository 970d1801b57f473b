"""
Shares of a topic's queues that the broker works out (400), and how a group asks for messages (401, 402).

The strategies are RocketMQ's, so that a Java broker and this one give a member the same queues. The modes live in
RocketMQ's file, `config/messageRequestMode.json`.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferromq._ferromq import Request
from ferromq.broker.clients.table import BROADCASTING, CLUSTERING, ClientTable
from ferromq.broker.cluster.name_servers import NameServerFailed
from ferromq.broker.cluster.route_cache import RouteCache
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.topics import TopicTable
from ferromq.errors import CorruptStore
from ferromq.files import json_file
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.message_queue import MessageQueue
from ferromq.protocol.remoting import Answer, BadRequest, failure, success
from ferromq.protocol.route import Permission, QueueData

_log = logging.getLogger("ferromq.broker")

PULL, POP = "PULL", "POP"
_MODES = (PULL, POP)
_TABLE = "messageRequestModeMap"
_EACH_FOR_ITSELF = -1
_INT_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class RequestMode:
    """How a group asks for messages of a topic."""

    mode: str = PULL
    pop_share: int = _EACH_FOR_ITSELF
    """With POP: with how many others a member shares its queues; none or less, or all others: each asks all queues."""

    def to_json(self, topic: str, group: str) -> dict[str, Any]:
        """Return Java's form."""
        return {"consumerGroup": group, "mode": self.mode, "popShareQueueNum": self.pop_share, "topic": topic}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "RequestMode":
        """Read Java's form; raises `ValueError` naming the field that may not be so."""
        mode, share = value.get("mode") or PULL, value.get("popShareQueueNum", 0)
        if mode not in _MODES:
            raise ValueError(f"mode is {mode!r}; it may be PULL or POP")
        if type(share) is not int or not -_INT_LIMIT <= share < _INT_LIMIT:
            raise ValueError(f"popShareQueueNum is {share!r}; a whole number is expected")
        return cls(mode, share)


class RequestModes:
    """
    How groups ask for messages, where somebody decided it; thread-safe.

    A change is on disk before the call returns. Raises `CorruptStore` where the file is there and cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "config" / "messageRequestMode.json"
        self._lock = threading.Lock()
        try:
            self._modes = _parse(json_file.read(self._path) or {})
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptStore(f"{self._path} is no table of modes: {error}; restore it from its .bak") from error

    def get(self, topic: str, group: str) -> RequestMode:
        """Return how a group asks for messages of a topic; retries are always pulled."""
        return self._modes.get(topic, {}).get(group, RequestMode())

    def put(self, topic: str, group: str, mode: RequestMode) -> None:
        """Decide it."""
        with self._lock:
            self._write({**self._modes, topic: {**self._modes.get(topic, {}), group: mode}})

    def encode(self) -> bytes:
        """Return the whole table as Java writes it."""
        return java_json.dumps(_table(self._modes))

    def replace(self, body: bytes) -> None:
        """Take the table of another broker, as `encode` returns it. Raises `ValueError` for anything else."""
        try:
            content = java_json.loads_object(body)
            modes = _parse({_TABLE: content[_TABLE]})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no table of modes: {error}") from error
        with self._lock:
            if modes != self._modes:
                self._write(modes)

    def _write(self, modes: dict[str, dict[str, RequestMode]]) -> None:
        json_file.write(self._path, _table(modes))
        self._modes = modes


def _parse(content: Mapping[str, Any]) -> dict[str, dict[str, RequestMode]]:
    return {
        str(topic): {str(group): RequestMode.from_json(mode) for group, mode in groups.items()}
        for topic, groups in (content.get(_TABLE) or {}).items()
    }


def _table(modes: Mapping[str, Mapping[str, RequestMode]]) -> dict[str, Any]:
    return {
        _TABLE: {
            topic: {group: mode.to_json(topic, group) for group, mode in groups.items()}
            for topic, groups in modes.items()
        }
    }


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
        Answer request 400: the queues a member of a group is to read, and how.

        Without a list in the body the client keeps what it has: nobody knows the topic, or the strategy, or the client.
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
        """Answer request 401: decide how a group asks for messages of a topic."""
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
        """Answer request 402: every mode somebody decided; a slave asks."""
        return success(body=self._modes.encode())

    def _readable(self, topic: str) -> list[MessageQueue] | None:
        """Return the queues of a topic that may be read, on every broker, in order; None where nobody knows it."""
        try:
            route = self._routes.route(topic) if self._routes else None
        except NameServerFailed as error:
            # The others' queues are unknown: better none than a share without them.
            _log.debug("share not worked out topic=%s: %s", topic, error)
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
            _log.debug("share not worked out group=%s strategy=%s members=%d", group, strategy, len(members))
            return None
        if mode.mode == POP:
            return share_to_pop(share, queues, members, client_id, mode.pop_share)
        return share(queues, members, client_id)


Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]


def averagely(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Return a member's share: neighbouring queues, the first members get one more where it does not come out even."""
    if member not in members:
        return []
    index, (each, more) = members.index(member), divmod(len(queues), len(members))
    begin = index * each + min(index, more)
    return list(queues[begin : begin + each + (index < more)])


def by_circle(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Return a member's share: the queues are dealt like cards."""
    return list(queues[members.index(member) :: len(members)]) if member in members else []


STRATEGIES: Mapping[str, Strategy] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def share_to_pop(
    share: Strategy, queues: Sequence[MessageQueue], members: Sequence[str], member: str, others: int
) -> list[MessageQueue]:
    """
    Return the queues a member that pops is to ask: its own, and those of the *others* that come after it.

    With all others, or none, it asks every broker for any queue, which is number -1. Where there are more members than
    queues, each asks one.
    """
    if others <= 0 or others >= len(members) - 1:
        return [MessageQueue(queue.topic, queue.broker_name, -1) for queue in queues]
    if member not in members:
        return []
    index = members.index(member)
    if len(members) > len(queues):
        return [queues[index % len(queues)]]
    sharing = (members[(index + step) % len(members)] for step in range(others + 1))
    return [queue for each in sharing for queue in share(queues, members, each)]


def _body(request: Request) -> dict[str, Any]:
    try:
        return java_json.loads_object(request.body)
    except ValueError as error:
        raise BadRequest(f"the body is no JSON object: {error}") from error


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{name} is {str(value)[:100]!r}; a text is expected")
    return value
