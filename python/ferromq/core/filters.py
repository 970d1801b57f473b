"""Which messages of a topic a consumer wants: tags, or an SQL condition over properties."""

from dataclasses import dataclass

from ferromq import _ferromq
from ferromq._proto import messages as pb
from ferromq.errors import IllegalFilter
from ferromq.terminal.objects import html_of

__all__ = ["Sql"]

_KINDS = {pb.FilterType.TAG: "TAG", pb.FilterType.SQL: "SQL92"}


@dataclass(frozen=True, slots=True)
class Sql:
    """
    A condition over the properties of a message, in RocketMQ's SQL92: `Sql("price > 3 AND region IN ('eu', 'us')")`.

    Raises `IllegalFilter` for one that is none, with the position where it goes wrong.
    """

    expression: str

    def __post_init__(self) -> None:
        _check(pb.FilterType.SQL, self.expression)

    def _repr_html_(self) -> str:
        return html_of(self)


def filter_expression(wanted: "str | Sql") -> pb.FilterExpression:
    """Return a filter as the protocol writes it: tags joined by `||`, or `Sql`. Raises `IllegalFilter`."""
    if isinstance(wanted, Sql):
        return pb.FilterExpression(type=pb.FilterType.SQL, expression=wanted.expression)
    if not isinstance(wanted, str):
        raise TypeError(f"a filter is tags joined by || or a ferromq.Sql, not {type(wanted).__name__}")
    _check_tags(wanted)
    _check(pb.FilterType.TAG, wanted)
    return pb.FilterExpression(type=pb.FilterType.TAG, expression=wanted)


def _check_tags(expression: str) -> None:
    """Refuse what a broker takes and what never matches: a tag has no bar in it, and is not empty."""
    position = 0
    for part in expression.split("||") if expression.strip() else ():
        tag = part.strip()
        place = f"at position {position + len(part) - len(part.lstrip())}"
        if not tag:
            raise IllegalFilter(f"{expression!r}: a tag is missing {place}; tags are joined by ||, as 'new || paid'")
        if "|" in tag:
            raise IllegalFilter(
                f"{expression!r}: {tag!r} {place} is not a tag; tags are joined by ||, as 'new || paid'"
            )
        if tag == "*" and expression.strip() != "*":
            raise IllegalFilter(f"{expression!r}: * {place} is not a tag; alone it stands for every message")
        position += len(part) + 2


def _check(kind: pb.FilterType, expression: str) -> None:
    try:
        _ferromq.check_filter(_KINDS[kind], expression)
    except ValueError as error:
        raise IllegalFilter(f"{expression!r}: {error}") from None
