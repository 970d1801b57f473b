"""
Requests that change the process itself: its state, and the options that it reads from its file.

A policy must allow them. Where none is checked, super users and the server's own machine may send them.
"""

import logging
from collections.abc import Callable
from typing import Any

from ferromq._ferromq import Request
from ferromq.access.users import UserTable
from ferromq.config.access import AccessConfig
from ferromq.config.source import Reloadable
from ferromq.errors import ConfigError
from ferromq.protocol import java_json
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.endpoints import is_loopback
from ferromq.protocol.remoting import Answer, Handler, failure, success


class OwnMachine:
    """Refuses such requests; *is_open* returns whether other machines may send them without a policy, too."""

    def __init__(
        self, users: UserTable | None, options: AccessConfig, is_open: Callable[[], bool] = lambda: False
    ) -> None:
        self._users = users
        self._options = options
        self._is_open = is_open

    def guarded(self, handler: Handler) -> Handler:
        """Return *handler*, which only gets requests that are allowed."""

        def handle(request: Request) -> Answer:
            if self._is_allowed(request):
                return handler(request)
            return failure(
                ResponseCode.NO_PERMISSION,
                "no policy is checked for this request, so it is taken from the server's own machine and from super "
                "users only; run the command there, or switch authorization on (a broker also has remote_stop)",
            )

        return handle

    def _is_allowed(self, request: Request) -> bool:
        if self._options.needs_policy(request.route):
            # The transport has checked the policies.
            return True
        user = None if self._users is None or request.user is None else self._users.get(request.user)
        return (user is not None and user.is_super) or self._is_open() or is_loopback(request.peer.rpartition(":")[0])


def reload_answer(request: Request, settings: Reloadable[Any], log: logging.Logger) -> Answer:
    """Answer request 9876002: read the configuration file again; the body says what changed, in JSON."""
    try:
        found = settings.reload()
    except ConfigError as error:
        return failure(ResponseCode.INVALID_PARAMETER, f"nothing changed: {error}")
    log.warning("configuration read again changed=%s peer=%s", ",".join(found.changed) or "-", request.peer)
    return success(body=java_json.dumps(found._asdict()))
