"""Commands of programs that end with the tests' own process, even if it is killed."""

import sys
from collections.abc import Sequence

# Linux's PR_SET_PDEATHSIG: SIGKILL once the thread that started the program is gone.
_DIES_WITH_US = "import ctypes, sys; getattr(ctypes.CDLL(None), 'prctl', lambda *_: 0)(1, 9); "


def command(function: str = "main") -> Sequence[str]:
    """Return the command that runs a function of `ferromq.cli`, like the console script of its name."""
    return [sys.executable, "-c", f"{_DIES_WITH_US}from ferromq.cli.main import {function}; sys.exit({function}())"]
