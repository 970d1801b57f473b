"""Warns at the start of a server of listeners that other hosts reach while there is no access control."""

import logging
from collections.abc import Iterable

from ferromq.config.access import AccessConfig
from ferromq.protocol.endpoints import is_loopback

_log = logging.getLogger("ferromq.access")


def warn_of_open_listeners(listeners: Iterable[str], access: AccessConfig) -> None:
    """Log one line with the *listeners*, `host:port`, that face other hosts without access control, if any do."""
    if access.authentication_enabled:
        return
    exposed = [address for address in listeners if not is_loopback(address.rpartition(":")[0])]
    if exposed:
        _log.warning(
            "listeners face other hosts without access control, so every client that reaches them may do everything; "
            "set authentication_enabled and authorization_enabled, or listen on 127.0.0.1 listeners=%s",
            ",".join(exposed),
        )
