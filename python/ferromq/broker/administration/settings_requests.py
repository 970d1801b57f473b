"""Requests 25 and 26: change and show the options of a running broker."""

import logging
from typing import Any

from ferromq._ferromq import Request, Store
from ferromq.access.own_machine import reload_answer
from ferromq.broker.administration.rocketmq_options import as_lines, flat, rocketmq_names
from ferromq.broker.administration.settings import Settings
from ferromq.config.file_edit import ProtectedKey
from ferromq.config.properties_file import parse_lines
from ferromq.errors import ConfigError
from ferromq.protocol import java_json
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.remoting import Answer, failure, success

_log = logging.getLogger("ferromq.broker")


class SettingsRequests:
    """Answers requests 25 and 26."""

    def __init__(self, settings: Settings, store: Store, address: str) -> None:
        self._settings = settings
        self._store = store
        self._address = address

    def get(self, _request: Request) -> Answer:
        """Answer request 26: every option, RocketMQ's names first."""
        body = as_lines(self._options(), self._shown()).encode()
        return success({"version": java_json.dumps(self._settings.version.to_json()).decode()}, body)

    def update(self, request: Request) -> Answer:
        """Answer request 25: change options; the body has lines KEY=VALUE."""
        try:
            lines = parse_lines(request.body.decode(errors="replace"), "the request")
            wanted = {key: value for key, (_, value) in lines.items()}
            changed = self._settings.update(wanted, self._shown())
        except ProtectedKey as error:
            return failure(ResponseCode.NO_PERMISSION, str(error))
        except ConfigError as error:
            return failure(ResponseCode.INVALID_PARAMETER, str(error))
        if changed:
            _log.warning("options changed options=%s peer=%s", ",".join(sorted(changed)), request.peer)
        return success()

    def reload(self, request: Request) -> Answer:
        """Answer request 9876002."""
        return reload_answer(request, self._settings, _log)

    def _options(self) -> dict[str, Any]:
        return {**flat(self._settings.config), **self._store.options()}

    def _shown(self) -> dict[str, str]:
        """Return the values under RocketMQ's names, with the advertised address, which the options may leave open."""
        host, _, port = self._address.rpartition(":")
        return {**rocketmq_names(self._options()), "brokerIP1": host.strip("[]"), "listenPort": port}
