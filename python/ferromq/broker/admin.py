"""
Changes an administrator asks a broker for over remoting: topics, so far.

What a topic may be is decided by `topics`.
"""

from ferromq._codes import ResponseCode
from ferromq._ferromq import Request
from ferromq._remoting import Answer, BadRequest, failure, flag, integer, required, success
from ferromq.broker.topics import TopicConfig, TopicTable
from ferromq.errors import RequestError
from ferromq.route import READ_WRITE, Permission

_QUEUES = 8


class Administration:
    """Answers requests that change topics."""

    def __init__(self, topics: TopicTable) -> None:
        self._topics = topics

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
