"""
Keeps the order configurations of topics true to what masters register.

A topic of the type FIFO has one from the moment a broker registers it; another topic where an operator gave it one.
Brokers that leave stay in them, so that message groups keep their queues; what else changes the queues changes them.
"""

import logging
from collections.abc import Callable, Sequence

from ferromq.namesrv.kv_config import KvConfig
from ferromq.namesrv.route_types import OrderChange, OrderDeletion
from ferromq.protocol.namespaces import ORDER_NAMESPACE
from ferromq.protocol.order_configuration import all_parts, text_of, with_part, without

_log = logging.getLogger("ferromq.namesrv")


class OrderConfigurationUpdater:
    """Follows the registrations; thread-safe."""

    def __init__(self, kv_config: KvConfig, on_change: Callable[[list[str]], object]) -> None:
        self._kv_config = kv_config
        self._on_change = on_change

    def brokers(self) -> set[str]:
        """Return the brokers that are in some order configuration."""
        configurations = self._kv_config.namespace(ORDER_NAMESPACE) or {}
        return set().union(*map(all_parts, configurations.values()))

    def follow(self, changes: Sequence[OrderChange | OrderDeletion]) -> None:
        """Take over changes, as `RouteInfoManager` tells them: several brokers may register at once."""
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
            # The routes are right, and brokers tell it again with their next registration.
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
    # What an operator wrote for a broker holds until its queues change; its place is kept where it has none.
    if count is None or (change.is_back and count):
        return before
    return text_of({**known, change.broker_name: change.queues})
