"""Header fields of ferromq in registrations, in addition to RocketMQ's."""

IS_CHANGE = "ferromqChange"
"""In a registration: the body has only the changed topics."""
TAKES_CHANGES = "ferromqTakesChanges"
"""In the answer: the name server supports `IS_CHANGE`."""
