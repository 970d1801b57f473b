"""The topics of a read: by name, list or pattern."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ferromq.errors import IllegalName
from ferromq.protocol import naming


@dataclass(frozen=True, slots=True)
class Topics:
    """Names or a pattern; with neither, all topics except internal ones."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    system: bool = False
    """Without names, include internal topics."""

    @classmethod
    def named(cls, names: Iterable[str]) -> "Topics":
        """Return the topics *names*. Raises ValueError for an invalid name."""
        chosen = tuple(names)
        for name in chosen:
            try:
                naming.check_topic(name)
            except IllegalName as error:
                raise ValueError(str(error)) from error
        return cls(chosen)

    @classmethod
    def matching(cls, pattern: str, *, system: bool = False) -> "Topics":
        """Return the topics whose whole name matches *pattern*. Raises ValueError for an invalid pattern."""
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(str(error)) from error
        return cls(pattern=pattern, system=system)

    def __str__(self) -> str:
        return ", ".join(self.names) or f"the topics that match {self.pattern!r}"

    def choose(self, known: Iterable[str]) -> list[str]:
        """Return which of the topics *known* are included, sorted."""
        return sorted({name for name in known if self.includes(name)})

    def includes(self, name: str) -> bool:
        """Check whether the topic *name* is included."""
        if self.names:
            return name in self.names
        if not self.system and is_internal(name):
            return False
        return self.pattern is None or re.fullmatch(self.pattern, name) is not None


def is_internal(name: str) -> bool:
    """Check whether RocketMQ itself writes the topic: half and op messages, delays, retries, traces."""
    is_system = naming.is_system_topic(name) and name != naming.BENCHMARK_TOPIC
    return is_system or name.startswith(naming.RETRY_PREFIX)
