"""
The options of a running name server: shown, changed, and written back to the file they came from.

What an option does is not known here: who cares listens. The options themselves are in `ferromq.config`.
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
"""Keys that name files, and the list of such keys: nobody may change them from outside."""
KEYS_AT_RUN_TIME = frozenset(
    {
        *("deleteTopicWithBrokerRegistration", "enableAllTopicList", "enableTopicList", "lease", "needWaitForService"),
        *("notifyMinBrokerIdChanged", "orderMessageEnable", "returnOrderTopicConfigToBroker"),
        *("scanNotActiveBrokerInterval", "supportActingMaster", "waitSecondsForService"),
    }
)
"""Keys a running name server takes over."""
Listener = Callable[[NameServerConfig], object]


class Settings:
    """The options in force. Thread-safe."""

    def __init__(self, config: NameServerConfig, file: Path | None = None) -> None:
        self._config = config
        self._file = file
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []

    @property
    def config(self) -> NameServerConfig:
        """The options as they are now."""
        return self._config

    def listen(self, listener: Listener) -> None:
        """Call *listener* with the options now and after every change."""
        self._listeners.append(listener)
        listener(self._config)

    def let_go(self) -> None:
        """Tell nobody of changes any more."""
        self._listeners.clear()

    def text(self) -> str:
        """Return them as RocketMQ shows them: `KEY=VALUE` lines in the order of the keys."""
        return "".join(f"{key}={value}\n" for key, value in sorted(self._config.keys().items()))

    def update(self, text: str) -> None:
        """
        Change what *text* says in `KEY=VALUE` lines, here and in the file; all of it or nothing.

        Raises `ProtectedKey`, `ConfigError` for a key that is unknown, does nothing, or counts at the start only, and
        for a wrong value, and `OSError` where the file cannot be written.
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
            raise ProtectedKey(f"{', '.join(protected)} may not be changed from outside; change the file, and restart")
        place = Place("the request")
        for key in given:
            if key in NameServerConfig.without_effect:
                raise ConfigError(f"{key} has no effect: {NameServerConfig.without_effect[key]}; leave it out")
        values = NameServerConfig.translate({key: (value, place) for key, value in given.items()})
        fixed = sorted(given.keys() - KEYS_AT_RUN_TIME)
        if fixed:
            known = ", ".join(sorted(KEYS_AT_RUN_TIME))
            raise ConfigError(
                f"{', '.join(fixed)} counts at the start only; change the file, and restart. At run time go {known}"
            )
        return values


def _shown(value: bool | timedelta) -> str | bool:
    """Return a value that can change at run time as TOML takes it."""
    return value if isinstance(value, bool) else f"{value // timedelta(milliseconds=1)}ms"
