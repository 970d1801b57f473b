"""
What happens to ferromq's objects in a forked child: they are let go, and using them is a clear error.

A fork copies memory but no threads. The extension is told once, so that it drops its runtime and leaves the locks of
the parent's store alone; objects of Python ask `Owner` before they touch anything.
"""

import os

from ferromq import _ferromq
from ferromq.errors import ForkedProcess

os.register_at_fork(after_in_child=_ferromq.forked_child)


class Owner:
    """Remembers the process that made an object."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Says whether this is the process that made the object."""
        return os.getpid() == self._pid

    def take_over(self) -> None:
        """Let the object belong to this process: it has no threads and no connections yet."""
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise `ForkedProcess` in a child."""
        if not self.is_here:
            raise ForkedProcess(
                f"this {self._what} belongs to process {self._pid}, which forked this one; "
                "its threads and connections are not here. Make a new one after the fork"
            )
