"""
The life of transactions against a dictionary: prepared, ended by any of their places, checked, killed in between.

The broker is killed by forgetting all but what is stored; what a RocketMQ broker leaves is stored in between, too.
"""

import contextlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from check_peers import DISCARDED, GROUP, HALF, OP, Broker, answer
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ferromq._ferromq import StoredMessage
from ferromq.broker.clients.client import Client
from ferromq.broker.transactions.end_transaction import Decision, EndRefused, EndRequest, op_message
from ferromq.config.transactions import TransactionConfig

MAX_CHECKS = 3
OPEN, COMMITTED, ROLLED_BACK, GIVEN_UP = "open", "committed", "rolled back", "given up"


ENDS = st.tuples(
    st.integers(0, 30),
    st.integers(0, MAX_CHECKS),
    st.sampled_from([Decision.COMMIT, Decision.ROLLBACK]),
    st.sampled_from([False, False, False, True]),
)
"""The transaction, its place, the decision, and whether the broker is killed."""
OTHERS = {Decision.COMMIT: {ROLLED_BACK, GIVEN_UP}, Decision.ROLLBACK: {COMMITTED}}
"""The states in which a decision is refused."""


class Killed(Exception):  # noqa: N818 (what happens, not an error)
    """The broker is gone before the append."""


class TransactionLife(RuleBasedStateMachine):
    """One broker and its transactions."""

    @initialize()
    def begin(self) -> None:
        """Open an empty store, with a producer."""
        self.directory = Path(tempfile.mkdtemp())
        self.broker = Broker(self.directory)
        self.broker.config = TransactionConfig(transaction_check_max=MAX_CHECKS)
        self.broker.table.produce("payers", Client("p", 7, "10.0.0.9:1", "JAVA", 513), 0)
        self.states: dict[str, str] = {}
        self.places: dict[str, list[EndRequest]] = {}
        self.checks: dict[str, int] = {}

    def teardown(self) -> None:
        """Close the store and remove it."""
        if hasattr(self, "broker"):
            self.broker.store.close()
            shutil.rmtree(self.directory)

    @rule(count=st.integers(1, 3))
    def prepare(self, count: int) -> None:
        """Send half messages."""
        for _ in range(count):
            name = f"K{len(self.states)}"
            self.places[name] = [self.broker.half(name.encode(), UNIQ_KEY=name)]
            self.states[name], self.checks[name] = OPEN, 0

    @rule(ends=st.lists(ENDS, min_size=1, max_size=5))
    def end(self, ends: list[tuple[int, int, Decision, bool]]) -> None:
        """End some, each by one of its places, older or not; the broker may be killed before that is stored."""
        for which, place, decision, is_killed in ends if self.states else ():
            name = f"K{which % len(self.states)}"
            places = self.places[name]
            named = replace(places[place % len(places)], decision=decision)
            self.broker.settle()
            if is_killed:
                self._killed(lambda named=named: self.broker.ends.end(named))
            else:
                self._end(name, named)

    def _end(self, name: str, named: EndRequest) -> None:
        try:
            is_new = self.broker.ends.end(named)
        except EndRefused:
            assert self.states[name] in OTHERS[named.decision]
            return
        assert self.states[name] not in OTHERS[named.decision]
        assert is_new == (self.states[name] == OPEN), f"{name} was {self.states[name]}"
        if is_new:
            self.states[name] = COMMITTED if named.decision is Decision.COMMIT else ROLLED_BACK

    @rule(after=st.sampled_from([31_000, 1_000]), appends=st.sampled_from([None, None, 0, 1]))
    def round(self, after: int, appends: int | None) -> None:
        """Check with producers; the broker may be killed before all of it is stored."""
        asked = len(self.broker.producers.remoting)
        discarded = len(self.broker.seen(DISCARDED, 0))
        if appends is None:
            self.broker.round(after)
        else:
            self._killed(lambda: self.broker.round(after), after=appends)
        for message in self.broker.seen(DISCARDED, 0)[discarded:]:
            name = message.body.decode()
            assert (self.states[name], self.checks[name]) == (OPEN, MAX_CHECKS)
            self.states[name] = GIVEN_UP
        for number in range(asked, len(self.broker.producers.remoting)):
            name = self.broker.producers.remoting[number][1]["msgId"]
            assert self.states[name] == OPEN, f"{name} was {self.states[name]} and is asked about"
            self.places[name].append(answer(self.broker, number=number))
            self.checks[name] += 1
            assert self.checks[name] <= MAX_CHECKS

    @rule(which=st.integers(0, 30), place=st.integers(-1, MAX_CHECKS), has_op=st.booleans())
    def let_rocketmq_commit(self, which: int, place: int, *, has_op: bool) -> None:
        """Let a RocketMQ broker have the store: it commits, and is killed before the op message or after it."""
        name = f"K{which % max(1, len(self.states))}"
        if self.states.get(name) != OPEN:
            return
        self.broker.settle()
        places = self.places[name]
        half = self.broker.store.message_at(places[min(place, len(places) - 1)].physical_offset)
        assert half is not None
        self.broker.store.append(
            "orders",
            3,
            half.body,
            {"UNIQ_KEY": name},
            sys_flag=Decision.COMMIT,
            born_timestamp=half.born_timestamp,
            prepared_transaction_offset=half.physical_offset,
        )
        if has_op:
            self.broker.store.append_as_one([op_message(half.queue_offset)])
        self.states[name] = COMMITTED
        self.broker.begin()

    @rule(is_asked=st.booleans())
    def let_rocketmq_put_back(self, *, is_asked: bool) -> None:
        """Let a RocketMQ broker have the store for a round: it checks the open ones, or finds them too young."""
        self.broker.settle()
        end = self.broker.store.max_offset(HALF, 0)
        for half in self._taken():
            name, properties = half.body.decode(), half.properties
            if is_asked and self.checks[name] < MAX_CHECKS:
                self.checks[name] += 1
                properties["TRANSACTION_CHECK_TIMES"] = str(self.checks[name])
            else:
                properties.setdefault("TRAN_PREPARED_QUEUE_OFFSET", str(half.queue_offset))
            queue_offset, physical_offset = self.broker.store.append(
                HALF, 0, half.body, properties, born_timestamp=half.born_timestamp, born_host=half.born_host
            )
            self.places[name].append(EndRequest("payers", physical_offset, queue_offset, Decision.COMMIT))
        self.broker.store.commit_offset(GROUP, HALF, 0, end)
        self.broker.begin()

    @rule(is_closed=st.booleans())
    def kill(self, *, is_closed: bool) -> None:
        """Forget all but what is stored; the store may be opened anew."""
        if is_closed:
            self.broker.settle()
            self.broker.store.close()
            self.broker.open()
        self.broker.begin()

    @invariant()
    def what_is_visible_was_committed_and_once(self) -> None:
        """No more, no less."""
        if hasattr(self, "broker"):
            visible = sorted(message.body.decode() for message in self.broker.seen())
            assert visible == sorted(name for name, state in self.states.items() if state == COMMITTED)

    @invariant()
    def what_rocketmq_would_take_for_open_is_open(self) -> None:
        """By the two committed offsets and the op messages, as it reads them; each open one once."""
        if not hasattr(self, "broker"):
            return
        taken = sorted(half.body.decode() for half in self._taken())
        opened = sorted(name for name, state in self.states.items() if state == OPEN)
        # RocketMQ itself takes a commit without an op message for open.
        assert set(opened) <= set(taken)
        assert len(taken) == len(set(taken))
        assert all(self.states[name] in {OPEN, COMMITTED} for name in taken)

    def _taken(self) -> list[StoredMessage]:
        """Return what RocketMQ takes for open."""
        store = self.broker.store
        below, op_below = (store.committed_offset(GROUP, topic, 0) or 0 for topic in (HALF, OP))
        removed = {
            int(text)
            for message in self.broker.seen(OP, 0)
            if message.queue_offset >= op_below
            for text in message.body.split(b",")
        }
        halves = [half for half in self.broker.seen(HALF, 0) if half.queue_offset >= below]
        return [half for half in halves if half.queue_offset not in removed]

    def _killed(self, action: Any, *, after: int = 0) -> None:
        """Do *action* up to an append, and begin anew with what is stored."""
        real, done = self.broker.store, 0

        class Dying:
            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

            def append_as_one(self, messages: Any) -> Any:
                nonlocal done
                if done == after:
                    raise Killed
                done += 1
                return real.append_as_one(messages)

        dying: Any = Dying()
        for part in (self.broker.ends, self.broker.checks):
            part._store = dying
        with contextlib.suppress(Killed, EndRefused):
            action()
        self.broker.store = real
        self.broker.begin()


def test_transactions_live_as_the_model_says() -> None:
    """Random lives, each on a store of its own."""
    run_state_machine_as_test(
        TransactionLife, settings=settings(max_examples=25, stateful_step_count=30, deadline=None)
    )
