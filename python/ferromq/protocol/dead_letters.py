"""Properties that a broker adds to a message in a retry or dead-letter topic, and what they say of its origin."""

from collections.abc import Mapping

from ferromq.protocol import naming

ORIGINS = ("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID")
"""The topic and id the message came from. Producers cannot set them, so a replay leaves them out."""
CAUSES = ("DLQ_SOURCE_TOPIC", "DLQ_SOURCE_MESSAGE_ID", "DLQ_ATTEMPTS", "DLQ_REASON", "DLQ_EXCEPTION")
"""Why the message became a dead letter. They do not hold for a replayed message."""

_TOPICS = ("DLQ_SOURCE_TOPIC", "DLQ_ORIGIN_TOPIC", "RETRY_TOPIC")
_IDS = ("DLQ_SOURCE_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID")


def origin_topic(properties: Mapping[str, str]) -> str | None:
    """Return the topic that a dead letter came from; None: its properties do not tell."""
    for name in _TOPICS:
        topic = properties.get(name)
        # RocketMQ may note the retry topic on the way.
        if topic and not topic.startswith((naming.RETRY_PREFIX, naming.DLQ_PREFIX)):
            return topic
    return None


def origin_id(properties: Mapping[str, str]) -> str | None:
    """Return the id that a dead letter had in its topic; None: its properties do not tell."""
    return next((properties[name] for name in _IDS if properties.get(name)), None)
