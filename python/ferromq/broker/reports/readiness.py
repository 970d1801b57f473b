"""Whether a broker can do its work: takes messages, and is known to a name server."""

from collections.abc import Callable, Sequence

from ferromq._ferromq import Store
from ferromq.broker.cluster.drain import SERVING, Drain
from ferromq.broker.cluster.name_servers import NameServers
from ferromq.errors import StoreError

_STALLED_MS = 10_000
"""From this time of stalled dispatch on, the store refuses sends."""


def readiness(
    store: Store, name_servers: NameServers, is_slave: Callable[[], bool], drain: Drain
) -> Callable[[], Sequence[str]]:
    """Return a function that says why the broker is not ready; nothing if it is."""

    def reasons() -> Sequence[str]:
        found = [] if drain.state == SERVING else [f"the broker is {drain.state}: it shall get no new messages"]
        # A slave takes no messages of producers.
        if not is_slave():
            try:
                store.check_writes()
            except (StoreError, OSError) as error:
                found.append(f"sends are refused: {error}")
            stalled = store.stats()["dispatch_stalled_ms"]
            if stalled >= _STALLED_MS:
                found.append(f"sends are refused: messages have not reached their queues for {stalled} ms")
        failing = name_servers.failing()
        if failing and len(failing) == name_servers.count:
            found.append(f"no name server has the broker's registration: {', '.join(failing)}")
        return found

    return reasons
