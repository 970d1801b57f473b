"""The rows of frameworks and tools that bring their own client."""

from rows import Row

ROWS: tuple[Row, ...] = ()
