"""The properties that tell where a message comes from that consumers gave back or gave up."""

ORIGINS = ("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID")
"""A producer may not send them, so they are left out of what is replayed."""
CAUSES = ("DLQ_SOURCE_TOPIC", "DLQ_SOURCE_MESSAGE_ID", "DLQ_ATTEMPTS", "DLQ_REASON", "DLQ_EXCEPTION")
"""What a broker says of a dead letter to every client; it does not hold for what is replayed."""
