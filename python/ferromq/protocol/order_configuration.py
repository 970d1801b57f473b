"""
The order configuration of a topic: the queues its message groups are spread over, as RocketMQ writes it.

`broker-a:4;broker-b:4` lies in the key-value table of name servers, in the namespace `ORDER_TOPIC_CONFIG` under the
topic's name. RocketMQ's clients choose a queue by its place, so the brokers are written in the order of their names.
`broker-b:0` keeps the place of a broker that has no queues now. Pure; shared by name server, broker and administrator.
"""

from collections.abc import Collection, Mapping


def parts(text: str | None) -> dict[str, int]:
    """Return the queues of each broker that has some, in the order of the names."""
    return {name: count for name, count in all_parts(text).items() if count}


def all_parts(text: str | None) -> dict[str, int]:
    """Return the queues of each broker, in the order of the names; what is no `name:number` is passed over."""
    found = {}
    for part in (text or "").split(";"):
        name, _, count = part.strip().rpartition(":")
        if name and count.isdecimal():
            found[name] = int(count)
    return dict(sorted(found.items()))


def text_of(queues: Mapping[str, int]) -> str:
    """Return it as it is written."""
    return ";".join(f"{name}:{count}" for name, count in sorted(queues.items()))


def canonical(text: str) -> str:
    """Return it in the order of the names; what has another form stays as it is."""
    found = all_parts(text)
    return text_of(found) if len(found) == len([part for part in text.split(";") if part]) else text


def with_part(text: str | None, broker_name: str, queues: int) -> str:
    """Return *text* with so many queues on one broker; 0 takes the broker out."""
    rest = {name: count for name, count in all_parts(text).items() if name != broker_name}
    return text_of({**rest, broker_name: queues} if queues else rest)


def without(text: str | None, goes: Collection[str], stays: Collection[str]) -> str:
    """
    Return *text* after the topic was deleted on the brokers *goes*; those of *stays* have it still.

    What other brokers have is not known: their parts stay only beside some of *stays*.
    """
    found = all_parts(text)
    return text_of({name: count for name, count in found.items() if name not in goes and found.keys() & set(stays)})
