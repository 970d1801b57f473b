"""
Makes the use of ferromq's objects in a forked child a clear error.

A fork copies memory but no threads. The extension is notified, so that it drops its runtime and does not release the
locks of the parent's store. Python objects call `Owner` before they do anything.
"""

import os

from ferromq import _ferromq
from ferromq.errors import ForkedProcess

if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_ferromq.forked_child)


class Owner:
    """Remembers the process that created an object."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this process created the object."""
        return os.getpid() == self._pid

    def take_over(self) -> None:
        """Make this process the owner of an object that has no threads and no connections yet."""
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise `ForkedProcess` in a forked child."""
        if not self.is_here:
            raise ForkedProcess(
                f"this {self._what} belongs to process {self._pid}, which forked this one; "
                "its threads and connections are not here. Create a new one after the fork"
            )
