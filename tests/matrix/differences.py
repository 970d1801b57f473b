"""The accepted differences, from `differences.toml`."""

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from rows import Row

FILE: Final = Path(__file__).parent / "differences.toml"
KINDS: Final = {
    "generous": "ours is generous by default",
    "useful": "ours is more useful",
    "original": "the original fails",
    "client": "the client fails",
}
NOT_REACHED: Final = "not reached: "
"""The text of a check without a verdict begins so."""


@dataclass(frozen=True)
class Reason:
    """Why a check fails."""

    client: str
    """A pattern of clients, as is *version*: `*` stands for anything."""
    version: str
    check: str
    fails: str
    """`ours` or `original` alone, or `both`."""
    seen: str
    """A pattern of the failing check's text; `not reached` needs a pattern that begins so."""
    compat: tuple[str, ...]
    """Under which values of `compat` it fails; "" is the default."""
    kind: str
    reason: str
    sometimes: bool = False
    """Whether the check passes on both sides at other times."""

    def covers(self, row: Row, compat: str) -> bool:
        """Return whether it is about a row."""
        return (
            compat in self.compat
            and self.check in row.checks
            and fnmatchcase(row.client, self.client)
            and fnmatchcase(row.version, self.version)
        )

    def explains(self, seen: str) -> bool:
        """Return whether this is the failing check's text."""
        reached = not seen.startswith(NOT_REACHED) or self.seen.startswith(NOT_REACHED)
        return reached and fnmatchcase(seen, self.seen)

    def text(self) -> str:
        """Return the reason as the table shows it."""
        return f"{KINDS[self.kind]}: {self.reason}"


def read(path: Path = FILE) -> list[Reason]:
    """Read the reasons. Raises `ValueError` for a reason that fits no row."""
    reasons = []
    for each in tomllib.loads(path.read_text()).get("difference", []):
        reason = Reason(**{**each, "compat": tuple(each.get("compat", [""]))})
        if reason.fails not in {"ours", "original", "both"} or reason.kind not in KINDS:
            raise ValueError(f"{path}: `fails` is ours, original or both, `kind` one of {', '.join(KINDS)}: {each}")
        reasons.append(reason)
    return reasons
