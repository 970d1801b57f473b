"""The names, addresses and role under which a broker registers."""

from dataclasses import dataclass

from ferromq.broker.metadata.topics import TopicConfig, is_ordered
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
    is_draining: bool = False
    """Whether senders shall leave: routes have its topics without the permission to write, except ordered ones."""
    left: frozenset[str] = frozenset()
    """Ordered topics whose senders shall leave, too, because the draining broker retires."""

    @property
    def is_slave(self) -> bool:
        """Whether it follows a master of the same name."""
        return self.broker_id != MASTER

    def permission_of(self, topic: TopicConfig) -> Permission:
        """
        Return the upper limit of a topic's permission in routes.

        The messages of an ordered topic keep their queues, so its senders wait for a draining broker and do not leave.
        """
        return self.allowed & Permission.READ if self.shall_be_left(topic) else self.allowed

    def shall_be_left(self, topic: TopicConfig) -> bool:
        """Return whether the senders of a topic shall leave this broker."""
        return self.is_draining and (not is_ordered(topic) or topic.name in self.left)
