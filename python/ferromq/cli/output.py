"""What commands print."""

import sys
from typing import TextIO


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line at once, to stdout unless *stream* is given."""
    print(text, file=stream or sys.stdout, flush=True)


def fail(error: Exception, *, code: int) -> int:
    """Print an error to stderr and return the exit code."""
    say(f"ferromq: {error}", sys.stderr)
    return code
