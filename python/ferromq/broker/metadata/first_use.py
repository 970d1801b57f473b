"""
Creates topics and groups on first use, where the options allow it.

The hot path answers from pushed tables. It calls `create` once for each name that it does not know.
"""

import logging

from ferromq._ferromq import Store
from ferromq.broker.metadata.groups import GroupTable
from ferromq.broker.metadata.topics import TopicTable
from ferromq.errors import IllegalName, RequestError
from ferromq.process.limited_log import LimitedLog

_log = logging.getLogger("ferromq.broker")


class FirstUse:
    """Creates missing topics and groups for the hot path; thread-safe."""

    def __init__(self, store: Store, topics: TopicTable, groups: GroupTable) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._seldom = LimitedLog(_log)

    def create(self, kind: str, name: str, peer: str, wanted: tuple[str, int, int]) -> bool | None:
        """Create what is missing and push it. Returns whether it exists now; None if its table cannot be written."""
        try:
            default_topic, queues, sys_flag = wanted
            # Another request may have created the entry and not pushed it yet, so it is pushed in any case.
            if kind == "group":
                return self._groups.ensure(name, peer) is not None and self._groups.push_again(name)
            if kind == "topic_to_send":
                topic = self._topics.ensure_to_send(name, default_topic, queues, sys_flag, peer)
            elif kind == "type_of_topic":
                topic = self._topics.decide_type(name, self._first_type(name, default_topic), peer)
            elif kind == "topic_of_group":
                topic = self._topics.ensure_of_group(name, queues, sys_flag, peer)
            else:
                topic = self._topics.ensure(name, peer)
            return topic is not None and self._topics.push_again(name)
        except (IllegalName, RequestError) as error:
            _log.debug("%s not created peer=%s: %s", kind, peer, error)
            return False
        except OSError as error:
            text = "%s not created, its table cannot be written name=%s peer=%s: %s"
            self._seldom.log(logging.ERROR, text, kind, name, peer, error)
            return None

    def _first_type(self, topic: str, kind: str) -> str:
        """Return the type of an untyped topic: NORMAL if it holds messages, whose types were never checked."""
        found = self._topics.find(topic)
        queues = range(max(found.read_queues, found.write_queues)) if found is not None else ()
        store = self._store
        has_messages = any(store.max_offset(topic, queue) > store.min_offset(topic, queue) for queue in queues)
        return "NORMAL" if has_messages else kind
