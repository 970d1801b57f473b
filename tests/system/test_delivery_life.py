"""
The whole life of messages, random operations against the reference of `delivery_model`.

One machine drives a broker inside the process over its sockets: sends over gRPC and remoting, receives, acknowledges,
gives back, ends transactions, moves the clock, stops the broker and kills it. A kill is a copy of the directory as the
process that is killed would leave it, opened by another broker. The lives are the same in every run, unless
FERROMQ_LIFE_CASES asks for so many new ones.
"""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from delivery_model import Life, Queue, State
from dispatching import dispatched
from grpc_peer import GrpcPeer, Received, timestamp
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from remoting_peer import Peer

import ferromq
from ferromq._proto import messages as pb

EXAMPLES = int(os.environ.get("FERROMQ_LIFE_CASES", "15"))
STEPS = 40
DELIVERIES = 3
GROUP, LINE = "workers", "line"
PLAIN, TIMED, DEALS, ROWS = "plain", "timed", "deals", "rows"
KINDS = {PLAIN: "NORMAL", TIMED: "DELAY", DEALS: "TRANSACTION", ROWS: "FIFO"}
UPDATE_TOPIC, UPDATE_GROUP, SEND = 17, 200, 310
PATIENCE = 20.0
SECOND, HOUR = 1_000, 3_600_000
HANDED_OUT = st.sampled_from([PLAIN, TIMED, DEALS, ROWS])


def group_of(topic: str) -> str:
    """Return the group that reads the topic."""
    return LINE if topic == ROWS else GROUP


class DeliveryLife(RuleBasedStateMachine):
    """A broker and the expected state of its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="ferromq-life-"))
        self.opened = 0
        self.clock = ferromq.Clock.manual()
        self.queues = {topic: Queue(DELIVERIES, is_ordered=topic == ROWS) for topic in KINDS}
        self.held: dict[str, list[Received]] = {topic: [] for topic in KINDS}
        self.stored = dict.fromkeys(KINDS, 0)
        """Messages in the queues of each topic; at least so many after a kill."""
        self.was_killed = False
        self.halves: dict[str, Any] = {}
        self.recalls: dict[str, str] = {}
        self.sent = 0
        self.running = contextlib.ExitStack()

    # --- life of the broker

    @initialize()
    def begin(self) -> None:
        """Start the first broker, with its topics and groups."""
        self._open(self.base / "0")
        for topic, kind in KINDS.items():
            queues = "1" if topic == ROWS else "3"
            fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues}
            fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
            answer = self.remoting.call(UPDATE_TOPIC, {**fields, "attributes": f"+message.type={kind}"})
            assert answer.code == 0, answer.remark
        for group in (GROUP, LINE):
            body = {"groupName": group, "retryMaxTimes": DELIVERIES - 1, "consumeMessageOrderly": group == LINE}
            answer = self.remoting.call(UPDATE_GROUP, {}, body)
            assert answer.code == 0, answer.remark

    def _open(self, directory: Path) -> None:
        self.directory = directory
        options = {"commit_log_file_size": 1 << 20, "index_slots": 1_000, "index_entries": 4_000}
        self.mq = self.running.enter_context(ferromq.embedded(directory, clock=self.clock, **options))
        self.grpc = self.running.enter_context(GrpcPeer(self.mq.endpoint))
        self.remoting = self.running.enter_context(Peer(self.mq.remoting))

    @rule()
    def restart(self) -> None:
        """Stop the broker and start it again: clients notice nothing."""
        self.running.close()
        self._open(self.directory)

    @rule()
    def kill(self) -> None:
        """Go on in the directory as a killed process leaves it."""
        self._settle()
        self.opened += 1
        left = self.base / str(self.opened)
        left.mkdir()
        # The log last: what is derived may be behind it, as at any moment, and never ahead.
        for part in sorted(self.directory.iterdir(), key=lambda part: part.name == "commitlog"):
            copied = subprocess.run(
                ["cp", "-a", "--sparse=always", part, left],
                check=False,
                capture_output=True,
                text=True,
                env={**os.environ, "LC_ALL": "C"},
            )
            # The broker runs: what it replaces meanwhile has another name by then.
            gone = [line for line in copied.stderr.splitlines() if "No such file or directory" in line]
            assert copied.returncode == 0 or gone == copied.stderr.splitlines(), copied.stderr
        self.running.close()
        shutil.rmtree(self.directory)
        self._open(left)
        self.was_killed = True
        # Every lease expires, so that there is one outcome.
        self._advance(HOUR)
        for queue in self.queues.values():
            queue.crash(self.clock.now_ms())
        # Of old handles some are known and some are not.
        self.held = {topic: [] for topic in KINDS}

    def teardown(self) -> None:
        """Everything sent comes to its end: consumed, dead, rolled back."""
        try:
            if hasattr(self, "mq"):
                self._end_halves()
                self._advance(4 * 24 * HOUR)
                for topic in KINDS:
                    self._drain(topic)
        finally:
            self.running.close()
            shutil.rmtree(self.base, ignore_errors=True)

    # --- sending

    @rule(over_remoting=st.booleans())
    def send(self, *, over_remoting: bool) -> None:
        """Send a message without a delay."""
        body = self._body()
        if over_remoting:
            fields = {"a": "p", "b": PLAIN, "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": str(self.clock.now_ms())}
            answer = self.remoting.call(SEND, {**fields, "h": "0", "i": "", "j": "0"}, body.encode())
            assert answer.code == 0, answer.remark
        else:
            self.grpc.send(PLAIN, body, message_type=pb.MessageType.NORMAL)
        self._stored(PLAIN, Life(body))

    @rule(count=st.integers(1, 4))
    def send_in_order(self, count: int) -> None:
        """Send messages of one message group."""
        for _ in range(count):
            body = self._body()
            self.grpc.send(ROWS, body, message_type=pb.MessageType.FIFO, message_group="g")
            self._stored(ROWS, Life(body))

    @rule(seconds=st.integers(1, 200))
    def send_later(self, seconds: int) -> None:
        """Send a message with a time of delivery."""
        body, due = self._body(), self.clock.now_ms() + seconds * SECOND
        entry = self.grpc.send(TIMED, body, message_type=pb.MessageType.DELAY, delivery_timestamp=timestamp(due))
        assert entry.recall_handle
        self.recalls[body] = entry.recall_handle
        self.queues[TIMED].lives[body] = Life(body, State.WAITING, due)

    @precondition(lambda self: self.recalls)
    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        """Recall a delayed message, at least a minute before its delivery time."""
        body = data.draw(st.sampled_from(sorted(self.recalls)))
        life = self.queues[TIMED].lives[body]
        if life.state is State.WAITING and life.due_ms > self.clock.now_ms() + 60 * SECOND:
            assert self.grpc.recall(TIMED, self.recalls.pop(body)) == pb.Code.OK
            life.state = State.DONE

    @rule()
    def prepare(self) -> None:
        """Send a half message."""
        body = self._body()
        entry = self.grpc.send(DEALS, body, message_type=pb.MessageType.TRANSACTION)
        self.halves[body] = entry
        self.queues[DEALS].lives[body] = Life(body, State.OPEN)

    @precondition(lambda self: self.halves)
    @rule(data=st.data(), commit=st.booleans(), twice=st.booleans())
    def decide(self, data: st.DataObject, *, commit: bool, twice: bool) -> None:
        """End a transaction, perhaps with the answer lost and asked again."""
        body = data.draw(st.sampled_from(sorted(self.halves)))
        self._decide(body, commit=commit)
        if twice:
            self.grpc.end(DEALS, self.halves[body], commit=commit)
        del self.halves[body]

    # --- receiving

    @rule(topic=HANDED_OUT, count=st.integers(1, 6), invisible=st.sampled_from([1, 10, 60]))
    def receive(self, topic: str, count: int, invisible: int) -> None:
        """Lease messages: all ready ones, in their order, and no others."""
        self._settle()
        self._receive(topic, count, invisible)

    @rule(topic=HANDED_OUT, data=st.data())
    def acknowledge(self, topic: str, data: st.DataObject) -> None:
        """Acknowledge a message that was received once; late acknowledgements are refused."""
        message = self._pick(topic, data)
        if message is None:
            return
        queue = self.queues[topic]
        life = queue.lives[message.body]
        code = self.grpc.ack(group_of(topic), topic, message)
        if life.handle == message.handle and life.state is State.LEASED and not life.may_return:
            has_ended = queue.has_ended(life, self.clock.now_ms())
            assert code == (pb.Code.INVALID_RECEIPT_HANDLE if has_ended else pb.Code.OK)
        if code == pb.Code.OK:
            if not life.may_return:
                assert life.handle == message.handle, "an old receipt handle ended a lease"
            life.state = State.DONE

    @rule(topic=HANDED_OUT, data=st.data(), seconds=st.sampled_from([1, 5, 120]))
    def change(self, topic: str, data: st.DataObject, seconds: int) -> None:
        """Let a lease end at another time."""
        message = self._pick(topic, data)
        if message is None:
            return
        queue = self.queues[topic]
        life = queue.lives[message.body]
        is_held = life.handle == message.handle and life.state is State.LEASED and not life.may_return
        has_ended = queue.has_ended(life, self.clock.now_ms())
        code, handle = self.grpc.change(group_of(topic), topic, message, seconds)
        if is_held:
            assert code == (pb.Code.INVALID_RECEIPT_HANDLE if has_ended else pb.Code.OK)
        if code != pb.Code.OK:
            return
        life.handle, life.lease_end_ms = handle, self.clock.now_ms() + seconds * SECOND
        self.held[topic].append(dataclasses.replace(message, handle=handle))

    @rule(topic=HANDED_OUT, data=st.data())
    def give_up(self, topic: str, data: st.DataObject) -> None:
        """Send a message to the dead letters."""
        message = self._pick(topic, data)
        if message is None:
            return
        life = self.queues[topic].lives[message.body]
        code = self.grpc.forward(group_of(topic), topic, message, max_attempts=DELIVERIES)
        if code == pb.Code.OK:
            life.state = State.DEAD

    @rule(seconds=st.sampled_from([0.5, 1, 7, 30, 90]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self._advance(int(seconds * SECOND))

    @invariant()
    def nothing_is_read_past_the_unacknowledged(self) -> None:
        """Keep the offset a Java broker would read below every message that is not done with."""
        for topic, queue in self.queues.items():
            for message in self.held[topic]:
                life = queue.lives[message.body]
                if life.state is State.LEASED and life.handle == message.handle and not life.may_return:
                    committed = self.mq.store.committed_offset(group_of(topic), topic, message.queue_id)
                    # Killed at once, it may not know the group, which then begins anew.
                    assert (self.was_killed and committed is None) or committed <= message.queue_offset

    # --- how

    def _receive(self, topic: str, count: int, invisible: float) -> list[Received]:
        queue, now = self.queues[topic], self.clock.now_ms()
        ready, doubtful = queue.ready(now), queue.may_come(now)
        received = self.grpc.receive(group_of(topic), topic, count, invisible=invisible)
        assert len(received) <= count
        assert received or not ready, f"nothing of {[life.body for life in ready]}"
        allowed = {life.body for life in ready} | {life.body for life in doubtful}
        for message in received:
            life = queue.lives[message.body]
            assert message.body in allowed, f"{life} at {now}"
            low, high = life.attempts
            assert low + 1 <= message.attempt <= high + 1, f"attempt {message.attempt} of {life}"
            queue.receive(life, message.attempt, message.handle, now + int(invisible * SECOND))
        if queue.is_ordered:
            numbers = [int(message.body) for message in received]
            assert numbers == sorted(numbers)
            certain = [life.body for life in ready if life not in doubtful]
            assert not numbers or not certain or numbers[0] <= int(certain[0])
        self.held[topic] += received
        return received

    def _drain(self, topic: str) -> None:
        """Receive and acknowledge until nothing is left, then compare with the model."""
        self._settle()
        group, queue = group_of(topic), self.queues[topic]
        while received := self._receive(topic, 32, 600):
            for message in received:
                assert self.grpc.ack(group, topic, message) == pb.Code.OK
                queue.lives[message.body].state = State.DONE
        now = self.clock.now_ms()
        dead = {life.body for life in queue.dying(now)} | {
            life.body for life in queue.lives.values() if life.state is State.DEAD
        }
        may_be_dead = {
            life.body for life in queue.lives.values() if life.may_be_dead or life.attempts[1] >= DELIVERIES
        } | dead
        found = set(self._dead(group))
        known = {life.body for life in queue.lives.values()}
        assert dead <= found, f"not among the dead letters: {dead - found}"
        assert found & known <= may_be_dead, f"dead without a reason: {(found & known) - may_be_dead}"
        left = [life for life in queue.lives.values() if life.state not in {State.DONE, State.DEAD}]
        lost = [life for life in left if life.body not in found]
        assert not lost, f"lost: {lost}"

    def _dead(self, group: str) -> list[str]:
        dispatched(self.mq)
        topic, store = f"%DLQ%{group}", self.mq.store
        found = []
        for queue_id in store.queues().get(topic, []):
            offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            while offset < end:
                _, messages, offset = store.get(topic, queue_id, offset)
                found += [message.body.decode() for message in messages]
        return found

    def _decide(self, body: str, *, commit: bool) -> None:
        assert self.grpc.end(DEALS, self.halves[body], commit=commit) == pb.Code.OK
        life = self.queues[DEALS].lives[body]
        if commit:
            self._stored(DEALS, life)
            life.state = State.READY
        else:
            life.state = State.DONE

    def _end_halves(self) -> None:
        for body in self.halves:
            self._decide(body, commit=True)
        self.halves.clear()

    def _advance(self, ms: int) -> None:
        self._settle()
        self.clock.advance(milliseconds=ms)
        queue, now = self.queues[TIMED], self.clock.now_ms()
        waiting = [life for life in queue.lives.values() if life.state is State.WAITING]
        queue.settle(now)
        self.stored[TIMED] += sum(life.state is State.READY for life in waiting)
        self._settle()

    def _settle(self) -> None:
        """Wait until what was stored, and what is due, can be read: readers are a moment behind."""
        store, pause = self.mq.store, threading.Event()
        for topic, wanted in self.stored.items():
            for _ in range(int(PATIENCE / 0.002)):
                found = sum(store.max_offset(topic, queue_id) for queue_id in store.queues().get(topic, []))
                if found >= wanted:
                    break
                pause.wait(0.002)
            assert found == wanted or (self.was_killed and found > wanted), f"{found} of {wanted} in {topic}"
            self.stored[topic] = found

    def _stored(self, topic: str, life: Life) -> None:
        self.queues[topic].lives[life.body] = life
        self.stored[topic] += 1

    def _pick(self, topic: str, data: st.DataObject) -> Received | None:
        held = self.held[topic]
        return data.draw(st.sampled_from(held)) if held else None

    def _body(self) -> str:
        self.sent += 1
        return f"{self.sent:06d}"


@pytest.mark.timeout(600)
def test_the_life_of_messages_is_as_promised() -> None:
    """Random lives: none lost, none early, none out of order, none twice without a cause, the dead explained."""
    suppressed = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        DeliveryLife,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize="FERROMQ_LIFE_CASES" not in os.environ,
            database=None,
            suppress_health_check=suppressed,
            print_blob=True,
        ),
    )
