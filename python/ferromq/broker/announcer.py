"""
Tells others what the tables hold: the hot path every change at once, name servers every change and every period.

What the tables hold is decided by `topics` and `groups`, how name servers are spoken to by `name_servers`.
"""

from collections.abc import Mapping
from datetime import timedelta

from ferromq._ferromq import Server
from ferromq._time import Clock, Timer
from ferromq.broker.groups import GroupConfig
from ferromq.broker.name_servers import NameServers
from ferromq.broker.topics import TopicConfig, TopicTable
from ferromq.route import DataVersion

_RETRY = timedelta(seconds=2)


class Announcer:
    """Pushes entries to the hot path and registers with the name servers; thread-safe."""

    def __init__(self, server: Server, name_servers: NameServers, clock: Clock, period: timedelta) -> None:
        self._server = server
        self._name_servers = name_servers
        self._topics: TopicTable | None = None
        self._timer = Timer("ferromq-registration", clock, period, self._register)

    def start(self, topics: TopicTable) -> None:
        """Register now, and again every period; what failed is tried again soon."""
        self._topics = topics
        self._register(0)
        self._timer.start()

    def stop(self) -> None:
        """Register no more, and say goodbye to the name servers."""
        self._timer.stop()
        self._name_servers.unregister()
        # The table calls this object on changes: let go, nothing is left for the garbage collector.
        self._topics = None

    def topic_changed(self, topic: TopicConfig, version: DataVersion, everything: Mapping[str, TopicConfig]) -> None:
        """Push a topic, and register it; returns when the name servers that answer know it."""
        self.push_topic(topic)
        if self._name_servers and not self._name_servers.register_change(version, topic, everything):
            self._timer.within(_RETRY)

    def topic_deleted(self, name: str) -> None:
        """Take a topic from the hot path, and register without it; routes end where an administrator asks for it."""
        self._server.remove_topic(name)
        self._register(0)

    def push_topic(self, topic: TopicConfig) -> None:
        """Push a topic to the hot path."""
        self._server.put_topic(
            topic.name,
            read_queues=topic.read_queues,
            write_queues=topic.write_queues,
            permission=int(topic.permission),
            message_type=topic.message_type,
        )

    def push_group(self, group: GroupConfig) -> None:
        """Push a consumer group to the hot path."""
        self._server.put_group(group.name, enabled=group.enabled, max_attempts=group.max_attempts, from_beginning=True)

    def _register(self, _now: int) -> None:
        if self._topics is None or not self._name_servers:
            return
        if not self._name_servers.register(*self._topics.snapshot()):
            self._timer.within(_RETRY)
