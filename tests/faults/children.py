"""Commands of programs that do not outlive the tests' own process, not even where that is killed."""

import sys
from collections.abc import Sequence

# Linux's PR_SET_PDEATHSIG: SIGKILL once the thread that started the program is gone.
_DIES_WITH_US = "import ctypes, sys; getattr(ctypes.CDLL(None), 'prctl', lambda *_: 0)(1, 9); "


def command(function: str = "main") -> Sequence[str]:
    """Return the words that run a function of `ferromq.cli`, as the command of its name does."""
    return [sys.executable, "-c", f"{_DIES_WITH_US}from ferromq.cli.main import {function}; sys.exit({function}())"]
