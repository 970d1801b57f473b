"""The differences that have a reason, as `differences.toml` lists them."""

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
}


@dataclass(frozen=True)
class Reason:
    """Why a check fails on one side alone."""

    client: str
    """A pattern of clients, as is *version*: `*` stands for anything."""
    version: str
    check: str
    fails: str
    """`ours` or `original`."""
    compat: tuple[str, ...]
    """Under which values of `compat` ours differs; "" is the default."""
    kind: str
    reason: str
    sometimes: bool = False
    """Whether the check passes on both sides at other times."""

    def covers(self, row: Row, compat: str) -> bool:
        """Say whether it is about a row."""
        return (
            compat in self.compat
            and self.check in row.checks
            and fnmatchcase(row.client, self.client)
            and fnmatchcase(row.version, self.version)
        )

    def text(self) -> str:
        """Return the reason as the table shows it."""
        return f"{KINDS[self.kind]}: {self.reason}"


def read(path: Path = FILE) -> list[Reason]:
    """Read the reasons. Raises `ValueError` for one that nothing can fit."""
    reasons = []
    for each in tomllib.loads(path.read_text()).get("difference", []):
        reason = Reason(**{**each, "compat": tuple(each.get("compat", [""]))})
        if reason.fails not in {"ours", "original"} or reason.kind not in KINDS:
            raise ValueError(f"{path}: `fails` is ours or original, `kind` one of {', '.join(KINDS)}: {each}")
        reasons.append(reason)
    return reasons
