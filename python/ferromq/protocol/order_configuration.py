"""
The order configuration of a topic: the queues that its message groups are spread over, in RocketMQ's form.

`broker-a:4;broker-b:4` is a value in the key-value table of name servers, in the namespace `ORDER_TOPIC_CONFIG` under
the topic's name. RocketMQ's clients choose a queue by its position, so the brokers are sorted by name. `broker-b:0`
keeps the position of a broker without queues.
"""

from collections.abc import Collection, Mapping


def parts(text: str | None) -> dict[str, int]:
    """Return the number of queues of each broker with queues, sorted by name."""
    return {name: count for name, count in all_parts(text).items() if count}


def all_parts(text: str | None) -> dict[str, int]:
    """Return the number of queues of each broker, sorted by name. Skips parts that are not `name:number`."""
    found = {}
    for part in (text or "").split(";"):
        name, _, count = part.strip().rpartition(":")
        if name and count.isdecimal():
            found[name] = int(count)
    return dict(sorted(found.items()))


def text_of(queues: Mapping[str, int]) -> str:
    """Return the order configuration as text."""
    return ";".join(f"{name}:{count}" for name, count in sorted(queues.items()))


def canonical(text: str) -> str:
    """Return *text* sorted by name. Text in another form stays as it is."""
    found = all_parts(text)
    return text_of(found) if len(found) == len([part for part in text.split(";") if part]) else text


def with_part(text: str | None, broker_name: str, queues: int) -> str:
    """Return *text* with another number of queues on one broker; 0 removes the broker."""
    rest = {name: count for name, count in all_parts(text).items() if name != broker_name}
    return text_of({**rest, broker_name: queues} if queues else rest)


def without(text: str | None, goes: Collection[str], stays: Collection[str]) -> str:
    """
    Return *text* after the topic was deleted on the brokers *goes*; the brokers *stays* still have it.

    Parts of other, unknown brokers stay only together with some of *stays*.
    """
    found = all_parts(text)
    return text_of({name: count for name, count in found.items() if name not in goes and found.keys() & set(stays)})
