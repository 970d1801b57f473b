"""
The options of a running name server: shows them, changes them, and writes changes to the configuration file.

Listeners apply the changes.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from ferromq.config.at_run_time import NAME_SERVER_KEYS
from ferromq.config.file_edit import ProtectedKey, keep
from ferromq.config.keys import Key
from ferromq.config.namesrv import NameServerConfig
from ferromq.config.properties_file import Place, parse_lines
from ferromq.config.source import Reloadable, Reloaded
from ferromq.errors import ConfigError

_log = logging.getLogger("ferromq.namesrv")

PROTECTED_KEYS = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
"""Keys that requests can never change: those that name files, and the list of protected keys itself."""
_AT_RUN_TIME = frozenset(
    {
        "watch_config",
        *(
            key.option
            for name, key in NameServerConfig.properties.items()
            if name in NAME_SERVER_KEYS and isinstance(key, Key)
        ),
    }
)
"""The options that can change while it runs."""
Listener = Callable[[NameServerConfig], object]


class Settings(Reloadable[NameServerConfig]):
    """The options in effect. Thread-safe."""

    def __init__(self, config: NameServerConfig, file: Path | None = None) -> None:
        super().__init__(config, file)
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call *listener* with the options now and after every change."""
        self._listeners.append(listener)
        listener(self._config)

    def clear_listeners(self) -> None:
        """Stop calling listeners."""
        self._listeners.clear()

    def reload(self) -> Reloaded:
        """Take over what changed in the configuration file; see `Reloadable`."""
        with self._lock:
            if self._source is None:
                raise ConfigError("the name server was started without a configuration file; use config set")
            found, differing = self._source.read()
            now, wanted = self._config.given(), found.given()
            config = NameServerConfig.from_options({**now, **{name: wanted[name] for name in differing & _AT_RUN_TIME}})
            changed = tuple(sorted(name for name, value in config.given().items() if value != now[name]))
            if changed:
                self._apply(config)
            self._source.accept(found)
            return Reloaded(changed, tuple(sorted(self._source.fixed(found, _AT_RUN_TIME))))

    @staticmethod
    def _is_watched(config: NameServerConfig) -> bool:
        return config.watch_config

    def text(self) -> str:
        """Return the options in RocketMQ's form: `KEY=VALUE` lines, sorted by key."""
        return "".join(f"{key}={value}\n" for key, value in sorted(self._config.keys().items()))

    def update(self, text: str) -> None:
        """
        Apply the `KEY=VALUE` lines in *text*, here and in the file; all of them or none.

        Raises `ProtectedKey`, `ConfigError` for a wrong value or a key that is unknown, has no effect, or needs a
        restart, and `OSError` if the file cannot be written.
        """
        given = {key: value for key, (_, value) in parse_lines(text, "the request").items()}
        with self._lock:
            values = self._checked(given)
            config = NameServerConfig.from_options({**self._config.given(), **values})
            if config == self._config:
                return
            self._check_watch(config)
            if self._file is not None:
                with self._writing(values):
                    keep(self._file, NameServerConfig, given, {name: _shown(getattr(config, name)) for name in values})
            _log.info("options changed %s", " ".join(f"{key}={value}" for key, value in given.items()))
            self._apply(config)

    def _apply(self, config: NameServerConfig) -> None:
        self._config = config
        for listener in self._listeners:
            listener(config)

    def _checked(self, given: Mapping[str, str]) -> dict[str, Any]:
        protected = sorted(given.keys() & (PROTECTED_KEYS | set(self._config.protected_keys)))
        if protected:
            raise ProtectedKey(f"{', '.join(protected)} cannot be changed by requests; change the file, and restart")
        place = Place("the request")
        for key in given:
            if key in NameServerConfig.without_effect:
                raise ConfigError(f"{key} has no effect: {NameServerConfig.without_effect[key]}; omit it")
        values = NameServerConfig.translate({key: (value, place) for key, value in given.items()})
        fixed = sorted(given.keys() - NAME_SERVER_KEYS)
        if fixed:
            known = ", ".join(sorted(NAME_SERVER_KEYS))
            raise ConfigError(
                f"{', '.join(fixed)} needs a restart; change the file, and restart. Keys for run time are {known}"
            )
        return values


def _shown(value: bool | timedelta) -> str | bool:
    """Return a value of a run-time option in TOML's form."""
    return value if isinstance(value, bool) else f"{value // timedelta(milliseconds=1)}ms"
