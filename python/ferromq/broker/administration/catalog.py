"""
Queries of topics and consumer groups, for administrators and slaves.

`topics_and_groups` changes them.
"""

from collections.abc import Mapping
from typing import Any

from ferromq._ferromq import Request
from ferromq.broker.metadata.groups import FORBIDDEN, GroupTable
from ferromq.broker.metadata.not_found import missing_group, missing_topic
from ferromq.broker.metadata.tables import TableContent
from ferromq.broker.metadata.topics import TopicTable
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, BadRequest, failure, integer, required, success
from ferromq.protocol.route import DataVersion

# RocketMQ's splitMetadataSize.
_PAGE = 2_000


class Catalog:
    """Answers requests 21, 201, 305, 351 and 352."""

    def __init__(self, topics: TopicTable, groups: GroupTable) -> None:
        self._topics = topics
        self._groups = groups

    def topics(self, request: Request) -> Answer:
        """Answer request 21: all topics, or the page that `topicSeq` and `dataVersion` name."""
        content = self._topics.content
        table = {name: topic.to_json() for name, topic in _requested(request.fields, "topic", content).items()}
        body = {
            "dataVersion": content.version.to_json(),
            "mappingDataVersion": DataVersion().to_json(),
            "topicConfigTable": table,
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
        return success({"totalTopicNum": str(len(content.entries))}, java_json.dumps(body))

    def groups(self, request: Request) -> Answer:
        """Answer request 201: all consumer groups and their forbidden topics, or a page as in request 21."""
        content = self._groups.content
        entries = _requested(request.fields, "group", content)
        forbidden = content.others.get(FORBIDDEN) or {}
        body = {
            "dataVersion": content.version.to_json(),
            "forbiddenTable": {name: topics for name, topics in forbidden.items() if name in entries},
            "subscriptionGroupTable": {name: group.to_json() for name, group in entries.items()},
        }
        return success({"totalGroupNum": str(len(content.entries))}, java_json.dumps(body))

    def topic(self, request: Request) -> Answer:
        """Answer request 351: one topic."""
        name = required(request.fields, "topic")
        topic = self._topics.find(name)
        if topic is None:
            return failure(ResponseCode.TOPIC_NOT_EXIST, missing_topic(name))
        return success(body=java_json.dumps(topic.to_json()))

    def group(self, request: Request) -> Answer:
        """Answer request 352: one consumer group, created if first use may create it."""
        name = required(request.fields, "group")
        group = self._groups.ensure(name, request.peer)
        if group is None:
            return failure(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, missing_group(name))
        return success(body=java_json.dumps(group.to_json()))

    def system_topics(self, _request: Request) -> Answer:
        """Answer request 305: the topics that belong to RocketMQ or to the broker itself."""
        names = {name for name in self._topics.content.entries if self._topics.is_system(name)}
        return success(body=java_json.dumps({"topicList": sorted(names | naming.SYSTEM_TOPICS)}))


def _requested(fields: Mapping[str, str], kind: str, content: TableContent[Any]) -> Mapping[str, Any]:
    """Return the requested entries; a page continues only if it names this version of the table, else it restarts."""
    place, most = f"{kind}Seq", f"max{kind.capitalize()}Num"
    if not any(fields.get(name) for name in ("dataVersion", place, most)):
        return content.entries
    try:
        version = (
            DataVersion.from_json(java_json.loads_object(fields["dataVersion"])) if fields.get("dataVersion") else None
        )
    except (ValueError, TypeError) as error:
        raise BadRequest(f"the header field dataVersion is not a version: {error}") from error
    first = integer(fields, place, 0) if version == content.version else 0
    return content.page(first, min(_PAGE, integer(fields, most, _PAGE)))
