"""
Changes an administrator asks a broker for over remoting: topics, consumer groups, cleaning.

What a topic may be is decided by `topics`, what a group may be by `groups`.
"""

import logging

from ferromq import _json, _names
from ferromq._codes import ResponseCode
from ferromq._ferromq import Request, Store
from ferromq._remoting import Answer, BadRequest, failure, flag, integer, required, success
from ferromq.broker.groups import GroupConfig, GroupTable
from ferromq.broker.topics import TopicConfig, TopicTable
from ferromq.errors import RequestError
from ferromq.route import READ_WRITE, Permission

_log = logging.getLogger("ferromq.broker")

_QUEUES = 8


class Administration:
    """Answers requests that change topics and groups."""

    def __init__(self, store: Store, topics: TopicTable, groups: GroupTable) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups

    def put_topic(self, request: Request) -> Answer:
        """Answer request 17: create a topic, or change it. Done when the name servers that answer know it."""
        fields = request.fields
        topic = TopicConfig(
            required(fields, "topic"),
            integer(fields, "readQueueNums", _QUEUES),
            integer(fields, "writeQueueNums", _QUEUES),
            Permission(integer(fields, "perm", READ_WRITE)),
            fields.get("topicFilterType", "SINGLE_TAG"),
            integer(fields, "topicSysFlag", 0),
            flag(fields, "order"),
        )
        try:
            self._topics.put(topic, parse_changes(fields.get("attributes", "")), request.peer)
        except RequestError as error:
            return failure(ResponseCode.INVALID_PARAMETER, str(error))
        return success()

    def delete_topic(self, request: Request) -> Answer:
        """Answer request 215: delete a topic and its messages; as in RocketMQ, also one that is not there."""
        topic = required(request.fields, "topic")
        _names.check_topic(topic)
        try:
            self._topics.delete(topic, request.peer)
        except RequestError as error:
            return failure(ResponseCode.INVALID_PARAMETER, str(error))
        # Also where the table has no such topic: its deletion may have been left halfway.
        self._store.delete_topic(topic)
        return success()

    def clean_unused(self, request: Request) -> Answer:
        """Answer request 316: delete the queues of topics that are not in the table."""
        _, topics = self._topics.snapshot()
        system = [topic for topic in self._store.queues() if self._topics.is_system(topic)]
        deleted = self._store.clean_unused([*topics, *system])
        _log.info("unused topics deleted topics=%d peer=%s", len(deleted), request.peer)
        return success()

    def clean(self, _request: Request) -> Answer:
        """Answer request 329: delete the files that have expired, at whatever hour."""
        self._store.clean(now=True)
        return success()

    def put_group(self, request: Request) -> Answer:
        """Answer request 200: create a consumer group, or change it. The body is Java's SubscriptionGroupConfig."""
        try:
            body = _json.loads_object(request.body)
            attributes = body.pop("attributes", None) or {}
            group = GroupConfig.from_request(body)
            changes = parse_changes(",".join(_change(name, value) for name, value in attributes.items()))
        except (ValueError, TypeError, AttributeError) as error:
            raise BadRequest(f"the body is no configuration of a consumer group: {error}") from error
        self._groups.put(group, changes, request.peer)
        return success()


def _change(name: str, value: object) -> str:
    return f"{name}={value}" if name.startswith("+") else name


def parse_changes(text: str) -> dict[str, str | None]:
    """Parse RocketMQ's `+name=value,-name`. Raises `BadRequest`."""
    changes: dict[str, str | None] = {}
    for part in filter(None, text.split(",")):
        name, separator, value = part[1:].partition("=")
        if not name or (part[0], bool(separator)) not in {("+", True), ("-", False)}:
            raise BadRequest(f"the attribute {part!r} is neither +name=value nor -name")
        if name in changes:
            raise BadRequest(f"the attribute {name} is changed twice")
        changes[name] = value if separator else None
    return changes
