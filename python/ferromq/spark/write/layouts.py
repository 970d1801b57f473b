"""
Keeps the queue layouts with which a batch began, so that every attempt of every task sends to the same queues.

The brokers store them (`KeepWriteLayout`, see docs/wire-format.md), because a restarted driver forgets its last
attempt, and tasks that query routes at different times may see different queues.
"""

import json
from collections.abc import Mapping
from functools import partial

from ferromq.client.client import Client
from ferromq.core.plans import Tries
from ferromq.core.requests import Call, Plan, error_of, named
from ferromq.errors import ConfigError, FerromqError, Unsupported
from ferromq.spark.write.plan import Layout

METHOD = "KeepWriteLayout"
OTHERWISE = "write it with option 'delivery' 'at-least-once', which may store rows twice"
_OK = 20000


class FirstLayouts:
    """
    The layouts of the first attempt at one epoch of a writer; for one task.

    *planned* are the layouts that the driver found. *is_placed* and *otherwise* are those of `Layout.kept_to`.
    """

    def __init__(
        self,
        writer: str,
        epoch: int,
        planned: Mapping[str, Layout],
        *,
        is_placed: bool,
        otherwise: str = OTHERWISE,
    ) -> None:
        self._writer = writer
        self._epoch = epoch
        self._planned = planned
        self._is_placed = is_placed
        self._otherwise = otherwise
        self._known: dict[str, Layout] = {}

    def of(self, client: Client, topic: str) -> Layout:
        """
        Return the layout of a topic, after every broker of the topic has stored the first attempt's.

        Raises `ConfigError` if a queue of the first attempt no longer exists.
        """
        layout = self._known.get(topic)
        if layout is None:
            now = self._planned.get(topic) or layout_of(client, topic)
            first = self._first(client, now)
            layout = self._known[topic] = now.kept_to(first, is_placed=self._is_placed, otherwise=self._otherwise)
        return layout

    def _first(self, client: Client, now: Layout) -> str:
        """Query all brokers before storing the layout, so that a new broker does not store a different one."""
        stored = {name: self._ask(client, now.topic, name, endpoint, None) for name, endpoint in now.brokers}
        first = next((layout for layout in stored.values() if layout is not None), now.text)
        for name, endpoint in now.brokers:
            if stored[name] is None:
                stored[name] = self._ask(client, now.topic, name, endpoint, first)
        for name, layout in stored.items():
            if layout != first:
                raise ConfigError(
                    f"topic {now.topic!r} has two layouts, from attempts at this batch that began at the same time: "
                    f"{layout} at {name}, {first} at others. Rows could be stored twice; {self._otherwise}"
                )
        return first

    def _ask(self, client: Client, topic: str, broker: str, endpoint: str, layout: str | None) -> str | None:
        wanted = {"writer": self._writer, "topic": topic, "epoch": self._epoch, "layout": layout}
        once = partial(_asking, client, endpoint, json.dumps(wanted).encode())
        try:
            return client.run(client.common.attempt(topic, once, timeout=client.common.timeout))
        except Unsupported as error:
            raise ConfigError(
                f"the broker {broker} at {endpoint} does not store write layouts, so rows cannot be stored exactly "
                f"once; allowed: ferromq brokers of this version. Otherwise {self._otherwise}"
            ) from error
        except FerromqError as error:
            raise named(error, f"the first layout of topic {topic} for this batch") from error.__cause__


def _asking(client: Client, endpoint: str, request: bytes, tries: Tries) -> Plan[str | None]:
    answer = yield Call(endpoint, METHOD, request, client.common.limit(tries))
    reply = json.loads(answer)
    if reply["code"] != _OK:
        raise error_of(reply["code"], reply["message"])
    layout: str | None = reply["layout"]
    return layout


def layout_of(client: Client, topic: str) -> Layout:
    """Query the brokers for the current queues of a topic."""
    return Layout.of(client.run(client.common.route(topic)))
