"""RocketMQ's `.conf` and `.properties` files: lines of `KEY=VALUE`, and where each key stands."""

from pathlib import Path
from typing import NamedTuple

from ferromq.errors import ConfigError


class Place(NamedTuple):
    """The place of a key: a file and a line in it, or a source without lines."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"line {self.line} of {self.source}" if self.line else self.source


def read_text(path: str | Path) -> str:
    """Return the text of a configuration file. Raises `ConfigError`."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}") from error


def read_lines(path: str | Path) -> dict[str, tuple[str, Place]]:
    """Return the value of each key in a file, and its place. Raises `ConfigError`."""
    lines = parse_lines(read_text(path), str(path))
    return {key: (value, Place(str(path), number)) for key, (number, value) in lines.items()}


def parse_lines(text: str, source: str) -> dict[str, tuple[int, str]]:
    """Return each key of `KEY=VALUE` lines with the number of its first line, and the last of its values."""
    lines: dict[str, tuple[int, str]] = {}
    in_comment = False
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        # Files of RocketMQ begin with their licence as an XML comment.
        is_comment = in_comment or line.startswith("<!--")
        in_comment = is_comment and "-->" not in line
        if not line or line.startswith(("#", "!")) or (is_comment and "=" not in line):
            continue
        key, separator, value = (part.strip() for part in line.partition("="))
        if not separator:
            # The line may have a secret.
            raise ConfigError(f"line {number} of {source} is not KEY=VALUE")
        if "\\" in value:
            raise ConfigError(
                f"line {number} of {source}: the value of {key} has a backslash, an escape in RocketMQ's files; "
                "write it on one line without it"
            )
        lines[key] = (lines[key][0] if key in lines else number, value)
    return lines
