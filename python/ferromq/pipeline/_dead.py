"""The properties that tell where a message comes from that consumers gave back or gave up."""

ORIGINS = ("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID")
"""A producer may not send them, so they are left out of what is replayed."""
