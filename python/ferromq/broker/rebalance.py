"""
What follows from a change among the members of a consumer group: the hot path and the members are told.

Clients share a group's queues among themselves: each asks who else is there (38) when it is told to (40). Who is there
is kept by `clients`; shares that the broker works out are those of `assignment`.
"""

from collections.abc import Callable
from typing import Protocol

from ferromq import _json
from ferromq._codes import RequestCode, ResponseCode
from ferromq._ferromq import Request
from ferromq._remoting import Answer, failure, required, success
from ferromq.broker.clients import TAG, ClientTable, GroupChange, Pusher
from ferromq.broker.groups import GroupTable


class Told(Pusher, Protocol):
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


class Rebalance:
    """Passes changes of groups on; never waits, so that the table of clients may call it while it is locked."""

    def __init__(self, server: Told, groups: GroupTable, *, notify: Callable[[], bool]) -> None:
        self._server = server
        self._groups = groups
        self._notify = notify

    def changed(self, change: GroupChange) -> None:
        """Push subscriptions to the hot path, then tell the members whose share of the queues may be another one."""
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
        if not change.affected or not self._tells(change.group):
            return
        for client in change.affected:
            if not client.is_grpc:
                self._server.push(
                    client.connection, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": change.group}
                )

    def _tells(self, group: str) -> bool:
        config = self._groups.get(group)
        return self._notify() and (
            config is None or config.others.get("notifyConsumerIdsChangedEnable", True) is not False
        )


class Members:
    """Answers remoting request 38."""

    def __init__(self, table: ClientTable) -> None:
        self._table = table

    def consumer_list(self, request: Request) -> Answer:
        """Answer request 38: the ids of a group's members, over both protocols."""
        group = required(request.fields, "consumerGroup")
        members = self._table.members(group)
        if not members:
            return failure(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return success(body=_json.dumps({"consumerIdList": members}))
