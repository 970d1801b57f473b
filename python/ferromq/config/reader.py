"""
Reads options from TOML, RocketMQ's `.conf`, the environment and flags into frozen dataclasses.

The dataclasses are in the modules beside this one.
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

from ferromq.config.keys import JoinedKeys, Key, Keys
from ferromq.config.known_names import check_known, hint, unknown
from ferromq.config.properties_file import Place, read_lines, read_text
from ferromq.config.values import CONVERTERS, written
from ferromq.errors import ConfigError
from ferromq.terminal.objects import html_of

_log = logging.getLogger("ferromq.config")

# The variables that Kubernetes sets in containers for a service named like `ferromq-broker` or `ferromq-namesrv-0`.
_OF_KUBERNETES = re.compile(
    r"service_host|service_port(_[a-z0-9_]+)?|port|port_\d+_(tcp|udp|sctp)(_(addr|port|proto))?"
)
_SERVICE_HOST = "service_host"


def _is_of_kubernetes(name: str, found: Iterable[str]) -> bool:
    """Whether Kubernetes set the variable. It also sets the host of each service."""
    prefixes = [other.removesuffix(_SERVICE_HOST) for other in found if other.endswith(_SERVICE_HOST)]
    return any(name.startswith(prefix) and _OF_KUBERNETES.fullmatch(name, len(prefix)) for prefix in prefixes)


_FLAGS = Place("the flags")


class Config:
    """Reads a configuration from files, environment and flags."""

    prefix: ClassVar[str]
    """The prefix of environment variables."""
    properties: ClassVar[Keys] = {}
    """RocketMQ's keys, and the fields they set."""
    without_effect: ClassVar[Mapping[str, str]] = {}
    """RocketMQ's keys without effect → the reason, which the log names for the keys of a file."""
    joined: ClassVar[JoinedKeys] = {}
    """RocketMQ's keys that have a meaning only together, and the fields they set."""
    parts: ClassVar[Mapping[str, "type[Config]"]] = {}
    """Fields that are groups of options; options are named without their group."""
    own_converters: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """Fields whose values are read in another way than others of their type."""
    secrets: ClassVar[frozenset[str]] = frozenset()
    """Fields whose values no text may show."""

    def _repr_html_(self) -> str:
        return html_of(self)

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
        Combine defaults, a file, options *beside* it, environment, RocketMQ's *keys* and flags; later ones win.

        A file whose name ends in `.conf` or `.properties` is in RocketMQ's format, any other one in TOML. Joined keys
        are read together, from the file and from *keys*. A flag that is None is not given. Raises `ConfigError` with
        the key, and the file or variable.
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
        """Return the options of RocketMQ's *keys*, given as flags. Missing keys of a group come from the file."""
        given = {key: (text, _FLAGS) for key, text in keys.items()}
        for group, read in cls.joined.items():
            alone = {key: text for key, text in keys.items() if key in group}
            missing = [key for key in group if key not in alone]
            if alone and missing and not of_file.keys() & set(group):
                lost = cls._translated(read, alone, f"{_shown(alone)} in {_FLAGS}").keys() & stated.keys()
                if lost:
                    raise ConfigError(
                        f"{_shown(alone)} in {_FLAGS}: {min(lost)} is given elsewhere, and its {', '.join(missing)} "
                        f"would be lost; use only --{min(lost).replace('_', '-')}"
                    )
            given |= {key: of_file[key] for key in missing if alone and key in of_file}
        return cls.translate(given)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Make it from options by name, as values or as text. None is not given. Raises `ConfigError`."""
        return cls.build_whole(options, "option")

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a TOML file whose keys are the fields. Raises `ConfigError`."""
        return cls.build_whole(cls.parse_toml(path), f"key in {path}")

    @classmethod
    def from_properties(cls, path: str | Path) -> Self:
        """Read a RocketMQ `.conf` file. Raises `ConfigError` for an unknown key."""
        return cls.build_whole(cls.parse_properties(path), f"key in {path}")

    @classmethod
    def parse_toml(cls, path: str | Path) -> dict[str, Any]:
        """Return the options that the TOML file *path* sets. Raises `ConfigError`."""
        if Path(path).suffix == ".json":
            raise ConfigError(
                f"{path} is not TOML; mqbroker --enable-proxy takes a file of RocketMQ's proxy as "
                "--proxyConfigPath FILE, in addition to --configFile FILE"
            )
        try:
            values = tomllib.loads(read_text(path))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not TOML: {error}") from error
        check_known(values, cls.names(), f"key in {path}")
        for key, value in values.items():
            cls._check({key: value}, f"in {path}")
        return values

    @classmethod
    def _check(cls, values: Mapping[str, Any], where: str) -> None:
        """Raise `ConfigError` with the place *where* if a value is wrong by itself."""
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
        Return the options that RocketMQ's *keys* set. Each key has a value and its place.

        One warning names all keys without effect. Raises `ConfigError` with all unknown keys and wrong values.
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
        """Yield the reading function of each key, its value and its place; joined keys together."""
        for key, (value, place) in keys.items():
            if key in cls.properties:
                yield cls.properties[key], value, f"{key if cls.is_secret(key) else f'{key}={value}'} in {place}"
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
        """Return RocketMQ's keys that a file may contain."""
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
        ignored = sorted(name for name in found if name not in known and _is_of_kubernetes(name, found))
        if ignored:
            names = ",".join(f"{cls.prefix}{name.upper()}" for name in ignored)
            _log.info("ignoring variables that Kubernetes sets for a service names=%s", names)
        found = {name: value for name, value in found.items() if name not in ignored}
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
        """Return the names of all options, with those of its parts."""
        return [*cls._types(), *(name for part in cls.parts.values() for name in part.names())]

    def given(self) -> dict[str, Any]:
        """Return the values of all options by name, with those of its parts."""
        values = {name: getattr(self, name) for name in self._types()}
        for field in self.parts:
            values |= getattr(self, field).given()
        return values

    def check_together(self) -> None:
        """Raise `ConfigError` for options that contradict each other."""
        for part in self.parts:
            getattr(self, part).check_together()

    @classmethod
    def build_whole(cls, values: Mapping[str, Any], what: str) -> Self:
        """Make it from all given options by name. Raises `ConfigError`, also for a contradiction."""
        config = cls.build(values, what)
        config.check_together()
        return config

    @classmethod
    def build(cls, values: Mapping[str, Any], what: str) -> Self:
        """Make it from options by name; errors call each a *what*. Raises `ConfigError`."""
        check_known(values, cls.names(), what)
        types = cls._types()
        given = {name: value for name, value in values.items() if value is not None}
        converters = {name: cls.own_converters.get(name) or CONVERTERS[kind] for name, kind in types.items()}
        converted = {
            name: cls._convert(name, value, converters[name]) for name, value in given.items() if name in types
        }
        for field, part in cls.parts.items():
            names = part.names()
            converted[field] = part.build({name: given[name] for name in names if name in given}, what)
        return cls(**converted)

    @classmethod
    def _convert(cls, name: str, value: Any, convert: Callable[[Any], Any]) -> Any:
        """Convert text, a number or a value to the type of the field."""
        try:
            return convert(value)
        except (ValueError, TypeError, OverflowError) as error:
            if name in cls.secrets:
                # The cause may show the value, too.
                raise ConfigError(f"{name} has a value of the wrong type or form") from None
            shown = written(value) if isinstance(value, timedelta) else repr(value)
            raise ConfigError(f"{name} is {shown}: {error}") from error

    @classmethod
    def is_secret(cls, key: str) -> bool:
        """Whether the value of an option or of one of RocketMQ's keys must not be shown."""
        entry = cls.properties.get(key)
        option = entry.option if isinstance(entry, Key) else key
        return option in cls.secrets or any(part.is_secret(option) for part in cls.parts.values())


def _shown(keys: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in keys.items())
