"""The summary that a pipeline prints at its end."""

import json
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ferromq.terminal import formatting


class Summary:
    """
    Named figures, then tables: printed as text, or with `--json` as one object.

    In JSON, `_` replaces blanks in names, and a table is a list of objects.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._figures: list[tuple[str, Any, str]] = []
        self._tables: list[tuple[str, Sequence[str], Sequence[Sequence[Any]], str, int]] = []

    def add(self, name: str, value: Any, text: str | None = None) -> None:
        """Add a figure; *text* replaces it in the printed text."""
        shown = f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
        self._figures.append((name, value, shown if text is None else text))

    def table(
        self, name: str, head: Sequence[str], rows: Sequence[Sequence[Any]], alignment: str, *, more: int = 0
    ) -> None:
        """Add a table; *alignment* has `<` or `>` for each column. The text ends with the number of *more* rows."""
        self._tables.append((name, head, rows, alignment, more))

    def text(self) -> str:
        """Return the summary as text."""
        width = max((len(name) for name, _, _ in self._figures), default=0)
        lines = [self._title, *(f"  {name:<{width}}  {text}" for name, _, text in self._figures)]
        for name, head, rows, alignment, more in self._tables:
            if rows:
                cells = [["" if cell is None else _cell(cell) for cell in row] for row in rows]
                lines += ["", name, *(f"  {line}" for line in formatting.table(head, cells, alignment))]
                lines += [f"  … and {more:,} more"] if more else []
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as the object that `--json` prints."""
        figures = {name.replace(" ", "_"): value for name, value, _ in self._figures}
        keys = {name: [word.replace(" ", "_") for word in head] for name, head, *_ in self._tables}
        tables = {
            name.replace(" ", "_"): [dict(zip(keys[name], row, strict=True)) for row in rows]
            for name, _, rows, *_ in self._tables
        }
        return figures | tables

    def show(self, arguments: SimpleNamespace) -> None:
        """Print the summary to stdout, as JSON if *arguments* have `--json`."""
        text = json.dumps(self.as_dict(), default=str, ensure_ascii=False) if arguments.json else self.text()
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
