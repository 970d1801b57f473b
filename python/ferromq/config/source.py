"""
The source of a running server's options: its file, with the environment and the flags of its start.

It reads them again and says what differs from the last time. Which options change while a server runs is not decided
here.
"""

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from ferromq.config.reader import Config
from ferromq.errors import ConfigError

_log = logging.getLogger("ferromq.config")

C = TypeVar("C", bound=Config)


class Reloaded(NamedTuple):
    """The result of reading the configuration again."""

    changed: tuple[str, ...]
    """The options that changed."""
    restart: tuple[str, ...]
    """The options that differ from the file until the server is restarted."""


class Source(Generic[C]):
    """
    Reads the options again by *load*. Not thread-safe.

    Only options that differ from the last reading count: one that a request changed until the stop stays.
    """

    def __init__(self, file: Path, load: Callable[[], C], first: C) -> None:
        self._file = file
        self._load = load
        self._first = self._last = first.given()
        self._seen = self._settled = _signature(file)

    def read(self) -> tuple[C, frozenset[str]]:
        """Return all options, and the names of those that differ from the last ones. Raises `ConfigError`."""
        found = self._load()
        return found, frozenset(name for name, value in found.given().items() if value != self._last[name])

    def fixed(self, found: C, changeable: AbstractSet[str]) -> set[str]:
        """Return the options that differ from those of the start, and are none of *changeable*."""
        return {name for name, value in found.given().items() if value != self._first[name]} - changeable

    def accept(self, found: C) -> None:
        """Compare with *found* from now on."""
        self._last = found.given()

    @contextlib.contextmanager
    def writing(self, names: Collection[str]) -> Iterator[None]:
        """Note that the server itself changes these options in the file. What others changed there still counts."""
        is_known = _signature(self._file) == self._settled
        yield
        try:
            found = self._load().given()
        except ConfigError as error:
            _log.warning("configuration cannot be read after a change of it file=%s: %s", self._file, error)
            return
        self._last = {**self._last, **{name: found[name] for name in names}}
        if is_known:
            self._seen = self._settled = _signature(self._file)

    def has_changed(self) -> bool:
        """Return whether the file was replaced or written; one look later, when an editor has surely written all."""
        seen, self._seen = self._seen, _signature(self._file)
        if self._seen != seen or self._seen == self._settled:
            return False
        self._settled = self._seen
        return True


def _signature(file: Path) -> tuple[int, int, int] | None:
    """Return what tells two contents of a file apart; None without a readable file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def reload_logged(reload: Callable[[], Reloaded]) -> None:
    """Read the configuration again, and log what came of it."""
    try:
        found = reload()
    except ConfigError as error:
        _log.error("configuration not read again, nothing changed: %s", error)
        return
    except Exception:  # noqa: BLE001 (the server goes on)
        _log.exception("configuration read again, and not all of it could be applied")
        return
    _log.warning(
        "configuration read again changed=%s restart=%s", ",".join(found.changed) or "-", ",".join(found.restart) or "-"
    )


class Reloadable(ABC, Generic[C]):
    """The options of a running server, which are read again from its configuration file. Thread-safe."""

    def __init__(self, config: C, file: Path | None) -> None:
        self._config = config
        self._file = file
        self._source: Source[C] | None = None
        self._lock = threading.Lock()

    @property
    def config(self) -> C:
        """The options as they are now."""
        return self._config

    @property
    def has_file(self) -> bool:
        """Whether there is a configuration file to reload."""
        return self._source is not None

    def read_from(self, load: Callable[[], C] | None) -> None:
        """
        Let `reload` read all options by *load*, which returned the present ones at the start.

        Raises `ConfigError` if the file shall be watched, and there is no file or no *load*.
        """
        if self._file is not None and load is not None:
            self._source = Source(self._file, load, self._config)
        self._check_watch(self._config)

    @abstractmethod
    def reload(self) -> Reloaded:
        """
        Take over what changed in the configuration file since it was read last, as far as that is possible now.

        Nothing changes if the file is wrong or cannot be read. Raises `ConfigError`.
        """

    def look(self) -> None:
        """Reload if the file has changed, and the options say that it is watched."""
        with self._lock:
            is_due = self._source is not None and self._is_watched(self._config) and self._source.has_changed()
        if is_due:
            reload_logged(self.reload)

    @staticmethod
    @abstractmethod
    def _is_watched(config: C) -> bool:
        """Return whether the file is watched."""

    def _check_watch(self, config: C) -> None:
        """Raise `ConfigError` if a file shall be watched that cannot be read again."""
        if self._source is None and self._is_watched(config):
            raise ConfigError(
                "watch_config is on, and this server has no configuration file that it can read again; start it with "
                "--config FILE, or leave watch_config off"
            )

    def _writing(self, names: Collection[str]) -> contextlib.AbstractContextManager[None]:
        """Note that the server itself changes these options in its file, if it has one."""
        return contextlib.nullcontext() if self._source is None else self._source.writing(names)
