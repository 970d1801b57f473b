"""
Changes of topics and consumer groups, and cleaning of the store, that administrators request over remoting.

The tables in `metadata` decide which topics and groups are valid.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ferromq._ferromq import Request, Store
from ferromq.broker.metadata.groups import GroupConfig, GroupTable
from ferromq.broker.metadata.topics import TopicConfig, TopicTable
from ferromq.errors import RequestError
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, BadRequest, boolean, failure, flag, integer, required, success

_log = logging.getLogger("ferromq.broker")

_QUEUES = 8

Attributes = Mapping[str, str | None]
"""Changes of attributes by name; None removes one."""


class TopicAndGroupChanges:
    """Answers requests 17, 18, 200, 207, 215, 225, 306, 316, 329 and 353."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        *,
        deleted: Callable[[str], object] = lambda _topic: None,
    ) -> None:
        """Take the tables; *deleted* is called with each topic whose messages were deleted, and may raise `OSError`."""
        self._store = store
        self._topics = topics
        self._groups = groups
        self._deleted = deleted
        self._seldom = LimitedLog(_log)

    def put_topic(self, request: Request) -> Answer:
        """Answer request 17: create or change a topic, and wait until the name servers that answer know it."""
        fields = request.fields
        name = required(fields, "topic")
        # Missing fields keep their values.
        before = self._topics.find(name) or TopicConfig(name, _QUEUES, _QUEUES)
        numbers = {
            "readQueueNums": integer(fields, "readQueueNums", before.read_queues),
            "writeQueueNums": integer(fields, "writeQueueNums", before.write_queues),
            "perm": integer(fields, "perm", int(before.permission)),
            "topicSysFlag": integer(fields, "topicSysFlag", before.sys_flag),
        }
        try:
            topic = TopicConfig.from_json(name, numbers)
        except ValueError as error:
            raise BadRequest(str(error)) from error
        kind = fields.get("topicFilterType", before.filter_type)
        topic = replace(topic, filter_type=kind, order=boolean(fields, "order", default=before.order))
        try:
            self._topics.put(topic, parse_changes(fields.get("attributes", "")), request.peer)
        except RequestError as error:
            return failure(ResponseCode.INVALID_PARAMETER, str(error))
        return success()

    def put_topics(self, request: Request) -> Answer:
        """Answer request 18: create or change a list of topics, all of them or none."""
        try:
            changes = parse_topics(request.body, self._topics.find)
            self._topics.put_all(changes, request.peer)
        except RequestError as error:
            return failure(ResponseCode.INVALID_PARAMETER, str(error))
        return success()

    def delete_topic(self, request: Request) -> Answer:
        """
        Answer request 215: delete a topic and its messages; as in RocketMQ, a missing topic is no error.

        Retry topics of this topic are deleted too, unless one of that name belongs to another group.
        """
        topic = required(request.fields, "topic")
        naming.check_topic(topic)
        groups = [name.rpartition("@")[2] for name in self._store.committed_offsets(topic=topic)]
        joined = [f"{group}{mark}{topic}" for group in groups for mark in "_+"]
        retries = [f"{naming.RETRY_PREFIX}{name}" for name in joined if self._groups.get(name) is None]
        names = [topic, *(name for name in retries if self._topics.find(name) is not None)]
        try:
            self._topics.delete_all(names, request.peer)
        except RequestError as error:
            return failure(ResponseCode.INVALID_PARAMETER, str(error))
        for name in names:
            # An earlier deletion may have stopped halfway, so this runs for a topic that the table lacks, too.
            self._delete(name)
        return success()

    def delete_group(self, request: Request) -> Answer:
        """Answer request 207: delete a consumer group, with `cleanOffset` its offsets; a missing group is no error."""
        group = required(request.fields, "groupName")
        naming.check_group(group)
        if group in naming.SYSTEM_GROUPS:
            return failure(ResponseCode.INVALID_PARAMETER, f"{group} is a system group and cannot be deleted")
        self._groups.delete(group, request.peer)
        if flag(request.fields, "cleanOffset"):
            topics = self._store.forget_group(group)
            _log.info("offsets deleted group=%s topics=%d peer=%s", group, topics, request.peer)
        return success()

    def forbid(self, request: Request) -> Answer:
        """Answer request 353: tell whether a group may read a topic; the field `readable` changes it."""
        fields = request.fields
        group, topic = required(fields, "group"), required(fields, "topic")
        if fields.get("readable"):
            self._groups.set_readable(group, topic, request.peer, is_readable=flag(fields, "readable"))
        body = {"group": group, "readable": self._groups.is_readable(group, topic), "topic": topic}
        return success(body=java_json.dumps(body))

    def clean_queues(self, _request: Request) -> Answer:
        """Answer request 306: delete entries of consume queues whose messages are deleted."""
        self._store.clean()
        return success()

    def clean_unused(self, request: Request) -> Answer:
        """Answer request 316: delete the queues of topics that the table lacks."""
        topics = self._topics
        unused = [name for name in self._store.queues() if topics.find(name) is None and not topics.is_system(name)]
        # A topic created on first use since then may already have messages and write layouts.
        deleted = [name for name in unused if topics.while_absent(name, partial(self._delete, name))]
        _log.info("unused topics deleted topics=%d peer=%s", len(deleted), request.peer)
        return success()

    def _delete(self, topic: str) -> int:
        queues = self._store.delete_topic(topic)
        try:
            self._deleted(topic)
        except OSError as error:
            # A stale layout can make a write to a new topic of this name fail, but loses nothing.
            text = "write layouts of a deleted topic are left over topic=%s: %s"
            self._seldom.log(logging.WARNING, text, topic, error)
        return queues

    def clean(self, _request: Request) -> Answer:
        """Answer request 329: delete expired files now, whatever the configured hours."""
        self._store.clean(now=True)
        return success()

    def put_group(self, request: Request) -> Answer:
        """Answer request 200: create or change a consumer group; the body is Java's SubscriptionGroupConfig."""
        return self._put_groups([parse_group(request.body, self._groups.get)], request.peer)

    def put_groups(self, request: Request) -> Answer:
        """Answer request 225: create or change a list of consumer groups, all of them or none."""
        return self._put_groups(parse_groups(request.body, self._groups.get), request.peer)

    def _put_groups(self, changes: list[tuple[GroupConfig, Attributes]], peer: str) -> Answer:
        try:
            self._groups.put_all(changes, peer)
        except RequestError as error:
            return failure(ResponseCode.INVALID_PARAMETER, str(error))
        return success()


def parse_topics(
    body: bytes, find: Callable[[str], TopicConfig | None] = lambda _name: None
) -> list[tuple[TopicConfig, Attributes]]:
    """
    Parse the body of request 18; missing fields keep the values of the topic that *find* returns.

    Raises `BadRequest` naming the wrong topic.
    """
    return [_topic(value, find) for value in _listed(body, "topicConfigList")]


Find = Callable[[str], GroupConfig | None]


def parse_group(body: bytes, find: Find = lambda _name: None) -> tuple[GroupConfig, Attributes]:
    """Parse the body of request 200; missing fields keep the values of *find*'s group. Raises `BadRequest`."""
    try:
        return _group(java_json.loads_object(body), find)
    except ValueError as error:
        raise BadRequest(f"the body is not a configuration of a consumer group: {error}") from error


def parse_groups(body: bytes, find: Find = lambda _name: None) -> list[tuple[GroupConfig, Attributes]]:
    """Parse the body of request 225, each group as in `parse_group`."""
    return [_group(value, find) for value in _listed(body, "groupConfigList")]


def _listed(body: bytes, name: str) -> list[dict[str, Any]]:
    try:
        values = java_json.loads_object(body).get(name)
    except ValueError as error:
        raise BadRequest(f"the body is not a list of configurations: {error}") from error
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise BadRequest(f"the body has no list of objects {name}")
    return values


_TOPIC_FIELDS: Mapping[str, type] = {
    "order": bool,
    "perm": int,
    "readQueueNums": int,
    "topicFilterType": str,
    "topicName": str,
    "topicSysFlag": int,
    "writeQueueNums": int,
}


def _topic(value: Mapping[str, Any], find: Callable[[str], TopicConfig | None]) -> tuple[TopicConfig, Attributes]:
    known = {name: value[name] for name in _TOPIC_FIELDS if value.get(name) is not None}
    name = known.pop("topicName", "")
    for field, content in {"topicName": name, **known}.items():
        if type(content) is not _TOPIC_FIELDS[field]:
            expected = _TOPIC_FIELDS[field].__name__
            raise BadRequest(f"{field} of the topic {name!r} is {content!r}; {expected} is expected")
    try:
        before = find(name)
        present = {} if before is None else {field: before.to_json()[field] for field in _TOPIC_FIELDS}
        return TopicConfig.from_json(name, {**present, **known}), _altered(value.get("attributes"))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise BadRequest(f"the topic {name!r} is invalid: {error}") from error


def _group(value: Mapping[str, Any], find: Find) -> tuple[GroupConfig, Attributes]:
    try:
        before = find(str(value.get("groupName")))
        given = {name: content for name, content in value.items() if name != "attributes" and content is not None}
        group = GroupConfig.from_request({**(before.to_json() if before else {}), **given})
        return group, _altered(value.get("attributes"))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise BadRequest(f"the body is not a configuration of a consumer group: {error}") from error


def _altered(attributes: Any) -> dict[str, str | None]:
    """Parse the attributes in a body: `{"+name": value, "-name": ""}`."""
    if attributes is None:
        return {}
    if not isinstance(attributes, dict):
        raise TypeError("attributes is not an object")
    return parse_changes(",".join(f"{name}={value}" if name[:1] == "+" else name for name, value in attributes.items()))


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
