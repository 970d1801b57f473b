"""
The order configuration of a topic: the queues its message groups are spread over, as RocketMQ writes it.

`broker-a:4;broker-b:4` lies in the key-value table of name servers, in the namespace `ORDER_TOPIC_CONFIG` under the
topic's name. RocketMQ's clients choose a queue by its place, so the brokers are written in the order of their names.
Pure; shared by name server, broker and administrator.
"""

from collections.abc import Mapping


def parts(text: str | None) -> dict[str, int]:
    """Return the queues of each broker, in the order of the names; what is no `name:number` is passed over."""
    found = {}
    for part in (text or "").split(";"):
        name, _, count = part.strip().rpartition(":")
        if name and count.isdecimal():
            found[name] = int(count)
    return dict(sorted(found.items()))


def text_of(queues: Mapping[str, int]) -> str:
    """Return it as it is written; a broker without queues is left out."""
    return ";".join(f"{name}:{count}" for name, count in sorted(queues.items()) if count)


def canonical(text: str) -> str:
    """Return it in the order of the names; what has another form stays as it is."""
    found = parts(text)
    return text_of(found) if len(found) == len([part for part in text.split(";") if part]) else text


def with_part(text: str | None, broker_name: str, queues: int) -> str:
    """Return *text* with so many queues on one broker; 0 takes the broker out."""
    return text_of({**parts(text), broker_name: queues})
