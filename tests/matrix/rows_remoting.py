"""The rows of remoting clients."""

from rows import Row

ROWS: tuple[Row, ...] = ()
