"""
Locks of queues: at any time one member of a group consumes a queue in order.

A lock expires unless its owner renews it. A member that left keeps it until then, as it may still be consuming. The
clients decide which member locks which queue.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ferromq._ferromq import Request
from ferromq.broker.clients.memory import LimitExceeded, size_of_texts
from ferromq.config.consume import ConsumeConfig
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import java_json
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.message_queue import MessageQueue
from ferromq.protocol.remoting import Answer, BadRequest, failure, success

_log = logging.getLogger("ferromq.broker")

LOCK_MS = 60_000
"""The time until a lock expires, as in RocketMQ; clients renew it every 20 s."""
MAX_BODY = 1 << 20
"""The most bytes of a request: more than 10,000 queues."""
_OF_LOCK = 256


class QueueLocks:
    """The owners of queues, by group; the caller passes the time. Thread-safe."""

    def __init__(
        self,
        lock_ms: int = LOCK_MS,
        *,
        max_bytes: int = ConsumeConfig.lock_memory,
        on_change: Callable[[str, int | None], None] = lambda _group, _until: None,
    ) -> None:
        """
        *max_bytes*: the most bytes of all locks, approximately.

        *on_change* gets the expiry of a group's last lock, or None; it must not call this object, nor wait.
        """
        self._max_bytes = max_bytes
        self._on_change = on_change
        self._lock_ms = lock_ms
        self._lock = threading.Lock()
        self._owners: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self._size = 0

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str, now: int) -> list[MessageQueue]:
        """
        Lock free queues and renew the client's own; returns those of *queues* that it holds now.

        Raises `LimitExceeded`, and locks nothing, if all locks would use more than the most bytes.
        """
        with self._lock:
            owners = self._owners.get(group, {})
            held, more = dict[MessageQueue, tuple[str, int]](), 0
            for queue in queues:
                owner, renewed = owners.get(queue, (client_id, now))
                if owner == client_id or now - renewed > self._lock_ms:
                    more += 0 if queue in held else _size(group, queue, client_id)
                    more -= _size(group, queue, owner) if queue in owners and queue not in held else 0
                    held[queue] = client_id, now
            if more > 0 and self._size + more > self._max_bytes:
                raise LimitExceeded(
                    f"the locks of all clients would take {self._size + more} bytes of the broker's memory; "
                    f"{self._max_bytes} are allowed; try again when some have expired, within {self._lock_ms} ms, or "
                    "have lock_memory raised"
                )
            if held:
                self._size += more
                self._owners.setdefault(group, owners).update(held)
                self._tell(group)
            return list(held)

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Unlock those of *queues* that the client holds."""
        with self._lock:
            owners, is_changed = self._owners.get(group, {}), False
            for queue in queues:
                if owners.get(queue, ("", 0))[0] == client_id:
                    del owners[queue]
                    self._size -= _size(group, queue, client_id)
                    is_changed = True
            if not owners:
                self._owners.pop(group, None)
            if is_changed:
                self._tell(group)

    def expire(self, now: int) -> None:
        """Remove the locks that expired before *now*."""
        with self._lock:
            for group, owners in list(self._owners.items()):
                alive = {queue: held for queue, held in owners.items() if now - held[1] <= self._lock_ms}
                ended = owners.keys() - alive.keys()
                self._size -= sum(_size(group, queue, owners[queue][0]) for queue in ended)
                if alive:
                    self._owners[group] = alive
                else:
                    del self._owners[group]
                    self._tell(group)

    def _tell(self, group: str) -> None:
        owners = self._owners.get(group)
        self._on_change(group, max(renewed for _, renewed in owners.values()) + self._lock_ms if owners else None)


def _size(group: str, queue: MessageQueue, client_id: str) -> int:
    return _OF_LOCK + size_of_texts(group, queue.topic, queue.broker_name, client_id)


class QueueLockRequests:
    """Answers remoting requests 41 and 42."""

    def __init__(self, locks: QueueLocks, *, now_ms: Callable[[], int]) -> None:
        self._locks = locks
        self._seldom = LimitedLog(_log)
        self._now_ms = now_ms

    def lock(self, request: Request) -> Answer:
        """Answer request 41: lock queues for a member of a group, and return those that it holds."""
        group, client_id, queues = _question(request)
        try:
            held = self._locks.lock(group, queues, client_id, self._now_ms())
        except LimitExceeded as error:
            self._seldom.log(logging.WARNING, "queues not locked peer=%s: %s", request.peer, error)
            return failure(ResponseCode.SYSTEM_BUSY, str(error))
        return success(body=java_json.dumps({"lockOKMQSet": [queue.to_json() for queue in held]}))

    def unlock(self, request: Request) -> Answer:
        """Answer request 42: unlock the client's queues."""
        group, client_id, queues = _question(request)
        self._locks.unlock(group, queues, client_id)
        return success()


def _question(request: Request) -> tuple[str, str, list[MessageQueue]]:
    if len(request.body) > MAX_BODY:
        raise BadRequest(f"the body has {len(request.body)} bytes; {MAX_BODY} are allowed; name fewer queues at once")
    try:
        body: Mapping[str, Any] = java_json.loads_object(request.body)
        named = [MessageQueue.from_json(queue) for queue in body.get("mqSet") or ()]
    except (ValueError, TypeError) as error:
        raise BadRequest(f"the body names no queues to lock: {error}") from error
    group, client_id = body.get("consumerGroup"), body.get("clientId")
    if not isinstance(group, str) or not isinstance(client_id, str) or not group or not client_id:
        raise BadRequest("the body names no consumerGroup and clientId to lock for")
    return group, client_id, named
