"""
How options are read: from TOML, RocketMQ's `.conf`, the environment and flags into frozen dataclasses.

Which options there are is in `config`; this file knows their types only.
"""

import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Self

from ferromq.config.known_names import check_known, hint, unknown
from ferromq.config.properties_file import Place, read_lines, read_text
from ferromq.config.values import CONVERTERS, written
from ferromq.errors import ConfigError

_log = logging.getLogger("ferromq.config")

# What Kubernetes sets in each container where a service is called `ferromq-broker`, `ferromq-namesrv-0` or the like.
_OF_KUBERNETES = re.compile(
    r"service_host|service_port(_[a-z0-9_]+)?|port|port_\d+_(tcp|udp|sctp)(_(addr|port|proto))?"
)
_SERVICE_HOST = "service_host"


def _is_of_kubernetes(name: str, found: Iterable[str]) -> bool:
    """Say whether Kubernetes set it: of each service it sets where its host is, too."""
    prefixes = [other.removesuffix(_SERVICE_HOST) for other in found if other.endswith(_SERVICE_HOST)]
    return any(name.startswith(prefix) and _OF_KUBERNETES.fullmatch(name, len(prefix)) for prefix in prefixes)


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
            of_file = read_lines(file)
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
        cls, keys: Mapping[str, str], of_file: Mapping[str, tuple[str, Place]], stated: Mapping[str, Any]
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
            values = tomllib.loads(read_text(path))
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
        return cls.translate(read_lines(path))

    @classmethod
    def translate(cls, keys: Mapping[str, tuple[str, Place]]) -> dict[str, Any]:
        """
        Return the options that RocketMQ's *keys* set; with each value comes the place where it stands.

        One warning names the keys that do nothing here. Raises `ConfigError` that names all keys that are unknown, or
        have a wrong value.
        """
        known = cls.keys_known()
        wrong = [str(unknown(key, known, f"key in {place}")) for key, (_, place) in keys.items() if key not in known]
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
        cls, keys: Mapping[str, tuple[str, Place]]
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
    def _name_without_effect(cls, keys: Mapping[str, tuple[str, Place]]) -> None:
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
                nearest = hint(name, known, lambda option: f"{cls.prefix}{option.upper()}")
                raise ConfigError(f"unknown environment variable {cls.prefix}{name.upper()}{nearest}")
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
        converters = {name: cls.own_converters.get(name) or CONVERTERS[kind] for name, kind in types.items()}
        converted = {name: _convert(name, value, converters[name]) for name, value in given.items() if name in types}
        for field, part in cls.parts.items():
            names = part.names()
            converted[field] = part.build({name: given[name] for name in names if name in given}, what)
        return cls(**converted)


def _shown(keys: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in keys.items())


def _convert(name: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    """Turn text, a number or a ready value into the type of the field."""
    try:
        return convert(value)
    except (ValueError, TypeError, OverflowError) as error:
        shown = written(value) if isinstance(value, timedelta) else repr(value)
        raise ConfigError(f"{name} is {shown}: {error}") from error
