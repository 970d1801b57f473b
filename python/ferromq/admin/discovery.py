"""Finds out from the brokers at gRPC endpoints how their cluster is administered."""

from ferromq.admin.calls import Calls
from ferromq.admin.lone_brokers import LoneBrokers
from ferromq.admin.name_servers import NameServers
from ferromq.client.connection import Channels
from ferromq.client.tls import Tls, TlsFile, read_tls
from ferromq.core.requests import Identity
from ferromq.errors import ConfigError, ConnectionFailed, FerromqError, OutcomeUnknown, ServerError, Unsupported
from ferromq.protocol.broker_description import DESCRIBE_BROKER, BrokerDescription, decode


def discover(endpoints: tuple[str, ...], calls: Calls, tls: bool | TlsFile | Tls) -> NameServers | LoneBrokers:
    """
    Return the name servers of the first broker that answers; the brokers themselves if they have no name servers.

    Raises `Unsupported` for a server that is not a ferromq broker. Without name servers every broker must answer, so
    that no change reaches only some of them.
    """
    lone: list[BrokerDescription] = []
    failure: FerromqError | None = None
    channels = Channels(Identity(calls.credentials), read_tls(tls))
    try:
        for endpoint in endpoints:
            try:
                broker = _describe(channels, endpoint, calls.left(endpoint, DESCRIBE_BROKER) / len(endpoints))
            except OutcomeUnknown as error:
                failure = failure or error
                continue
            if broker.namesrv and lone:
                raise ConfigError(
                    f"{endpoint} registers with name servers ({';'.join(broker.namesrv)}), and "
                    f"{lone[0].name} with none: they are no cluster; give the endpoints of one"
                )
            if broker.namesrv:
                return NameServers(broker.namesrv, calls)
            lone.append(broker)
    finally:
        channels.close()
    if failure is not None:
        raise failure
    return LoneBrokers(lone, calls)


def _describe(channels: Channels, endpoint: str, timeout: float) -> BrokerDescription:
    try:
        return decode(channels.call(endpoint, DESCRIBE_BROKER, b"", timeout))
    except Unsupported as error:
        raise Unsupported(
            f"the server at {endpoint} does not know {DESCRIBE_BROKER}: it is RocketMQ's proxy, or an older ferromq "
            "broker. Give its name servers: ferromq.Admin('HOST:9876')"
        ) from error
    except ConnectionFailed as error:
        if "Socket closed" not in str(error):
            raise
        raise ConnectionFailed(f"{error}; is this a broker's gRPC port (8081)?") from None
    except ValueError as error:
        raise ServerError(f"{endpoint} answered {DESCRIBE_BROKER} with something else: {error}") from error
