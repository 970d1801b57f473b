"""The faults that a test causes: of the connections to its broker, of the broker itself, and of its disk."""

import os
import random
from datetime import timedelta

from ferromq.core.requests import seconds
from ferromq.message import MessageView
from ferromq.testing import captured
from ferromq.testing.fault_proxy import FaultProxy
from ferromq.testing.running import RunningBehindProxies

_USAGE = "retention_disk_usage"
_LIMIT = 1.0
# Sends are refused above the third percentage. The others delete expired files above 1 %, and others never.
_FULL = (_LIMIT, 100.0, _LIMIT)


class Faults:
    """
    The fixture `ferromq_faults`: makes the test's broker fail.

    A fault of connections holds for all clients that came by `ferromq_broker.endpoint` or `.remoting`, until the next
    such call, `resume`, or `restart`. All faults end with the test.
    """

    def __init__(self, running: RunningBehindProxies, seed: int) -> None:
        self._running = running
        self._usage: object = None  # what the option was before `fill_disk`
        self.seed = seed
        """The seed of `random` and of `flaky`; `--ferromq-seed` sets it."""
        self.random = random.Random(seed)  # noqa: S311 (it decides about faults)
        """Draws for the test's own decisions, the same for the same seed."""

    def __repr__(self) -> str:
        state = "broker up" if self._running.is_up else "broker down"
        return f"<Faults seed={self.seed} {state}>"

    def resume(self) -> None:
        """Forward everything again, also what was held back."""
        for proxy in self._proxies():
            proxy.resume()

    def refuse(self) -> None:
        """Reset all connections, and refuse new ones."""
        for proxy in self._proxies():
            proxy.refuse()

    def drop(self) -> None:
        """Reset all connections once; new ones are accepted."""
        for proxy in self._proxies():
            proxy.drop()

    def hang(self) -> None:
        """Accept connections and requests, and answer none."""
        for proxy in self._proxies():
            proxy.hang()

    def delay(self, duration: timedelta | float) -> None:
        """Let every answer come *duration* (float: seconds) later. Raises `ValueError` for a negative time."""
        late = seconds(duration)
        for proxy in self._proxies():
            proxy.delay(late)

    def lose_answer(self, containing: bytes = b"") -> None:
        """
        Lose the answer to the next request that contains these bytes, once: its connection is reset instead.

        The broker has executed the request, and the client does not know it. So it sends the request again: a message
        is stored twice, with one message id. *containing* is what only this request has, for example its body or its
        key; without it the next request of any kind is meant, be it a heartbeat. It counts for each protocol.
        """
        for proxy in self._proxies():
            proxy.lose(containing=containing)

    def flaky(self, *, lose: float = 0.0, delay: timedelta | float = 0.0) -> None:
        """
        Lose a share of all answers, 0 to 1, at random, and let the others come up to *delay* (float: seconds) later.

        The seed repeats the decisions in their order. It does not repeat the order in which threads send their
        requests. Raises `ValueError` for a share outside of 0 to 1, and for a negative time.
        """
        if not 0 <= lose <= 1:
            raise ValueError(f"lose is {lose}; a share from 0 (no answer) to 1 (every answer) is expected")
        for proxy in self._proxies():
            draws = random.Random(self.random.getrandbits(64))  # noqa: S311 (it decides about faults)
            proxy.flaky(draws, lose=lose, delay=seconds(delay))

    def duplicate(self, message: MessageView) -> MessageView:
        """
        Store a captured or received message again, as a repeated send does, and return the second one.

        It has the same message id, and the next offset of the same queue. Raises `LookupError` if the broker does not
        have the message.
        """
        store = self._running.store
        record = captured.record_of(store, message)
        if record is None:
            raise LookupError(
                f"the broker does not have message {message.message_id} of {message.topic}, queue {message.queue_id}, "
                f"offset {message.queue_offset}; take one that ferromq_broker.messages returns"
            )
        offset, _ = store.append(
            record.topic,
            record.queue_id,
            record.body,
            record.properties,
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            reconsume_times=record.reconsume_times,
            prepared_transaction_offset=record.prepared_transaction_offset,
        )
        return next(
            each
            for each in captured.messages(store, record.topic)
            if (each.queue_id, each.queue_offset) == (record.queue_id, offset)
        )

    def crash(self) -> None:
        """
        Kill the broker and its name server, as SIGKILL does: connections are reset, and the store stays as it is.

        What a loss of power adds, lost pages of the disk's cache, is not part of it. Raises `RuntimeError` if the
        broker is down already.
        """
        self._running.crash()

    def stop(self) -> None:
        """Stop the broker and its name server in order, as SIGTERM does. Raises `RuntimeError` if it is down."""
        self._running.stop()

    def restart(self) -> None:
        """
        Start the broker again, with the same store, addresses, options and clock.

        A broker that runs is stopped first, as in a deployment. Faults of connections end; a full disk stays full.
        """
        self._running.restart()

    def fill_disk(self) -> None:
        """
        Let the broker find its disk full: it refuses sends, and serves consumers, until `free_disk`.

        It lowers the broker's own limit of disk usage to 1 %, so no byte is written. Raises `RuntimeError` if less of
        the disk is in use: the broker would accept sends.
        """
        disk = os.statvfs(self._running.directory)
        used, free = disk.f_blocks - disk.f_bfree, disk.f_bavail
        if used * 100 <= (used + free) * _LIMIT:
            raise RuntimeError(
                f"{used * disk.f_frsize} bytes of the disk of {self._running.directory} are in use, which is less than "
                f"{_LIMIT:g} %, the lowest limit of a broker; choose a directory on another disk with --basetemp"
            )
        present = self._running.store.options()[_USAGE]
        if present != _FULL:
            self._usage = present
        self._running.configure(**{_USAGE: _FULL})

    def free_disk(self) -> None:
        """Let the broker find space on its disk again, after `fill_disk`."""
        if self._running.store.options()[_USAGE] == _FULL:
            self._running.configure(**{_USAGE: self._usage})

    def fail_flush(self) -> None:
        """
        Let the next flush of the commit log fail, as on a disk that reports an error.

        A sender that waits for this flush gets `NotDurable`. From then on the broker refuses sends, and serves
        consumers, until `restart` or `crash`. Unless `flush` is "group" or "each", the log is flushed in the
        background: sends are answered as before until that flush fails. Raises `RuntimeError` if the broker is down.
        """
        self._running.fail_flush()

    def end(self) -> None:
        """End the faults of connections, if the broker runs; the end of the test does it."""
        if self._running.is_up:
            self.resume()

    def _proxies(self) -> tuple[FaultProxy, ...]:
        """Return the proxies of a broker that runs: the ports of one that is down stay closed."""
        _ = self._running.mq
        return self._running.clients_proxies
