"""
How options are read: from TOML, RocketMQ's `.conf`, the environment and flags into frozen dataclasses.

Which options there are is in `config`; this file knows their types only.
"""

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, cast

from ferromq.errors import ConfigError

_log = logging.getLogger("ferromq.config")

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\Z")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NO_HOST = re.compile(r"[/\s]")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_SIZE = re.compile(r"(\d+)\s*(?:(K|M|G|T)i?B?)?\Z", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_ADVERTISED = re.compile(r"(\[[^\[\]\s]+\]|[^\[\]:\s]+)(?::(\d{1,5}))?\Z")
_MAX_PORT = 65535
# Names that an error lists.
_LISTED = 100
# What Kubernetes sets in each container where a service is called `ferromq-broker`, `ferromq-namesrv-0` or the like.
_OF_KUBERNETES = re.compile(
    r"service_host|service_port(_[a-z0-9_]+)?|port|port_\d+_(tcp|udp|sctp)(_(addr|port|proto))?"
)
_SERVICE_HOST = "service_host"


def _is_of_kubernetes(name: str, found: Iterable[str]) -> bool:
    """Say whether Kubernetes set it: of each service it sets where its host is, too."""
    prefixes = [other.removesuffix(_SERVICE_HOST) for other in found if other.endswith(_SERVICE_HOST)]
    return any(name.startswith(prefix) and _OF_KUBERNETES.fullmatch(name, len(prefix)) for prefix in prefixes)


class Place(NamedTuple):
    """Where a key stands: a file and the line in it, or something without lines."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"line {self.line} of {self.source}" if self.line else self.source


_FLAGS = Place("the flags")


class Config:
    """Reads a configuration from files, environment and flags."""

    prefix: ClassVar[str]
    """Names of environment variables begin with it."""
    properties: ClassVar[Mapping[str, Callable[[str], dict[str, Any]]]]
    """RocketMQ's keys, and the fields they set."""
    without_effect: ClassVar[Mapping[str, str]] = {}
    """RocketMQ's keys that do nothing here, and why; a line of the log names those of a file."""
    joined: ClassVar[Mapping[tuple[str, ...], Callable[[Mapping[str, str]], dict[str, Any]]]] = {}
    """RocketMQ's keys that say one thing together, and the fields they set."""
    parts: ClassVar[Mapping[str, "type[Config]"]] = {}
    """Fields that group options of their own, which are named without the group."""
    own_converters: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """Fields that take something else than others of their type."""

    @classmethod
    def load(
        cls,
        file: str | Path | None = None,
        *,
        beside: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        keys: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> Self:
        """
        Combine defaults, a file, what stands *beside* it, environment, RocketMQ's *keys* and flags; later ones win.

        The file is in RocketMQ's format where its name ends in `.conf` or `.properties`, else TOML. Keys that say one
        thing together are taken together, be they of the file or given. A flag that is None was not given. Raises
        `ConfigError`, which names file or variable and the key.
        """
        stated: dict[str, Any] = {}
        of_file: dict[str, tuple[str, Place]] = {}
        if file is not None and Path(file).suffix in {".conf", ".properties"}:
            of_file = _read_lines(file)
            stated |= cls.translate(of_file)
        elif file is not None:
            stated |= cls.parse_toml(file)
        stated |= beside or {}
        stated |= cls._parse_environment(os.environ if environment is None else environment)
        stated |= cls._keys_given(keys or {}, of_file, stated)
        stated |= {name: value for name, value in (flags or {}).items() if value is not None}
        return cls.from_options({**(defaults or {}), **stated})

    @classmethod
    def _keys_given(
        cls, keys: Mapping[str, str], of_file: Mapping[str, tuple[str, "Place"]], stated: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the options of RocketMQ's *keys*, which are flags; keys of a group of theirs are those of the file."""
        given = {key: (text, _FLAGS) for key, text in keys.items()}
        for group, read in cls.joined.items():
            alone = {key: text for key, text in keys.items() if key in group}
            missing = [key for key in group if key not in alone]
            if alone and missing and not of_file.keys() & set(group):
                lost = cls._translated(read, alone, f"{_shown(alone)} in {_FLAGS}").keys() & stated.keys()
                if lost:
                    raise ConfigError(
                        f"{_shown(alone)} in {_FLAGS}: {min(lost)} is given elsewhere, of which {', '.join(missing)} "
                        f"would be lost; use --{min(lost).replace('_', '-')} alone"
                    )
            given |= {key: of_file[key] for key in missing if alone and key in of_file}
        return cls.translate(given)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Take options by the fields' names, as ready values or as text; None is not given. Raises `ConfigError`."""
        return cls.build_whole(options, "option")

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a TOML file whose keys are the fields. Raises `ConfigError`."""
        return cls.build_whole(cls.parse_toml(path), f"key in {path}")

    @classmethod
    def from_properties(cls, path: str | Path) -> Self:
        """Read a RocketMQ `.conf` file. Raises `ConfigError` for a key RocketMQ or ferromq does not know."""
        return cls.build_whole(cls.parse_properties(path), f"key in {path}")

    @classmethod
    def parse_toml(cls, path: str | Path) -> dict[str, Any]:
        """Return the options that the TOML file *path* sets. Raises `ConfigError`."""
        if Path(path).suffix == ".json":
            raise ConfigError(
                f"{path} is no TOML; a file of RocketMQ's proxy is taken by mqbroker --enable-proxy, as "
                "--proxyConfigPath FILE beside --configFile FILE"
            )
        try:
            values = tomllib.loads(_read(path))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is no TOML: {error}") from error
        check_known(values, cls.names(), f"key in {path}")
        for key, value in values.items():
            cls._check({key: value}, f"in {path}")
        return values

    @classmethod
    def _check(cls, values: Mapping[str, Any], where: str) -> None:
        """Raise `ConfigError` that says *where* the values were found, if they may not be, whatever the others are."""
        try:
            cls.build(values, "option")
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error

    @classmethod
    def parse_properties(cls, path: str | Path) -> dict[str, Any]:
        """Return the options that RocketMQ's file *path* sets. Raises `ConfigError`."""
        return cls.translate(_read_lines(path))

    @classmethod
    def translate(cls, keys: Mapping[str, tuple[str, "Place"]]) -> dict[str, Any]:
        """
        Return the options that RocketMQ's *keys* set; with each value comes the place where it stands.

        One warning names the keys that do nothing here. Raises `ConfigError` that names all keys that are unknown, or
        have a wrong value.
        """
        known = cls.keys_known()
        wrong = [str(_unknown(key, known, f"key in {place}")) for key, (_, place) in keys.items() if key not in known]
        values: dict[str, Any] = {}
        for read, given, where in cls._readings(keys):
            try:
                values |= cls._translated(read, given, where)
            except ConfigError as error:
                wrong.append(str(error))
        if wrong:
            raise ConfigError("\n".join(wrong))
        cls._name_without_effect(keys)
        return values

    @classmethod
    def _readings(
        cls, keys: Mapping[str, tuple[str, "Place"]]
    ) -> Iterator[tuple[Callable[[Any], dict[str, Any]], Any, str]]:
        """Yield what reads each of the *keys*, its value and where it stands; keys of one group together."""
        for key, (value, place) in keys.items():
            if key in cls.properties:
                yield cls.properties[key], value, f"{key}={value} in {place}"
        for group, read in cls.joined.items():
            given = {key: keys[key][0] for key in group if key in keys}
            if given:
                sources = dict.fromkeys(keys[key][1].source for key in given)
                yield read, given, f"{_shown(given)} in {' and '.join(sources)}"

    @classmethod
    def _name_without_effect(cls, keys: Mapping[str, tuple[str, "Place"]]) -> None:
        found = [key for key in keys if key in cls.without_effect]
        if found:
            reasons = dict.fromkeys(cls.without_effect[key] for key in found)
            by_reason = (
                ", ".join(key for key in found if cls.without_effect[key] == why) + f": {why}" for why in reasons
            )
            sources = dict.fromkeys(keys[key][1].source for key in found)
            _log.warning("keys have no effect here, %s source=%s", "; ".join(by_reason), ",".join(sources))

    @classmethod
    def keys_known(cls) -> list[str]:
        """Return RocketMQ's keys that may stand in a file."""
        joined = (key for keys in cls.joined for key in keys)
        return [*cls.properties, *joined, *cls.without_effect]

    @classmethod
    def _translated(cls, read: Callable[[Any], dict[str, Any]], value: Any, where: str) -> dict[str, Any]:
        try:
            values = read(value)
        except OverflowError as error:
            raise ConfigError(f"{where}: the number is too large") from error
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
        cls._check(values, where)
        return values

    @classmethod
    def _parse_environment(cls, environment: Mapping[str, str]) -> dict[str, str]:
        known = cls.names()
        found = {
            name.removeprefix(cls.prefix).lower(): value
            for name, value in environment.items()
            if name.startswith(cls.prefix)
        }
        passed_over = sorted(name for name in found if name not in known and _is_of_kubernetes(name, found))
        if passed_over:
            names = ",".join(f"{cls.prefix}{name.upper()}" for name in passed_over)
            _log.info("variables that Kubernetes sets for a service are passed over names=%s", names)
        found = {name: value for name, value in found.items() if name not in passed_over}
        for name in found:
            if name not in known:
                hint = _hint(name, known, lambda option: f"{cls.prefix}{option.upper()}")
                raise ConfigError(f"unknown environment variable {cls.prefix}{name.upper()}{hint}")
        for name, value in found.items():
            cls._check({name: value}, f"{cls.prefix}{name.upper()}")
        return found

    @classmethod
    def _types(cls) -> dict[str, Any]:
        return {field.name: field.type for field in fields(cls) if field.name not in cls.parts}  # type: ignore[arg-type] # subclasses are dataclasses

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all options, those of its parts included."""
        return [*cls._types(), *(name for part in cls.parts.values() for name in part.names())]

    def given(self) -> dict[str, Any]:
        """Return all options and their values by name, those of its parts included."""
        values = {name: getattr(self, name) for name in self._types()}
        for field in self.parts:
            values |= getattr(self, field).given()
        return values

    def check_together(self) -> None:
        """Raise `ConfigError` where options contradict each other, which only all of them together show."""
        for part in self.parts:
            getattr(self, part).check_together()

    @classmethod
    def build_whole(cls, values: Mapping[str, Any], what: str) -> Self:
        """Make it from all options that are given, by name. Raises `ConfigError`, also for a contradiction."""
        config = cls.build(values, what)
        config.check_together()
        return config

    @classmethod
    def build(cls, values: Mapping[str, Any], what: str) -> Self:
        """Make it from options by name; *what* names their kind in errors. Raises `ConfigError`."""
        check_known(values, cls.names(), what)
        types = cls._types()
        given = {name: value for name, value in values.items() if value is not None}
        converters = {name: cls.own_converters.get(name) or _CONVERTERS[kind] for name, kind in types.items()}
        converted = {name: _convert(name, value, converters[name]) for name, value in given.items() if name in types}
        for field, part in cls.parts.items():
            names = part.names()
            converted[field] = part.build({name: given[name] for name in names if name in given}, what)
        return cls(**converted)


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}") from error


def _read_lines(path: str | Path) -> dict[str, tuple[str, Place]]:
    lines = parse_lines(_read(path), str(path))
    return {key: (value, Place(str(path), number)) for key, (number, value) in lines.items()}


def _shown(keys: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in keys.items())


def parse_lines(text: str, source: str) -> dict[str, tuple[int, str]]:
    """Return each key of `KEY=VALUE` lines with the number of its first line, and the last of its values."""
    lines: dict[str, tuple[int, str]] = {}
    in_comment = False
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        # Files that RocketMQ ships begin with their licence as a comment of XML.
        is_comment = in_comment or line.startswith("<!--")
        in_comment = is_comment and "-->" not in line
        if not line or line.startswith(("#", "!")) or (is_comment and "=" not in line):
            continue
        key, separator, value = (part.strip() for part in line.partition("="))
        if not separator:
            raise ConfigError(f"line {number} of {source} is not KEY=VALUE: {line}")
        if "\\" in value:
            raise ConfigError(
                f"line {number} of {source} has a backslash, which RocketMQ's files take for an escape: {line}; "
                "write the value on one line without it"
            )
        lines[key] = (lines[key][0] if key in lines else number, value)
    return lines


def check_known(values: Mapping[str, Any], known: list[str], what: str) -> None:
    """Raise `ConfigError` with the nearest name for the first value that is not known; *what* names their kind."""
    for name in values:
        if name not in known:
            raise _unknown(name, known, what)


def _unknown(name: str, known: list[str], what: str) -> ConfigError:
    return ConfigError(f"unknown {what}: {name}{_hint(name, known)}")


def _listed(known: list[str], show: Callable[[str], str]) -> str:
    if len(known) > _LISTED:
        return "mqbroker --help lists those of a broker, mqnamesrv --help those of a name server"
    return f"known are {', '.join(map(show, sorted(known)))}"


def _hint(name: str, known: list[str], show: Callable[[str], str] = str) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"; did you mean {show(nearest[0])}?" if nearest else f"; {_listed(known, show)}"


def _convert(name: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    """Turn text, a number or a ready value into the type of the field."""
    try:
        return convert(value)
    except (ValueError, TypeError, OverflowError) as error:
        shown = written(value) if isinstance(value, timedelta) else repr(value)
        raise ConfigError(f"{name} is {shown}: {error}") from error


def boolean(text: str) -> bool:
    """Take true or false of RocketMQ's files; Java takes any other word for false, so it is refused."""
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"true or false is expected; RocketMQ takes {text or 'nothing'} for false")
    return text.lower() == "true"


def truth(value: Any) -> bool:
    """Take true or false as ferromq's own options do: words that people use for it, too."""
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in {"true", "yes", "on", "1"}:
        return True
    if text in {"false", "no", "off", "0"}:
        return False
    raise ValueError("true or false is expected")


def duration(value: Any) -> timedelta:
    """Take a duration: `500ms`, `30s`, a number of seconds, or `forever`."""
    if isinstance(value, timedelta):
        return value
    if value == "forever":
        return timedelta.max
    match = _DURATION.match(str(value).strip())
    if match is None:
        raise ValueError("a duration is expected, as 500ms, 30s, 2m, 1h, or forever")
    return timedelta(seconds=float(match[1]) * _DURATION_UNITS[match[2]])


def written(value: timedelta) -> str:
    """Return a duration as files and flags take it."""
    if value == timedelta.max:
        return "forever"
    units = ((unit, timedelta(seconds=_DURATION_UNITS[unit])) for unit in ("d", "h", "m", "s"))
    unit, length = next(
        ((unit, length) for unit, length in units if value and not value % length), ("ms", timedelta(milliseconds=1))
    )
    return f"{value // length}{unit}"


def _age(value: Any) -> timedelta:
    """Take a duration with a unit: RocketMQ counts ages in hours, others in seconds."""
    text = str(value).strip()
    if value == "none":
        return timedelta.max
    if re.fullmatch(r"-?\d+(\.\d+)?", text):
        raise ValueError(f"an age needs a unit; say {text}h or {text}s")
    age = duration(value)
    if age <= timedelta():
        raise ValueError("an age must be more than 0; to keep everything, say forever")
    return age


def or_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Take what *convert* takes, or `none`."""
    return lambda value: None if value == "none" else convert(value)


def whole(text: str) -> int:
    """Take a whole number of RocketMQ's files."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError("a whole number is expected, without a unit")
    return int(text)


def from_zero(text: str) -> int:
    """Take a whole number of RocketMQ's files that is 0 or more."""
    if whole(text) < 0:
        raise ValueError("a whole number of 0 or more is expected")
    return whole(text)


def number(text: str) -> float:
    """Take a number, also one with a fraction."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text} is no number") from None


def _hours(value: Any) -> tuple[int, ...]:
    try:
        return tuple(int(entry) for entry in _entries(value))
    except ValueError:
        raise ValueError("hours of the day, 0 to 23, are expected, as 4 or 4,16") from None


def _size(value: Any) -> int:
    match = _SIZE.match(str(value).strip())
    if match is None:
        raise ValueError("a whole number is expected, or a size as 64MiB")
    return int(match[1]) * _SIZE_UNITS[(match[2] or "").lower()]


def _entries(value: Any) -> Iterable[Any]:
    """Take a list, or text whose parts are joined by commas or semicolons, or one number."""
    if isinstance(value, str):
        return re.split(r"[;,]", value)
    return [value] if isinstance(value, int | float) else cast("Iterable[Any]", value)


def split_list(value: Any) -> tuple[str, ...]:
    """Take a list of texts, or text whose parts are joined by commas or semicolons."""
    return tuple(str(part).strip() for part in _entries(value) if str(part).strip())


def _table(value: Any) -> dict[str, Any]:
    """Take a mapping, or text as `orders=10,clicks=1000`."""
    if isinstance(value, Mapping):
        return {str(name): entry for name, entry in value.items()}
    pairs = [part.partition("=") for part in split_list(value)]
    if not all(name and separator for name, separator, _ in pairs):
        raise ValueError("NAME=VALUE is expected, several joined by commas")
    return {name.strip(): entry.strip() for name, _, entry in pairs}


def _text(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError("a text is expected")
    return os.fspath(value)


_CONVERTERS: Mapping[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _size,
    int | None: _size,
    str | None: _text,
    bool | None: truth,
    bool: truth,
    timedelta: duration,
    timedelta | None: duration,
    tuple[str, ...]: split_list,
    tuple[str, ...] | None: split_list,
    tuple[int, ...] | None: _hours,
    tuple[float, ...] | None: lambda value: tuple(number(entry) for entry in _entries(value)),
    Mapping[str, int] | None: lambda value: {name: _size(entry) for name, entry in _table(value).items()},
    Mapping[str, timedelta] | None: lambda value: {name: _age(entry) for name, entry in _table(value).items()},
}
RETENTION_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "retention_age": _age,
    "retention_total_bytes": or_none(_CONVERTERS[int]),
    "retention_disk_usage": or_none(_CONVERTERS[tuple[float, ...] | None]),
}
"""Of options that say `none` where nothing is to be deleted for them."""


def only(text: str, allowed: str, why: str) -> dict[str, Any]:
    """Take the one value that a key of RocketMQ's may have here; it sets nothing."""
    if text != allowed:
        raise ValueError(f"{text} is asked, but {why}; use {allowed}")
    return {}


def check_address(name: str, address: str) -> None:
    """Refuse an address that is not `HOST:PORT`."""
    host, _, port = address.rpartition(":")
    if not host or _NO_HOST.search(host) or not port.isdecimal() or int(port) > _MAX_PORT:
        raise ConfigError(f"{name} is {address!r}; HOST:PORT is expected, as 127.0.0.1:9876")


def split_advertised(address: str) -> tuple[str, str]:
    """Split `HOST` or `HOST:PORT`, the port empty where there is none; a bare IPv6 address gets its brackets."""
    bare = address if address.startswith("[") else f"[{address}]"
    match = _ADVERTISED.match(bare if address.count(":") > 1 else address)
    if match is None or int(match[2] or 0) > _MAX_PORT:
        raise ValueError("HOST or HOST:PORT is expected, as mq.example:10911")
    return match[1], match[2] or ""


def check_positive(name: str, value: Any, zero: Any) -> None:
    """Refuse a value that is not more than *zero*."""
    if value <= zero:
        shown = written(value) if isinstance(value, timedelta) else value
        raise ConfigError(f"{name} is {shown}; it must be more than 0")
