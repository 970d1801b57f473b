"""
The locks of queues: one member of a group at a time consumes a queue in order.

A lock ends by time unless its owner renews it; a member that went away keeps it until then, because it may still be
consuming. Which member asks for which queue is the clients' business.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ferromq._ferromq import Request
from ferromq.broker.clients.memory import LimitExceeded, size_of_texts
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import java_json
from ferromq.protocol.codes import ResponseCode
from ferromq.protocol.message_queue import MessageQueue
from ferromq.protocol.remoting import Answer, BadRequest, failure, success

_log = logging.getLogger("ferromq.broker")

LOCK_MS = 60_000
"""How long a lock lasts that is not renewed; RocketMQ's figure, clients renew every 20 s."""
MAX_BODY = 1 << 20
"""Bytes of a request that names queues: more than 10,000 queues."""
MAX_BYTES = 64 << 20
"""Bytes that all locks take, about: more than 100,000 of them."""
_OF_LOCK = 256


class QueueLocks:
    """Knows who may consume a queue for a group; `now` is an argument. Thread-safe."""

    def __init__(
        self, lock_ms: int = LOCK_MS, *, on_change: Callable[[str, int | None], None] = lambda _group, _until: None
    ) -> None:
        """*on_change* hears until when members of a group hold locks, or None; it must not come back here, nor wait."""
        self._on_change = on_change
        self._lock_ms = lock_ms
        self._lock = threading.Lock()
        self._owners: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self._size = 0

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str, now: int) -> list[MessageQueue]:
        """
        Lock what is free, or the client's already; return what it holds of *queues* now.

        Raises `LimitExceeded`, and locks nothing, where the locks of all clients would take more than `MAX_BYTES`.
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
            if more > 0 and self._size + more > MAX_BYTES:
                raise LimitExceeded(
                    f"the locks of all clients would take {self._size + more} bytes of the broker's memory; "
                    f"{MAX_BYTES} are allowed; try again when some have ended, which takes {self._lock_ms} ms"
                )
            if held:
                self._size += more
                self._owners.setdefault(group, owners).update(held)
                self._tell(group)
            return list(held)

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Free those of *queues* that are the client's."""
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
        """Forget the locks that ended before *now*."""
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
        """Answer request 41: lock queues for a member of a group; the body says which it holds."""
        group, client_id, queues = _question(request)
        try:
            held = self._locks.lock(group, queues, client_id, self._now_ms())
        except LimitExceeded as error:
            self._seldom.log(logging.WARNING, "queues not locked peer=%s: %s", request.peer, error)
            return failure(ResponseCode.SYSTEM_BUSY, str(error))
        return success(body=java_json.dumps({"lockOKMQSet": [queue.to_json() for queue in held]}))

    def unlock(self, request: Request) -> Answer:
        """Answer request 42: free queues; those that are not the client's stay locked."""
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
