"""
Passes changes of consumer groups to the hot path and to the members.

The clients divide a group's queues among themselves: on a notification (40) each asks for the members (38).
`assignments` computes assignments on the broker.
"""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from ferromq._ferromq import Request
from ferromq.broker.clients.client import PushChannel
from ferromq.broker.clients.subscription import TAG
from ferromq.broker.clients.table import ClientTable, GroupChange
from ferromq.broker.metadata.groups import GroupTable
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.remoting import Answer, failure, required, success

_log = logging.getLogger("ferromq.broker")

_STOP_SECONDS = 0.5


class SubscriptionSink(PushChannel, Protocol):
    """The part of `Server` that gets changes of subscriptions."""

    def put_subscription(
        self,
        group: str,
        topic: str,
        *,
        expression_type: str = TAG,
        expression: str = "*",
        version: int = 0,
        broadcasting: bool = False,
    ) -> None:
        """Push a group's subscription to a topic."""

    def remove_subscription(self, group: str, topic: str) -> None:
        """Remove a group's subscription to a topic."""

    def remove_resets(self, group: str, topic: str | None = None) -> None:
        """Remove pending offset resets, which have no reader any more."""


class Rebalance:
    """
    Passes changes of groups on; thread-safe.

    The hot path gets them at once, members from a thread: a group that changes several times meanwhile is notified
    once, so that a thousand members can join at the same time.
    """

    def __init__(self, server: SubscriptionSink, groups: GroupTable, *, notify: Callable[[], bool]) -> None:
        self._server = server
        self._groups = groups
        self._notify = notify
        self._waiting = threading.Condition()
        # The groups to notify; a dictionary keeps their order.
        self._dirty: dict[str, None] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self, table: ClientTable) -> None:
        """Begin to notify members, also of earlier changes."""
        self._thread = threading.Thread(target=self._run, args=(table,), name="ferromq-rebalance", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop notifying members."""
        with self._waiting:
            self._stopping = True
            self._waiting.notify_all()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def changed(self, change: GroupChange) -> None:
        """
        Push subscriptions to the hot path, and notify the members if they must rebalance.

        Never waits, since the locked client table calls it.
        """
        for topic in change.unread:
            self._server.remove_resets(change.group, topic)
        for topic in change.unsubscribed:
            self._server.remove_subscription(change.group, topic)
        for wanted in change.subscribed:
            self._server.put_subscription(
                change.group,
                wanted.topic,
                expression_type=wanted.expression_type,
                expression=wanted.expression,
                version=wanted.version,
                broadcasting=change.is_broadcast,
            )
        if change.is_affected and self._notifies(change.group):
            with self._waiting:
                self._dirty[change.group] = None
                self._waiting.notify_all()

    def notify_members(self, table: ClientTable) -> None:
        """Notify the members of every group that changed since the last call."""
        with self._waiting:
            dirty, self._dirty = self._dirty, {}
        for name in dirty:
            group = table.group(name)
            for client in group.members if group else ():
                if not client.is_grpc:
                    self._server.push(
                        client.connection, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": name}
                    )

    def _run(self, table: ClientTable) -> None:
        while True:
            with self._waiting:
                self._waiting.wait_for(lambda: self._stopping or self._dirty)
                if self._stopping:
                    return
            try:
                self.notify_members(table)
            except Exception:  # noqa: BLE001 (later changes must still be notified)
                _log.exception("members not notified of a change")

    def _notifies(self, group: str) -> bool:
        config = self._groups.get(group)
        return self._notify() and (
            config is None or config.others.get("notifyConsumerIdsChangedEnable", True) is not False
        )


class MemberList:
    """Answers remoting request 38."""

    def __init__(self, table: ClientTable) -> None:
        self._table = table

    def consumer_list(self, request: Request) -> Answer:
        """Answer request 38: the ids of a group's members, over both protocols."""
        group = required(request.fields, "consumerGroup")
        members = self._table.members(group)
        if not members:
            return failure(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return success(body=java_json.dumps({"consumerIdList": members}))
