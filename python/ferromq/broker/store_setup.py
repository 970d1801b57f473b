"""Opens the broker's message store: options, archive hook, and what the log says after a crash."""

import logging
import pkgutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

from ferromq._ferromq import ExpiredFile, RecoveryProgress, Store
from ferromq.broker.cluster.addresses import store_host
from ferromq.broker.cluster.identity import BrokerIdentity
from ferromq.config.broker import BrokerConfig
from ferromq.errors import ConfigError
from ferromq.process.clock import Clock

_log = logging.getLogger("ferromq.broker")

ArchiveHook = Callable[[ExpiredFile], object]


def open_store(
    config: BrokerConfig,
    clock: Clock,
    identity: BrokerIdentity,
    hook: ArchiveHook | None,
    recovery: RecoveryProgress | None = None,
) -> Store:
    """Open the store; with a hook, expired files are kept until `set_archive_hook`. *recovery* shows its progress."""
    Path(config.store).mkdir(parents=True, exist_ok=True)
    options = config.storage.overrides()
    if hook is not None:
        # Cleaning may begin before the hook is set, so expired files must be kept for it from the start.
        options.setdefault("retention_on_expiry", "archive")
    return Store(
        config.store,
        clock.raw,
        recovery=recovery,
        **options,
        **config.timers.overrides(),
        store_host=store_host(config, identity),
    )


def set_archive_hook(store: Store, config: BrokerConfig, hook: ArchiveHook | None) -> None:
    """Make the store pass expired files to the hook; warn if they must be archived and there is no hook."""
    if hook is not None:
        store.set_archive(hook)
    elif config.storage.retention_on_expiry == "archive":
        _log.warning("expired files wait to be archived, and no archive hook is set; they stay on the disk")


def load_archive_hook(name: ArchiveHook | str) -> ArchiveHook | None:
    """Return the archive hook: *name* itself, `module:function`, or the result of that function for a word behind."""
    if not isinstance(name, str):
        if not callable(name):
            raise ConfigError(f"archive is {name!r}; expected a function, or its name as MODULE:FUNCTION")
        return name
    if not name:
        return None
    function, _, word = name.strip().partition(" ")
    try:
        hook = pkgutil.resolve_name(function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"archive is {name!r}; expected MODULE:FUNCTION: {error}") from error
    if word and callable(hook):
        hook = hook(word.strip())
    if not callable(hook):
        raise ConfigError(f"archive is {name!r}, which cannot be called")
    return cast("ArchiveHook", hook)


def log_recovery(store: Store) -> None:
    """Log what recovery cut off after a crash, and which files are damaged."""
    report, damages = store.recovery(), store.damages()
    if not report["is_clean"]:
        _log.warning(
            "store was not closed, recovered walked_bytes=%d messages=%d cut_bytes=%d cut_messages=%d elapsed_us=%d",
            *(report[name] for name in ("walked_bytes", "messages", "cut_bytes", "cut_messages")),
            report["elapsed"] // timedelta(microseconds=1),
        )
    for file, begin, end, reason in damages:
        _log.error("damage in the store file=%s begin=%d end=%d: %s", file, begin, end, reason)
