"""The names, addresses and role under which a broker registers."""

from dataclasses import dataclass

from ferromq.protocol.route import MASTER, READ_WRITE, Permission


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The broker as others see it."""

    name: str
    cluster: str
    address: str
    """`host:port` of the remoting listener."""
    grpc_address: str
    """`host:port` of the gRPC listener."""
    broker_id: int = MASTER
    allowed: Permission = READ_WRITE
    """The permission of the broker, which limits those of its topics."""
    generation: int = 0
    """The number of role changes since the start."""

    @property
    def is_slave(self) -> bool:
        """Whether it follows a master of the same name."""
        return self.broker_id != MASTER
