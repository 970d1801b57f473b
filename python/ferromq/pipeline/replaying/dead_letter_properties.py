"""Properties that a broker adds to a message in a retry or dead-letter topic."""

ORIGINS = ("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID")
"""The topic and id the message came from. Producers cannot set them, so a replay leaves them out."""
CAUSES = ("DLQ_SOURCE_TOPIC", "DLQ_SOURCE_MESSAGE_ID", "DLQ_ATTEMPTS", "DLQ_REASON", "DLQ_EXCEPTION")
"""Why the message became a dead letter. They do not hold for a replayed message."""
