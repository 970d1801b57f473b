"""Changes options in a configuration file and leaves its other lines as they are."""

import json
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ferromq.config.reader import Config
from ferromq.errors import ConfigError
from ferromq.files import atomic


class ProtectedKey(ConfigError):  # noqa: N818 (the others of its kind have no suffix either)
    """A key that requests cannot change."""


def keep(path: Path, kind: type[Config], keys: Mapping[str, str], options: Mapping[str, str | bool]) -> None:
    """
    Set RocketMQ's *keys* in a `.conf` or `.properties`, or *options* in TOML. The old file stays as `.bak`.

    The new file has no permission that the old one lacks. A link stays, and the file that it leads to is changed.

    Raises `ConfigError` if the new file would not be a valid file of this *kind*, and `OSError` or `UnicodeDecodeError`
    if the file cannot be read or written. The file is then unchanged.
    """
    is_properties = path.suffix in {".conf", ".properties"}
    before = path.read_text(encoding="utf-8")
    try:
        after = set_lines(before, keys) if is_properties else set_toml(before, options)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}; correct it, then repeat the change") from error
    real = atomic.followed(path)
    trial = real.with_name(f"{real.stem}.new{real.suffix}")
    mode = stat.S_IMODE(path.stat().st_mode)
    # What an interrupted change left may have other permissions.
    trial.unlink(missing_ok=True)
    with open(trial, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, mode)) as file:
        file.write(after)
    try:
        (kind.parse_properties if is_properties else kind.parse_toml)(trial)
    except ConfigError as error:
        raise ConfigError(str(error).replace(str(trial), str(path))) from error
    finally:
        trial.unlink()
    atomic.replace_file(real, after.encode(), mode)


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
    """
    Set keys of a TOML file, before its first table. A value may have been an array over several lines, or a table.

    Other lines and comments stay, but those inside the old value. Raises `tomllib.TOMLDecodeError` for another text.
    """
    left = {name: f"{name} = {_toml(value)}" for name, value in changes.items()}
    head, rest = list[str](), list[str]()
    place: int | None = None
    """Behind the last key before the first table."""
    table: str | None = None
    for statement, key in _statements(text):
        if key is not None and statement.lstrip().startswith("["):
            table = key
        into = head if table is None else rest
        if key is None or (table or key) not in changes:
            into.append(statement)
        elif table is None and key in left:
            into.append(left.pop(key) + _comment(statement))
        if table is None and key is not None:
            place = len(head)
    if place is None:
        place = len("\n".join(head).rstrip("\n").split("\n")) if any(head) else 0
    after = "\n".join([*head[:place], *left.values(), *head[place:], *rest])
    return after if after.endswith("\n") else f"{after}\n"


_ENDS = ("]", "}", '"""', "'''")
"""One of them is in the last line of a value over several lines."""


def _statements(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield each statement of a TOML file with the first part of its key, and each line without one."""
    begun: list[str] = []
    for line in text.split("\n"):
        begun.append(line)
        if len(begun) > 1 and not any(end in line for end in _ENDS):
            continue
        statement = "\n".join(begun)
        try:
            keys = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        yield statement, next(iter(keys), None)
        begun = []
    tomllib.loads("\n".join(begun))


def _comment(statement: str) -> str:
    """Return the comment at the end of a statement."""
    place = statement.find("#", statement.rfind("\n") + 1)
    while place >= 0:
        with suppress(tomllib.TOMLDecodeError):
            tomllib.loads(statement[:place])
            return f"  {statement[place:]}"
        place = statement.find("#", place + 1)
    return ""


def _toml(value: str | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    # The escapes of JSON are those of a string of TOML, which must escape one character more.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
