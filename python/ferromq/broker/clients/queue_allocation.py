"""
RocketMQ's strategies that allocate queues to the members of a group.

A Java broker and this one give a member the same queues. All members must see the queues and each other in one order.
"""

from collections.abc import Callable, Mapping, Sequence

from ferromq.protocol.message_queue import MessageQueue

Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]


def averagely(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Return a member's queues: adjacent ones; the first members get one more if the division has a remainder."""
    if member not in members:
        return []
    index, (each, more) = members.index(member), divmod(len(queues), len(members))
    begin = index * each + min(index, more)
    return list(queues[begin : begin + each + (index < more)])


def by_circle(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Return a member's queues: every n-th one."""
    return list(queues[members.index(member) :: len(members)]) if member in members else []


STRATEGIES: Mapping[str, Strategy] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def share_to_pop(
    share: Strategy, queues: Sequence[MessageQueue], members: Sequence[str], member: str, others: int
) -> list[MessageQueue]:
    """
    Return the queues that a popping member asks: its own, and those of the next *others* members.

    With 0 or all others it asks every broker for any queue, which has the number -1. With more members than queues,
    each member asks one.
    """
    if others <= 0 or others >= len(members) - 1:
        return [MessageQueue(queue.topic, queue.broker_name, -1) for queue in queues]
    if member not in members:
        return []
    index = members.index(member)
    if len(members) > len(queues):
        return [queues[index % len(queues)]]
    sharing = (members[(index + step) % len(members)] for step in range(others + 1))
    return [queue for each in sharing for queue in share(queues, members, each)]
