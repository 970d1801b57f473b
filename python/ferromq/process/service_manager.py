"""
Tells the service manager that started this process how far it is, as systemd's sd_notify(3) has it.

A unit with `Type=notify` is started once the server is ready, not once its process exists.
"""

import logging
import os
import socket

_log = logging.getLogger("ferromq.process")

SOCKET_VARIABLE = "NOTIFY_SOCKET"
READY, STOPPING = "READY=1", "STOPPING=1"


def notify(state: str) -> None:
    """Send *state*. Without a service manager nothing happens; one that cannot be reached is logged."""
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        return
    # A name that begins with @ is in Linux' abstract namespace, which a zero byte begins.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to_manager:
            to_manager.sendto(state.encode(), address)
    except OSError as error:
        _log.warning("the service manager at %s=%s was not told %s: %s", SOCKET_VARIABLE, path, state, error)
