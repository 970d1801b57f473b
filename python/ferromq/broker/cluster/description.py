"""Answers DescribeBroker: how an administrator at the gRPC port reaches this broker and its name servers."""

from ferromq._ferromq import Request
from ferromq.broker.cluster.name_servers import NameServers
from ferromq.protocol.broker_description import BrokerDescription, encode


class Description:
    """The broker's description of itself, with its present role."""

    def __init__(self, name_servers: NameServers, addresses: tuple[str, ...], dedup_window_ms: int) -> None:
        self._name_servers = name_servers
        self._addresses = addresses
        self._dedup_window_ms = dedup_window_ms

    def answer(self, _request: Request) -> bytes:
        """Answer DescribeBroker, in JSON; see docs/wire-format.md."""
        identity = self._name_servers.identity
        return encode(
            BrokerDescription(
                name=identity.name,
                cluster=identity.cluster,
                broker_id=identity.broker_id,
                remoting=identity.address,
                namesrv=self._addresses,
                dedup_window_ms=self._dedup_window_ms,
            )
        )
