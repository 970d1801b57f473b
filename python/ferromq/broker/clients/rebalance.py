"""
What follows from a change among the members of a consumer group: the hot path and the members are told.

Clients share a group's queues among themselves: each asks who else is there (38) when it is told to (40). Who is there
is kept by `clients`; shares that the broker works out are those of `assignment`.
"""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from ferromq._ferromq import Request
from ferromq.broker.clients.client import Pusher
from ferromq.broker.clients.subscription import TAG
from ferromq.broker.clients.table import ClientTable, GroupChange
from ferromq.broker.metadata.groups import GroupTable
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.remoting import Answer, failure, required, success

_log = logging.getLogger("ferromq.broker")

_STOP_SECONDS = 0.5


class SubscriptionSink(Pusher, Protocol):
    """What is told of changes: the part of `Server` that is used here."""

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
        """Tell the hot path what a group wants of a topic."""

    def remove_subscription(self, group: str, topic: str) -> None:
        """Tell the hot path that a group wants nothing of a topic any more."""

    def remove_resets(self, group: str, topic: str | None = None) -> None:
        """Tell the hot path that nobody is left to hear where a reset puts it."""


class Rebalance:
    """
    Passes changes of groups on; thread-safe.

    The hot path is told at once, members by a thread: a group that changes again while others are told is told once
    more, not once a change, so that a thousand members may come at the same time.
    """

    def __init__(self, server: SubscriptionSink, groups: GroupTable, *, notify: Callable[[], bool]) -> None:
        self._server = server
        self._groups = groups
        self._notify = notify
        self._waiting = threading.Condition()
        # A dictionary for its order.
        self._dirty: dict[str, None] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self, table: ClientTable) -> None:
        """Begin to tell members of changes, also of those that were before."""
        self._thread = threading.Thread(target=self._run, args=(table,), name="ferromq-rebalance", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tell members nothing more."""
        with self._waiting:
            self._stopping = True
            self._waiting.notify_all()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def changed(self, change: GroupChange) -> None:
        """
        Push subscriptions to the hot path, and have the members told whose share of the queues may be another one.

        Never waits, so that the table of clients may call it while it is locked.
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
        """Tell the members of every group that changed since the last time."""
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
            except Exception:  # noqa: BLE001 (the next change must be told)
                _log.exception("members not told of a change")

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
