"""How objects show themselves: one line for `repr`, a small table for notebooks."""

import json
from collections.abc import Iterable, Sequence
from html import escape

_LONGEST = 200
"""More characters of a cell are cut off."""


def described(kind: str, state: str, **fields: object) -> str:
    """Return the `repr` of an object: its kind, its fields and its state."""
    shown = "".join(f" {name}={json.dumps(str(value), ensure_ascii=False)}" for name, value in fields.items())
    return f"<{kind}{shown} {state}>"


def html(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table for notebooks, with all texts escaped; without a head, the first cell of a row is its heading."""
    top = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>" if head else ""
    body = "".join(f"<tr>{''.join(_cells(row, has_head=bool(head)))}</tr>" for row in rows)
    return f"<div><b>{escape(title)}</b><table>{top}{body}</table></div>"


def _cells(row: Sequence[object], *, has_head: bool) -> Iterable[str]:
    for number, cell in enumerate(row):
        text = str(cell)
        text = escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
        yield f"<th>{text}</th>" if number == 0 and not has_head else f"<td>{text}</td>"
