"""
The options of a running name server: shows them, changes them, and writes changes to the configuration file.

Listeners apply the changes.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from ferromq.config.file_edit import ProtectedKey, keep
from ferromq.config.namesrv import NameServerConfig
from ferromq.config.properties_file import Place, parse_lines
from ferromq.errors import ConfigError

_log = logging.getLogger("ferromq.namesrv")

PROTECTED_KEYS = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
"""Keys that requests can never change: those that name files, and the list of protected keys itself."""
KEYS_AT_RUN_TIME = frozenset(
    {
        *("deleteTopicWithBrokerRegistration", "enableAllTopicList", "enableTopicList", "lease", "needWaitForService"),
        *("notifyMinBrokerIdChanged", "orderMessageEnable", "returnOrderTopicConfigToBroker"),
        *("scanNotActiveBrokerInterval", "supportActingMaster", "waitSecondsForService"),
    }
)
"""Keys that can change while the name server runs."""
Listener = Callable[[NameServerConfig], object]


class Settings:
    """The options in effect. Thread-safe."""

    def __init__(self, config: NameServerConfig, file: Path | None = None) -> None:
        self._config = config
        self._file = file
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []

    @property
    def config(self) -> NameServerConfig:
        """The current options."""
        return self._config

    def listen(self, listener: Listener) -> None:
        """Call *listener* with the options now and after every change."""
        self._listeners.append(listener)
        listener(self._config)

    def clear_listeners(self) -> None:
        """Stop calling listeners."""
        self._listeners.clear()

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
            if self._file is not None:
                keep(self._file, NameServerConfig, given, {name: _shown(getattr(config, name)) for name in values})
            self._config = config
            _log.info("options changed %s", " ".join(f"{key}={value}" for key, value in given.items()))
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
        fixed = sorted(given.keys() - KEYS_AT_RUN_TIME)
        if fixed:
            known = ", ".join(sorted(KEYS_AT_RUN_TIME))
            raise ConfigError(
                f"{', '.join(fixed)} needs a restart; change the file, and restart. Keys for run time are {known}"
            )
        return values


def _shown(value: bool | timedelta) -> str | bool:
    """Return a value of a run-time option in TOML's form."""
    return value if isinstance(value, bool) else f"{value // timedelta(milliseconds=1)}ms"
