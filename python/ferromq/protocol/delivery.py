"""
Fields of ferromq in request 14 and its answer: what became of one message of a queue in a group.

A broker that does not know them answers the committed offset alone.
"""

DELIVERY_OF = "ferromqQueueOffset"
"""In the request: the queue offset of the message."""
DELIVERY = "ferromqDelivery"
READY, LEASED, OVER = "ready", "leased", "over"
"""The values of `DELIVERY`. `over`: it was acknowledged, left out by a filter, or skipped."""
ATTEMPTS = "ferromqAttempts"
"""How often it was delivered, if the broker knows that."""
LEASED_UNTIL = "ferromqLeasedUntil"
"""When its lease expires, in milliseconds since 1970."""
