"""What a broker and a name server of ferromq say to each other in registrations beyond RocketMQ's fields."""

IS_CHANGE = "ferromqChange"
"""In a registration: the body has the topics that changed; all others are as they were."""
TAKES_CHANGES = "ferromqTakesChanges"
"""In the answer to a registration: the name server reads `IS_CHANGE`."""
