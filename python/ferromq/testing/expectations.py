"""
Expected messages, and the differences between them and found ones as text that a person can read.

Pure: it reads no broker.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from ferromq.errors import CorruptMessage
from ferromq.message import Message, MessageView

_LONGEST_TEXT = 200
_MOST_EQUAL = 3
"""Equal messages that are shown in a row."""
_MOST_PAIRS = 4_000_000
_MILLISECOND = timedelta(milliseconds=1)


class _Anything:
    """The value of a field that is not compared."""

    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING: Final = _Anything()


@dataclass(frozen=True, kw_only=True)
class Like:
    """
    An expected message of which only the given fields count.

    *json* is compared with the parsed body. The message may have more properties than *properties*. *keys* is one key
    or all of them. None means that the message has no such field: `Like(tag=None)`. *delivery_timestamp* is an aware
    `datetime`, or milliseconds since 1970. Raises `TypeError` if both *body* and *json* are given, `ValueError` for a
    naive time.
    """

    body: bytes | _Anything = ANYTHING
    json: Any = ANYTHING
    tag: str | _Anything | None = ANYTHING
    keys: str | Sequence[str] | _Anything | None = ANYTHING
    properties: Mapping[str, str] | _Anything = ANYTHING
    message_group: str | _Anything | None = ANYTHING
    delivery_timestamp: datetime | int | _Anything | None = ANYTHING
    priority: int | _Anything | None = ANYTHING

    def __post_init__(self) -> None:
        if self.body is not ANYTHING and self.json is not ANYTHING:
            raise TypeError("Like has both body and json; give one of them")
        if isinstance(self.delivery_timestamp, datetime) and self.delivery_timestamp.tzinfo is None:
            raise ValueError(f"delivery_timestamp is {self.delivery_timestamp}, which has no time zone; add tzinfo=UTC")

    def __repr__(self) -> str:
        given = ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        return " ".join(f"{name}={_short(value)}" for name, value in given if value is not ANYTHING) or "any message"


Expected = bytes | bytearray | memoryview | Message | Like
"""A body, of which only the bytes count; a message, of which every field counts; or a `Like`."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    expected: Any
    found: Any

    def __str__(self) -> str:
        compared = self.found
        if isinstance(self.expected, Mapping) and self.name == "properties" and not isinstance(self.expected, _Exactly):
            # The others do not count.
            compared = {name: value for name, value in self.found.items() if name in self.expected}
        where = _where(self.expected, compared)
        return f"{self.name}: expected {_short(self.expected)}, found {_short(self.found)}{where}"


def checked(expected: object) -> list[Expected]:
    """Return a list of expected messages. Raises `TypeError` for anything else, such as one message or a text."""
    if isinstance(expected, bytes | bytearray | memoryview | str | Message | Like) or not isinstance(
        expected, Sequence
    ):
        raise TypeError(f"a list of messages is expected, not {_short(expected)}; put one message into a list")
    for each in expected:
        if not isinstance(each, bytes | bytearray | memoryview | Message | Like):
            raise TypeError(f"an expected message is bytes, a ferromq.Message or a Like, not {_short(each)}")
    return list(expected)


def differences(what: str, expected: Sequence[Expected], found: Sequence[MessageView], *, in_any_order: bool) -> str:
    """Return how *found* differs from *expected*, in lines that begin with *what*; empty if it does not."""
    pairs = list(_matched(expected, found) if in_any_order else _aligned(expected, found))
    equal = sum(wanted is not None and there is not None and not fields for wanted, there, fields in pairs)
    if equal == len(pairs):
        return ""
    title = f"{what}: {len(expected)} expected, {len(found)} found, {equal} equal"
    return "\n".join([title, "", *_lines(pairs)])


def show(message: MessageView) -> str:
    """Return a message on one line: body, tag, keys, properties, and what else it has."""
    shown = [f"body={_short(_body(message))}", f"tag={message.tag!r}", f"keys={message.keys!r}"]
    shown.append(f"properties={_short(message.properties)}")
    for name in ("message_group", "delivery_timestamp", "priority"):
        value = getattr(message, name)
        if value is not None:
            shown.append(f"{name}={value!r}")
    return " ".join(shown)


_Pair = tuple[Expected | None, MessageView | None, list[_Field]]


def _lines(pairs: list[_Pair]) -> Iterator[str]:
    equal: list[str] = []
    wanted_number = found_number = 0
    for wanted, there, fields in pairs:
        wanted_number += wanted is not None
        found_number += there is not None
        if wanted is not None and there is not None and not fields:
            equal.append(f"    {found_number:>3}  {show(there)}")
            continue
        yield from _folded(equal)
        equal = []
        if wanted is not None:
            yield f"  - {wanted_number:>3}  {_show_expected(wanted)}" + ("" if there is not None else "   (missing)")
        if there is not None:
            yield f"  + {found_number:>3}  {show(there)}" + ("" if wanted is not None else "   (not expected)")
        yield from (f"           {field}" for field in fields)
    yield from _folded(equal)


def _folded(lines: list[str]) -> Iterator[str]:
    if len(lines) <= _MOST_EQUAL:
        yield from lines
        return
    yield lines[0]
    yield f"         … {len(lines) - 2} equal messages"
    yield lines[-1]


def _aligned(expected: Sequence[Expected], found: Sequence[MessageView]) -> Iterator[_Pair]:
    """Yield pairs in order, with as many equal ones as possible, so that one missing message shifts no others."""
    begin, ends = 0, (len(expected), len(found))
    while begin < min(ends) and not compare(expected[begin], found[begin]):
        yield expected[begin], found[begin], []
        begin += 1
    row, column = begin, begin
    for next_row, next_column in [*_common(expected[begin:], found[begin:]), (ends[0] - begin, ends[1] - begin)]:
        yield from _unequal(expected[row : begin + next_row], found[column : begin + next_column])
        row, column = begin + next_row, begin + next_column
        if row < ends[0] and column < ends[1]:
            yield expected[row], found[column], []
        row, column = row + 1, column + 1


def _unequal(expected: Sequence[Expected], found: Sequence[MessageView]) -> Iterator[_Pair]:
    """Yield the messages between two equal ones, side by side as long as there are both."""
    for number in range(max(len(expected), len(found))):
        wanted = expected[number] if number < len(expected) else None
        there = found[number] if number < len(found) else None
        fields = compare(wanted, there) if wanted is not None and there is not None else []
        yield wanted, there, fields


def _common(expected: Sequence[Expected], found: Sequence[MessageView]) -> list[tuple[int, int]]:
    """Return the places of a longest common subsequence; of very long lists, of equal messages at equal places."""
    rows, columns = len(expected), len(found)
    if rows * columns > _MOST_PAIRS:
        return [
            (number, number) for number in range(min(rows, columns)) if not compare(expected[number], found[number])
        ]
    equal = [[not compare(wanted, there) for there in found] for wanted in expected]
    longest = [[0] * (columns + 1) for _ in range(rows + 1)]
    for row in range(rows - 1, -1, -1):
        for column in range(columns - 1, -1, -1):
            longest[row][column] = (
                longest[row + 1][column + 1] + 1
                if equal[row][column]
                else max(longest[row + 1][column], longest[row][column + 1])
            )
    places, row, column = list[tuple[int, int]](), 0, 0
    while row < rows and column < columns:
        if equal[row][column]:
            places.append((row, column))
            row, column = row + 1, column + 1
        elif longest[row + 1][column] >= longest[row][column + 1]:
            row += 1
        else:
            column += 1
    return places


def _matched(expected: Sequence[Expected], found: Sequence[MessageView]) -> Iterator[_Pair]:
    """Yield pairs whatever their order: each expected message with one that equals it, then the others."""
    left = list(found)
    missing: list[Expected] = []
    # The most exact first: a body alone must not take the message that only a whole one matches.
    for wanted in sorted(expected, key=_vagueness):
        there = next((each for each in left if not compare(wanted, each)), None)
        if there is None:
            missing.append(wanted)
        else:
            left.remove(there)
            yield wanted, there, []
    yield from _unequal(missing, left)


def _vagueness(expected: Expected) -> int:
    if isinstance(expected, Like):
        return sum(getattr(expected, name) is ANYTHING for name in expected.__dataclass_fields__)
    return 0 if isinstance(expected, Message) else len(Like.__dataclass_fields__) - 1


def compare(expected: Expected, found: MessageView) -> list[_Field]:
    """Return the fields in which a message differs from an expected one."""
    if isinstance(expected, Message):
        wanted = _whole(expected, found)
    elif isinstance(expected, Like):
        wanted = {name: getattr(expected, name) for name in expected.__dataclass_fields__}
    else:
        wanted = {"body": bytes(expected)}
    return [
        _Field(name, value, there)
        for name, value in wanted.items()
        if value is not ANYTHING and not _FIELDS[name][1](value, there := _FIELDS[name][0](found))
    ]


def _whole(expected: Message, found: MessageView) -> Mapping[str, object]:
    due = expected.delivery_timestamp
    if expected.delay is not None:
        due = found.born_timestamp + expected.delay // _MILLISECOND
    return {
        "body": expected.body,
        "tag": expected.tag,
        "keys": expected.keys,
        "properties": _Exactly(expected.properties),
        "message_group": expected.message_group,
        "delivery_timestamp": due,
        "priority": expected.priority,
    }


class _Exactly(dict[str, str]):
    """Properties, of which a message has no others."""


def _same(expected: object, found: object) -> bool:
    return bool(expected == found)


def _same_keys(expected: Any, found: Any) -> bool:
    given = () if expected is None else (expected,) if isinstance(expected, str) else tuple(expected)
    return bool(given == found)


def _same_properties(expected: Any, found: Any) -> bool:
    return bool(expected == found if isinstance(expected, _Exactly) else expected.items() <= found.items())


def _same_time(expected: Any, found: Any) -> bool:
    if isinstance(expected, datetime):
        expected = round(expected.timestamp() * 1000)
    return bool(expected == found)


def _body(message: MessageView) -> bytes | CorruptMessage:
    try:
        return message.body
    except CorruptMessage as error:
        return error


def _json(message: MessageView) -> object:
    body = _body(message)
    try:
        return json.loads(body) if isinstance(body, bytes) else body
    except ValueError:
        return body


# Name → how the field is read from a message, and how it is compared.
_FIELDS: Mapping[str, tuple[Callable[[MessageView], object], Callable[[Any, Any], bool]]] = {
    "body": (_body, _same),
    "json": (_json, _same),
    "tag": (lambda found: found.tag, _same),
    "keys": (lambda found: found.keys, _same_keys),
    "properties": (lambda found: found.properties, _same_properties),
    "message_group": (lambda found: found.message_group, _same),
    "delivery_timestamp": (lambda found: found.delivery_timestamp, _same_time),
    "priority": (lambda found: found.priority, _same),
}


def _show_expected(expected: Expected) -> str:
    if isinstance(expected, Like):
        return repr(expected)
    if not isinstance(expected, Message):
        return f"body={_short(bytes(expected))}"
    shown = [f"body={_short(expected.body)}", f"tag={expected.tag!r}", f"keys={expected.keys!r}"]
    shown.append(f"properties={_short(expected.properties)}")
    for name in ("message_group", "delivery_timestamp", "delay", "priority"):
        value = getattr(expected, name)
        if value is not None:
            shown.append(f"{name}={value!r}")
    return " ".join(shown)


def _short(value: object) -> str:
    """Return the text of a value, with its middle left out if it is long."""
    text = repr(dict(value) if isinstance(value, _Exactly) else value)
    if len(text) <= _LONGEST_TEXT:
        return text
    size = f" ({len(value)} bytes)" if isinstance(value, bytes) else ""
    return f"{text[: _LONGEST_TEXT - 20]}…{text[-19:]}{size}"


def _where(expected: object, found: object) -> str:
    """Return where two long bodies, or two JSON values, begin to differ."""
    if isinstance(expected, bytes) and isinstance(found, bytes) and max(len(expected), len(found)) > _LONGEST_TEXT // 4:
        pairs = zip(expected, found, strict=False)
        at = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(expected), len(found)))
        begin = max(0, at - 10)
        return f"; they differ from byte {at} on: {expected[begin : at + 20]!r}, {found[begin : at + 20]!r}"
    if isinstance(expected, dict | list) and isinstance(found, dict | list):
        return "".join(f"\n             {line}" for line in _json_differences(expected, found, ""))
    return ""


def _json_differences(expected: object, found: object, path: str) -> Iterator[str]:
    """Yield a line for each place in which two JSON values differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in [*expected, *(name for name in found if name not in expected)]:
            inside = f"{path}.{name}" if path else str(name)
            if name not in found:
                yield f"{inside}: missing"
            elif name not in expected:
                yield f"{inside}: not expected, {_short(found[name])}"
            else:
                yield from _json_differences(expected[name], found[name], inside)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from _json_differences(one, other, f"{path}[{number}]")
    elif expected != found:
        yield f"{path or 'the value'}: expected {_short(expected)}, found {_short(found)}"
