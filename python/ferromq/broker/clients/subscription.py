"""What consumer groups subscribe to and how they consume, in RocketMQ's words and JSON."""

from dataclasses import dataclass
from typing import Any

from ferromq.protocol.java_hash import java_hash

BROADCASTING, CLUSTERING = "BROADCASTING", "CLUSTERING"
ACTIVELY, PASSIVELY = "CONSUME_ACTIVELY", "CONSUME_PASSIVELY"
FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
TAG = "TAG"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to a topic, as reported by its members."""

    topic: str
    expression: str = "*"
    expression_type: str = TAG
    version: int = 0
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    class_filter: bool = False

    @classmethod
    def of(cls, topic: str, expression: str, expression_type: str, version: int) -> "Subscription":
        """Return a subscription; a tag expression is split into its tags."""
        is_some = expression_type == TAG and expression != "*"
        tags = tuple(filter(None, map(str.strip, expression.split("||")))) if is_some else ()
        return cls(topic, expression, expression_type, version, tags, tuple(map(java_hash, tags)))

    def to_json(self) -> dict[str, Any]:
        """Return Java's SubscriptionData."""
        return {
            "classFilterMode": self.class_filter,
            "codeSet": list(self.codes),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }


@dataclass(frozen=True, slots=True)
class ConsumeSettings:
    """How a group consumes, in RocketMQ's words."""

    consume_type: str = PASSIVELY
    message_model: str = CLUSTERING
    from_where: str = FROM_LAST_OFFSET
