"""
The options of a running broker: changes them, notifies listeners, and writes them to the configuration file.

`config` defines the options and their limits, `rocketmq_options` their RocketMQ names.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ferromq.broker.administration.rocketmq_options import fields_of, flat, own_text, translate
from ferromq.config.at_run_time import BROKER_OPTIONS
from ferromq.config.broker import BrokerConfig
from ferromq.config.compat import effective
from ferromq.config.file_edit import ProtectedKey, keep
from ferromq.config.source import Reloadable, Reloaded
from ferromq.config.store import StoreConfig
from ferromq.errors import ConfigError
from ferromq.protocol.route import DataVersion

_log = logging.getLogger("ferromq.broker")

Listener = Callable[[frozenset[str], BrokerConfig, BrokerConfig], None]
"""Called with the names of changed options, and with all options before and after."""


class Settings(Reloadable[BrokerConfig]):
    """
    The options of one broker; thread-safe.

    *file* is the configuration file, where changes are written; without one, they hold until the broker stops.
    """

    def __init__(
        self,
        config: BrokerConfig,
        file: Path | None,
        now_ms: Callable[[], int],
        configure: Callable[..., None] = lambda **_options: None,
    ) -> None:
        super().__init__(config, file)
        self._now_ms = now_ms
        self._configure = configure
        self._of_store: Callable[[], Mapping[str, Any]] = dict
        self._version = DataVersion(now_ms())
        self._listeners: list[Listener] = []

    @property
    def version(self) -> DataVersion:
        """The version, advanced by each change."""
        return self._version

    def add_listener(self, listener: Listener) -> None:
        """Call *listener* after every change, one change at a time."""
        self._listeners.append(listener)

    def reload(self) -> Reloaded:
        """Take over what changed in the configuration file; see `Reloadable`."""
        with self._lock:
            if self._source is None:
                raise ConfigError("the broker was started without a configuration file; use config set, or restart it")
            found, differing = self._source.read()
            now = self._now()
            before, wanted = flat(BrokerConfig.from_options(now)), flat(found)
            # Without a value, an option of the store takes its default at the next start.
            possible = {
                name
                for name in differing & BROKER_OPTIONS
                if wanted[name] is not None or name not in StoreConfig.names()
            }
            after = BrokerConfig.from_options({**now, **{name: wanted[name] for name in possible}})
            changed = frozenset(name for name, value in flat(after).items() if value != before[name])
            if changed:
                self._apply(changed, after)
            self._source.accept(found)
            restart = self._source.fixed(found, BROKER_OPTIONS) | (differing & BROKER_OPTIONS) - possible
            return Reloaded(tuple(sorted(changed)), tuple(sorted(restart)))

    @staticmethod
    def _is_watched(config: BrokerConfig) -> bool:
        return config.membership.watch_config

    def attach(self, configure: Callable[..., None], options: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Pass changes of the store's options to *configure*; *options* returns the current ones."""
        self._configure = configure
        self._of_store = options

    def clear_listeners(self) -> None:
        """Remove all listeners."""
        self._listeners.clear()

    def update(self, wanted: Mapping[str, str], shown: Mapping[str, str]) -> frozenset[str]:
        """
        Change options by RocketMQ's names or the fields' own; returns the fields that changed.

        *shown* has the current values under RocketMQ's names. All options change, or none. Raises `ConfigError` naming
        an option that is unknown, has no effect, cannot change while the broker runs, or has an invalid value, and
        `ProtectedKey` for protected ones.
        """
        with self._lock:
            now = self._now()
            before = flat(BrokerConfig.from_options(now))
            wanted = _without_unchanged(wanted, shown, now)
            meant = translate(wanted, shown)
            self._check_protected(meant)
            given = {name: value for of_key in meant.values() for name, value in of_key.items()}
            after = BrokerConfig.from_options({**now, **given})
            changed = frozenset(name for name, value in flat(after).items() if value != before[name])
            for key, of_key in meant.items():
                fixed = [name for name in of_key if name in changed - BROKER_OPTIONS]
                if fixed:
                    raise ConfigError(
                        f"{key} cannot change while the broker runs; set it in its configuration and restart it"
                    )
            if not changed:
                return changed
            self._check_watch(after)
            with self._writing(changed):
                keys = {key: text for key, text in wanted.items() if changed & meant[key].keys()}
                self._write_file(keys, changed, after)
                self._apply(changed, after)
        return changed

    def _now(self) -> dict[str, Any]:
        """Return the options as they are now; `BrokerController.configure` may have changed those of the store."""
        now = flat(self._config)
        return now | {name: value for name, value in self._of_store().items() if name in now}

    def _apply(self, changed: frozenset[str], after: BrokerConfig) -> None:
        of_store = {name: getattr(after.storage, name) for name in changed & frozenset(StoreConfig.names())}
        if of_store:
            self._configure(**of_store)
        self._take_over(changed, after)

    def _write_file(self, keys: Mapping[str, str], changed: frozenset[str], after: BrokerConfig) -> None:
        """Write changed options to the configuration file, if there is one. Raises `ConfigError`."""
        if self._file is None:
            return
        options = flat(after)
        _check_keys(self._file, keys)
        try:
            keep(self._file, BrokerConfig, keys, {name: own_text(options[name]) for name in changed})
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the configuration file {self._file} cannot be changed: {error}") from error

    def _check_protected(self, meant: Iterable[str]) -> None:
        """Raise `ProtectedKey` for a protected option under any of its names."""
        keys = self._config.membership.protected_keys
        protected = {*keys, *(name for key in keys for name in fields_of(key))}
        found = sorted(key for key in meant if protected & {key, *fields_of(key)})
        if found:
            raise ProtectedKey(
                f"{', '.join(found)} cannot be changed over the network (configBlackList); change the file and "
                "restart the broker"
            )

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise the `ConfigError` that `set` would raise."""
        BrokerConfig.from_options({**flat(self._config), **options})

    def set(self, options: Mapping[str, Any]) -> None:
        """Change options of the broker, without those of the store, until it stops. Raises `ConfigError`."""
        with self._lock:
            before = flat(self._config)
            after = BrokerConfig.from_options({**before, **options})
            changed = frozenset(name for name, value in flat(after).items() if value != before[name])
            if changed:
                self._take_over(changed, after)

    def _take_over(self, changed: frozenset[str], after: BrokerConfig) -> None:
        before, self._config = self._config, after
        self._version = self._version.next(self._now_ms())
        for listener in self._listeners:
            listener(changed, before, after)


def _without_unchanged(wanted: Mapping[str, str], shown: Mapping[str, str], now: Mapping[str, Any]) -> dict[str, str]:
    """
    Return *wanted* without the values that equal the shown ones.

    An unset option that follows `compat` is kept if it is named: its value then holds whatever `compat` becomes. When
    all options are sent back together, such options do not count as named.
    """
    current = {**{name: own_text(value) for name, value in effective(now).items()}, **shown}
    open_fields = set() if shown.keys() <= wanted.keys() else {name for name in effective(now) if now[name] is None}
    return {key: text for key, text in wanted.items() if current.get(key) != text or fields_of(key) & open_fields}


def _check_keys(file: Path, keys: Iterable[str]) -> None:
    """Raise `ConfigError` for an option without a key in RocketMQ's format, if *file* has that format."""
    if file.suffix not in {".conf", ".properties"}:
        return
    known = BrokerConfig.keys_known()
    for key in keys:
        if key not in known:
            words = [word for word in known if key in fields_of(word)]
            way_out = f"use {' and '.join(words)}" if words else "keep the options in TOML, or use a flag"
            raise ConfigError(f"{key} has no key in RocketMQ's format, which {file} has; {way_out}")
