"""
Changes an administrator asks a broker for over remoting: topics and consumer groups.

What a topic may be is decided by `topics`, what a group may be by `groups`.
"""

from ferromq import _json
from ferromq._codes import ResponseCode
from ferromq._ferromq import Request
from ferromq._remoting import Answer, BadRequest, failure, flag, integer, required, success
from ferromq.broker.groups import GroupConfig, GroupTable
from ferromq.broker.topics import TopicConfig, TopicTable
from ferromq.errors import RequestError
from ferromq.route import READ_WRITE, Permission

_QUEUES = 8


class Administration:
    """Answers requests that change topics and groups."""

    def __init__(self, topics: TopicTable, groups: GroupTable) -> None:
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
