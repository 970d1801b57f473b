"""Changes options in a configuration file and leaves its other lines as they are."""

import re
from collections.abc import Mapping
from pathlib import Path

from ferromq.config.reader import Config
from ferromq.errors import ConfigError
from ferromq.files import atomic


class ProtectedKey(ConfigError):  # noqa: N818 (the others of its kind have no suffix either)
    """A key that requests cannot change."""


def keep(path: Path, kind: type[Config], keys: Mapping[str, str], options: Mapping[str, str | bool]) -> None:
    """
    Set RocketMQ's *keys* in a `.conf` or `.properties`, or *options* in TOML. The old file stays as `.bak`.

    Raises `ConfigError` if the new file would not be a valid file of this *kind*, and `OSError` or `UnicodeDecodeError`
    if the file cannot be read or written. The file is then unchanged.
    """
    is_properties = path.suffix in {".conf", ".properties"}
    before = path.read_text(encoding="utf-8")
    after = set_lines(before, keys) if is_properties else set_toml(before, options)
    trial = path.with_name(f"{path.stem}.new{path.suffix}")
    trial.write_text(after, encoding="utf-8")
    try:
        (kind.parse_properties if is_properties else kind.parse_toml)(trial)
    finally:
        trial.unlink()
    atomic.replace_file(path, after.encode())


def set_lines(text: str, changes: Mapping[str, str]) -> str:
    """Set keys in lines of KEY=VALUE. One line replaces all lines of a key, because only the last one counts."""
    left = dict(changes)
    lines = []
    for line in text.splitlines():
        key = line.partition("=")[0].strip()
        if line.lstrip().startswith(("#", "!")) or key not in changes:
            lines.append(line)
        elif key in left:
            lines.append(f"{key}={left.pop(key)}")
    lines += [f"{key}={value}" for key, value in left.items()]
    return "\n".join(lines) + "\n"


def set_toml(text: str, changes: Mapping[str, str | bool]) -> str:
    """Set keys of a TOML file, before its first table."""
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    head, rest = lines[:begin], lines[begin:]
    for name, value in changes.items():
        line = f"{name} = {_toml(value)}"
        at = next((number for number, old in enumerate(head) if re.match(rf"\s*{re.escape(name)}\s*=", old)), None)
        if at is None:
            head.append(line)
        else:
            head[at] = line
    return "\n".join([*head, *rest]) + "\n"


def _toml(value: str | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
