"""
Notifies brokers when the lowest broker id of their name changes.

The name server does not wait for brokers, which may be gone or slow.
"""

import logging
from concurrent.futures import ThreadPoolExecutor

from ferromq._ferromq import RemotingClient
from ferromq.errors import FerromqError
from ferromq.namesrv.route_types import MinBrokerIdChange
from ferromq.protocol.codes import RequestCode

_log = logging.getLogger("ferromq.namesrv")

_SECONDS = 1.0


class MinBrokerIdNotifier:
    """Notifies brokers one after the other on a thread, which starts with the first notice."""

    def __init__(self, client: RemotingClient) -> None:
        """*client* calls the brokers, and is closed with this object."""
        self._client = client
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ferromq-notices")

    def notify(self, change: MinBrokerIdChange) -> None:
        """Notify brokers of a change. One that does not answer is logged; it can read the change from the routes."""
        self._thread.submit(self._notify, change)

    def _notify(self, change: MinBrokerIdChange) -> None:
        fields = {
            "minBrokerId": str(change.broker_id),
            "brokerName": change.broker_name,
            "minBrokerAddr": change.address,
            "offlineBrokerAddr": change.gone_address,
            "haBrokerAddr": change.ha_address,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        for address in change.notify:
            try:
                self._client.call(address, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, given, timeout=_SECONDS)
            except FerromqError as error:
                _log.warning("broker not notified broker=%s address=%s: %s", change.broker_name, address, error)

    def close(self) -> None:
        """Drop the pending notices."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._client.close()
