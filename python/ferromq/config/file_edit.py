"""
A configuration file changed in place: lines of what changed are replaced, all else stays as it was written.

What an option may be is decided by `config`.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from ferromq.config.reader import Config
from ferromq.errors import ConfigError
from ferromq.files import atomic


class ProtectedKey(ConfigError):  # noqa: N818 (the others of its kind have no suffix either)
    """A key that may not be changed from outside."""


def keep(path: Path, kind: type[Config], keys: Mapping[str, str], options: Mapping[str, str | bool]) -> None:
    """
    Set RocketMQ's *keys* in a `.conf` or `.properties`, or *options* in TOML; the file before stays as `.bak`.

    Raises `ConfigError` where the file would be none of this *kind*, each of its keys by itself, and `OSError` or
    `UnicodeDecodeError` where it cannot be read or written; it is left as it was then.
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
    """Set keys in RocketMQ's lines, KEY=VALUE; the last line of a key counts, so all of them are replaced by one."""
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
