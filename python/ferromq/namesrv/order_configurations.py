"""
Updates the order configurations of topics when masters register.

A FIFO topic gets one when a broker first registers it, any other topic only from an operator. A broker that leaves
stays in them, so that message groups keep their queues. Other changes of queues change them.
"""

import logging
from collections.abc import Callable, Sequence

from ferromq.namesrv.kv_config import KvConfig
from ferromq.namesrv.route_types import OrderChange, OrderDeletion
from ferromq.protocol.namespaces import ORDER_NAMESPACE
from ferromq.protocol.order_configuration import all_parts, text_of, with_part, without

_log = logging.getLogger("ferromq.namesrv")


class OrderConfigurationUpdater:
    """Updates the order configurations in the key-value table. Thread-safe."""

    def __init__(self, kv_config: KvConfig, on_change: Callable[[list[str]], object]) -> None:
        self._kv_config = kv_config
        self._on_change = on_change

    def brokers(self) -> set[str]:
        """Return the brokers of all order configurations."""
        configurations = self._kv_config.namespace(ORDER_NAMESPACE) or {}
        return set().union(*map(all_parts, configurations.values()))

    def follow(self, changes: Sequence[OrderChange | OrderDeletion]) -> None:
        """Apply changes of `RouteInfoManager`, which may come from several brokers at once."""
        by_topic: dict[str, list[OrderChange | OrderDeletion]] = {}
        for change in changes:
            by_topic.setdefault(change.topic, []).append(change)

        def changed(of_topic: list[OrderChange | OrderDeletion]) -> Callable[[str | None], str | None]:
            def value(before: str | None) -> str | None:
                for change in of_topic:
                    before = _value(before, change)
                return before

            return value

        try:
            topics = self._kv_config.change(ORDER_NAMESPACE, {topic: changed(each) for topic, each in by_topic.items()})
        except OSError:
            # The routes are right, and the next registrations repeat the changes.
            _log.exception("order configurations not written topics=%d", len(by_topic))
            return
        if topics:
            self._on_change(topics)


def _value(before: str | None, change: OrderChange | OrderDeletion) -> str | None:
    if isinstance(change, OrderDeletion):
        return before and without(before, change.goes, change.stays)
    if change.is_in_order:
        return None if before is None and not change.queues else with_part(before, change.broker_name, change.queues)
    known = all_parts(before)
    count = known.get(change.broker_name)
    # An operator's number for a broker stays until the broker's queues change; 0 keeps the broker's position.
    if count is None or (change.is_back and count):
        return before
    return text_of({**known, change.broker_name: change.queues})
