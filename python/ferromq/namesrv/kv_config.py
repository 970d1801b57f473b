"""
The key-value table of a name server, by namespace, with RocketMQ's file `kvConfig.json`.

Its values are opaque here. Clients and brokers store order configurations and gRPC addresses in it.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from ferromq.errors import ConfigError
from ferromq.files import atomic, json_file

_log = logging.getLogger("ferromq.namesrv")


class KvConfig:
    """A table of namespace, key and value. Thread-safe. With a path, changes are on disk when a method returns."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the table. Raises `ConfigError` if the file *path* is damaged, or if it cannot be read and replaced."""
        self._path = atomic.followed(path) if path else None
        self._lock = threading.Lock()
        self._table: dict[str, dict[str, str]] = _load(self._path) if self._path else {}

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises `OSError` and changes nothing if the file cannot be written."""
        with self._lock:
            keys = self._table.get(namespace, {})
            if keys.get(key) != value:
                self._replace(namespace, {**keys, key: value})

    def change(self, namespace: str, changed: Mapping[str, Callable[[str | None], str | None]]) -> list[str]:
        """
        Replace the value of each key by the result of its function, with one write; None keeps the value.

        Returns the keys with new values. Raises as `put` does.
        """
        with self._lock:
            keys = self._table.get(namespace, {})
            made = {key: function(keys.get(key)) for key, function in changed.items()}
            new = {key: value for key, value in made.items() if value is not None and value != keys.get(key)}
            if new:
                self._replace(namespace, {**keys, **new})
            return list(new)

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value, if it exists."""
        with self._lock:
            keys = self._table.get(namespace, {})
            if key in keys:
                self._replace(namespace, {k: v for k, v in keys.items() if k != key})

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key, if it exists."""
        with self._lock:
            return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str, only: Collection[str] | None = None) -> Mapping[str, str] | None:
        """
        Return the keys and values of *namespace*; None if it never had a key.

        *only*: return only these keys.
        """
        with self._lock:
            keys = self._table.get(namespace)
            if keys is None or only is None:
                return None if keys is None else dict(keys)
            return {key: keys[key] for key in only if key in keys}

    def log(self) -> None:
        """Write every value to the log."""
        with self._lock:
            table = self._table
        _log.info("key-value table namespaces=%d keys=%d", len(table), sum(len(keys) for keys in table.values()))
        for namespace, keys in table.items():
            for key, value in keys.items():
                _log.info("key-value entry namespace=%s key=%s value=%s", namespace, key, value)

    def _replace(self, namespace: str, keys: dict[str, str]) -> None:
        table = {**self._table, namespace: keys}
        if self._path is not None:
            json_file.write(self._path, {"configTable": table})
        self._table = table


def _load(path: Path) -> dict[str, dict[str, str]]:
    try:
        content = json_file.read(path)
        table = (content or {}).get("configTable") or {}
        found = {str(n): {str(k): str(v) for k, v in keys.items()} for n, keys in table.items()}
        atomic.check_replaceable(path)
    except OSError as error:
        raise ConfigError(
            f"kv_config_path is {path}, which the name server cannot read and replace: {error}; let its user write "
            "to the directory, or set another path (--kv-config)"
        ) from error
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path} is not a key-value table: {error}; restore it, or delete it to start empty"
        ) from error
    return found
