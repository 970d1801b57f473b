"""A broker's own requests to a client that hangs or is gone: no other client waits for it."""

import time
from collections.abc import Callable, Iterator

import pytest
from dispatching import dispatched
from fault_proxy import FAULTS, Fault, FaultProxy
from machine import in_load
from remoting_peer import Peer

import ferromq
from ferromq._ferromq import Clock
from ferromq.broker.clients import client_calls

SEND, END_TRANSACTION, CHECK, MEMBERS_CHANGED, RUNNING_INFO = 310, 37, 39, 40, 307
SUCCESS, COMMIT = 0, 8
START = 1_700_000_000_000
CALL_SECONDS = 0.5
# On an idle machine; a call without a bound takes much longer.
SLACK = 1.5
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def mq(no_thread_left: None) -> Iterator[ferromq.Embedded]:
    """Run a broker whose time is moved by hand."""
    with ferromq.embedded(clock=Clock.manual(START)) as running:
        yield running


@pytest.fixture
def proxy(mq: ferromq.Embedded) -> Iterator[FaultProxy]:
    """Yield a proxy before its remoting listener."""
    with FaultProxy(mq.remoting) as proxy:
        yield proxy


def in_time(call: Callable[[], object]) -> None:
    """Fail if a call takes long."""
    begin = time.monotonic()
    call()
    assert time.monotonic() - begin < CALL_SECONDS + in_load(SLACK)


def prepare(peer: Peer) -> None:
    """Send a half message as Java's producer does."""
    given = {"TRAN_MSG": "true", "PGROUP": "payers", "UNIQ_KEY": "K1"}
    text = "".join(f"{name}\x01{value}\x02" for name, value in given.items())
    names = {
        "a": "payers",
        "b": "orders",
        "c": "TBW102",
        "d": "1",
        "e": "0",
        "f": "4",
        "h": "0",
        "j": "0",
        "k": "false",
    }
    assert peer.call(SEND, {**names, "g": str(START), "i": text, "m": "false"}, b"paid").code == SUCCESS


def stored(mq: ferromq.Embedded) -> list[bytes]:
    """Return what consumers of the topic can read."""
    return [m.body for queue in mq.store.queues().get("orders", []) for m in mq.store.get("orders", queue, 0, 9)[1]]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_another_producer_is_asked_for_the_outcome_of_a_transaction(
    mq: ferromq.Embedded, proxy: FaultProxy, eventually: Eventually, fault: Fault
) -> None:
    """In the next round, without waiting for the hanging one; the message is delivered once."""
    with Peer(proxy.address, client_id="lost@1") as lost, Peer(mq.remoting, client_id="well@1") as well:
        for peer in (lost, well):
            peer.heartbeat(produces=("payers",))
        prepare(lost)
        dispatched(mq)
        fault(proxy)
        for _ in range(2):  # they are asked in turns
            in_time(lambda: mq.clock.advance(seconds=31))
            in_time(lambda: well.heartbeat(produces=("payers",)))
            dispatched(mq)
        asked = well.asked(CHECK)
        fields = {"producerGroup": "payers", **asked.fields, "commitOrRollback": str(COMMIT)}
        assert well.call(END_TRANSACTION, {**fields, "fromTransactionCheck": "true"}).code == SUCCESS
        assert eventually(lambda: stored(mq) == [b"paid"])
        proxy.resume()
        mq.clock.advance(seconds=31)
        assert stored(mq) == [b"paid"]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_members_of_a_group_are_notified_of_a_new_one(mq: ferromq.Embedded, proxy: FaultProxy, fault: Fault) -> None:
    """Though one of them hangs; it gets the notice later, if its connection is still open."""
    group = {"readers": {"orders": "*"}}
    with Peer(proxy.address, client_id="lost@1") as lost, Peer(mq.remoting, client_id="well@1") as well:
        for peer in (lost, well):
            peer.heartbeat(consumes=group)
        # Both members are notified.
        well.asked(MEMBERS_CHANGED)
        lost.asked(MEMBERS_CHANGED)
        while lost.has_been_asked(MEMBERS_CHANGED):
            lost.asked(MEMBERS_CHANGED)
        fault(proxy)
        with Peer(mq.remoting, client_id="new@1") as new:
            in_time(lambda: new.heartbeat(consumes=group))
            in_time(lambda: well.asked(MEMBERS_CHANGED))
            proxy.resume()
            if fault is FAULTS["hang"]:
                lost.asked(MEMBERS_CHANGED)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_question_to_a_client_ends_in_time(
    mq: ferromq.Embedded, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """With an error that names it; the broker answers others meanwhile, and asks it again once it is there."""
    group = {"readers": {"orders": "*"}}
    fields = {"consumerGroup": "readers", "clientId": "lost@1", "jstackEnable": "false"}
    with Peer(mq.remoting, client_id="tool@1") as tool:
        with Peer(proxy.address, client_id="lost@1") as lost:
            lost.heartbeat(consumes=group)
            fault(proxy)
            with monkeypatch.context() as patched:
                patched.setattr(client_calls, "CALL_SECONDS", CALL_SECONDS)
                in_time(lambda: refused(tool.call(RUNNING_INFO, fields).code))
            in_time(lambda: tool.heartbeat(consumes=group))
            proxy.resume()
        with Peer(proxy.address, client_id="lost@1") as back:
            back.replies[RUNNING_INFO] = lambda frame: frame.__class__(SUCCESS, body=b"{}")
            back.heartbeat(consumes=group)
            assert tool.call(RUNNING_INFO, fields).code == SUCCESS


def refused(code: int) -> None:
    """Fail if an answer is a success."""
    assert code != SUCCESS
