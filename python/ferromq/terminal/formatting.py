"""Numbers, sizes, times and tables as text for people."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

_WIDEST = 60
"""Longer cells do not widen their column."""
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_UNIT = 1024


def table(head: Sequence[str], rows: Sequence[Sequence[str]], alignment: str) -> Iterator[str]:
    """Yield the lines of a table. *alignment* has `<` or `>` for each column."""
    widths = [max(len(cell) for cell in column if len(cell) <= _WIDEST) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = (f"{cell:{side}{width}}" for cell, side, width in zip(row, alignment, widths, strict=True))
        yield "  ".join(cells).rstrip()


def number(count: int, thing: str) -> str:
    """Return a count with its unit: `1 file`, `2,000 files`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def size(count: float) -> str:
    """Return a number of bytes with a unit: `1.5 MiB`."""
    for unit in _UNITS:
        if count < _UNIT or unit == _UNITS[-1]:
            return f"{count:,.0f} {unit}" if unit == _UNITS[0] else f"{count:,.1f} {unit}"
        count /= _UNIT
    raise AssertionError(count)


def instant(time: int | None) -> str:
    """Return a time, given in milliseconds since 1970, in UTC; `-` for none."""
    if not time:
        return "-"
    try:
        return datetime.fromtimestamp(time / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (ValueError, OverflowError, OSError):
        return f"{time} ms"


def age(seconds: float | None) -> str:
    """Return a duration for people: `12 s`, `3 m 5 s`, `2 h 10 m`, `3 d 4 h`."""
    if seconds is None:
        return "-"
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    left = round(seconds)
    parts: list[str] = []
    for name, length in units:
        count, left = divmod(left, length)
        if count or (parts and name != "s"):
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"


def span(first: int | None, last: int | None) -> str:
    """Return two times as text."""
    return f"{instant(first)} to {instant(last)}"
