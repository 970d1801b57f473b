"""The faults of `ferromq.testing`: each does to the broker of a test what its name says, and ends with it."""

import itertools
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from remoting_peer import Peer

import ferromq
from ferromq.testing import Broker, Faults, VirtualClock
from ferromq.testing.running import RunningBehindProxies
from ferromq.testing.waiting import until

SEND, ROUTE, GET_CONFIG = 310, 105, 26
PATIENCE = 10.0
OFFICIAL = """
import sys
from rocketmq import ClientConfiguration, Credentials, Message, Producer

producer = Producer(ClientConfiguration(sys.argv[1], Credentials(), "", 10), ("orders",))
producer.startup()
message = Message()
message.topic, message.body = "orders", b"number 1"
producer.send(message)
producer.shutdown()
"""


def bodies(broker: Broker, topic: str = "orders") -> list[bytes]:
    """Return the bodies of a topic."""
    return [message.body for message in broker.messages(topic)]


def test_clients_meet_the_broker_through_the_proxies_alone(broker: Broker) -> None:
    """By its routes, too: both protocols go on by the addresses that the broker advertises."""
    broker.send("orders", b"one")
    with broker.consumer("billing", "orders") as consumer:
        assert [message.endpoint for message in consumer.receive(1)] == [broker.endpoint]
    with Peer(broker.namesrv) as peer:
        route = peer.call(ROUTE, {"topic": "orders", "acceptStandardJsonOnly": "true"}).json()
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": broker.remoting}
    assert len({broker.endpoint, broker.remoting, broker.namesrv}) == 3


def test_refused_connections_come_back_with_resume(broker: Broker, faults: Faults) -> None:
    """Open ones are reset."""
    producer = broker.producer(attempts=1)
    producer.send("orders", b"one")
    faults.refuse()
    with pytest.raises(ferromq.ConnectionFailed):
        producer.send("orders", b"two")
    with pytest.raises(ConnectionRefusedError):
        Peer(broker.remoting)
    faults.resume()
    broker.send("orders", b"three")
    assert bodies(broker) == [b"one", b"three"]


def test_dropped_connections_are_opened_again(broker: Broker, faults: Faults) -> None:
    """A client repeats what it sends, and a consumer goes on."""
    broker.send("orders", b"one")
    consumer = broker.consumer("billing", "orders")
    assert len(consumer.receive(1)) == 1
    with Peer(broker.remoting) as peer:
        peer.call(GET_CONFIG)
        faults.drop()
        assert peer.closed.wait(PATIENCE)
    with Peer(broker.remoting) as peer:
        peer.call(GET_CONFIG)
    broker.send("orders", b"two")
    assert [message.body for message in consumer.receive(1)] == [b"two"]


def test_a_broker_that_hangs_answers_after_resume(broker: Broker, faults: Faults) -> None:
    """A request that was held is executed then."""
    producer = broker.producer(timeout=0.2, attempts=1)
    producer.send("orders", b"one", timeout=PATIENCE)
    faults.hang()
    with pytest.raises(ferromq.RequestTimeout):
        producer.send("orders", b"two")
    faults.resume()
    broker.wait_for_messages("orders", 2)
    assert bodies(broker) == [b"one", b"two"]


def test_delayed_answers_are_late(broker: Broker, faults: Faults) -> None:
    """By at least the given time, and only until resume."""
    broker.send("orders", b"one")
    faults.delay(0.2)
    begin = time.monotonic()
    broker.send("orders", b"two")
    assert time.monotonic() - begin >= 0.2
    faults.delay(3600)
    faults.resume()
    broker.send("orders", b"three")


@pytest.mark.parametrize("is_connected", [False, True])
def test_a_lost_answer_makes_the_client_send_again(broker: Broker, faults: Faults, *, is_connected: bool) -> None:
    """Once: the message is stored twice, with one id, and no other one is."""
    producer = broker.producer()
    if is_connected:
        producer.send("other", b"first")
    faults.lose_answer(containing=b"number 1")
    for number in range(3):
        producer.send("orders", b"number %d" % number)
    assert bodies(broker) == [b"number 0", b"number 1", b"number 1", b"number 2"]
    assert len({message.message_id for message in broker.messages("orders")}) == 3


def test_a_lost_answer_makes_the_official_client_send_again(broker: Broker, faults: Faults) -> None:
    """Its connection carries more than requests and answers; the message is stored twice all the same."""
    pytest.importorskip("rocketmq")
    faults.lose_answer(containing=b"number 1")
    subprocess.run([sys.executable, "-c", OFFICIAL, broker.endpoint], check=True, capture_output=True, timeout=50)
    assert bodies(broker) == [b"number 1", b"number 1"]
    assert len({message.message_id for message in broker.messages("orders")}) == 1


def test_an_answer_over_remoting_is_lost_too(broker: Broker, faults: Faults) -> None:
    """The broker has executed the request."""
    fields = {"a": "makers", "b": "orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
    faults.lose_answer(containing=b"paid")
    with Peer(broker.remoting) as peer, pytest.raises(ConnectionError):
        peer.call(SEND, {**fields, "i": "", "j": "0", "k": "false", "m": "false"}, b"paid")
    assert bodies(broker) == [b"paid"]


def test_the_seed_repeats_the_decisions(tmp_path: Path) -> None:
    """Another one makes others; the test's own draws repeat, too."""

    def lost(seed: int, turn: int) -> tuple[list[bool], float]:
        directory = tmp_path / f"{seed}-{turn}"
        with closing(RunningBehindProxies({}, directory)) as running:
            faults = Faults(running, seed)
            with Broker(running, faults=faults) as broker:
                outcomes = []
                faults.flaky(lose=0.5)
                for _ in range(12):
                    with Peer(broker.remoting) as peer:
                        try:
                            peer.call(GET_CONFIG)
                            outcomes.append(False)
                        except ConnectionError:
                            outcomes.append(True)
                faults.end()
                return outcomes, faults.random.random()

    first = lost(1, 1)
    assert first == lost(1, 2)
    assert first != lost(2, 1)
    assert 0 < sum(first[0]) < 12


def test_wrong_shares_and_times_are_refused(faults: Faults) -> None:
    """With the value."""
    with pytest.raises(ValueError, match=r"lose is 1.5; a share from 0 .* to 1"):
        faults.flaky(lose=1.5)
    with pytest.raises(ValueError, match="negative"):
        faults.flaky(delay=-1)
    with pytest.raises(ValueError, match="negative"):
        faults.delay(-1)


def test_flaky_answers_lose_no_message(broker: Broker, faults: Faults) -> None:
    """Whatever is lost, an acknowledged send is stored, perhaps twice."""
    faults.flaky(lose=0.1, delay=0.005)
    sent = [broker.send("orders", b"%d" % number).message_id for number in range(50)]
    faults.resume()
    stored = [message.message_id for message in broker.messages("orders")]
    assert list(dict.fromkeys(stored)) == sent


def test_a_duplicate_has_the_same_id_at_the_next_offset(broker: Broker, faults: Faults) -> None:
    """With all that the first one has; a consumer receives both."""
    broker.send("orders", b"one", tag="new", keys="o-1", properties={"a": "1"}, message_group="anna")
    (first,) = broker.messages("orders")
    second = faults.duplicate(first)
    assert (second.message_id, second.queue_id, second.queue_offset) == (first.message_id, first.queue_id, 1)
    for message in broker.messages("orders"):
        assert (message.body, message.tag, message.keys, message.properties, message.message_group) == (
            b"one",
            "new",
            ("o-1",),
            {"a": "1"},
            "anna",
        )
    consumer = broker.consumer("billing", "orders")
    received = consumer.receive(1, wait=PATIENCE) + consumer.receive(1, wait=PATIENCE)
    assert [message.message_id for message in received] == [first.message_id] * 2
    broker.admin().delete_topic("orders")
    with pytest.raises(LookupError, match=r"ferromq_broker\.messages"):
        faults.duplicate(first)


def test_a_crash_loses_nothing_that_was_answered(broker: Broker, faults: Faults, clock: VirtualClock) -> None:
    """The broker starts on the same ports and the same store, as after a kill; time may pass meanwhile."""
    addresses = broker.endpoint, broker.remoting, broker.namesrv
    consumer = broker.consumer("billing", "orders")
    producer = broker.producer()
    for number in range(100):
        producer.send("orders", b"%d" % number)
    consumer.ack(consumer.receive(10))
    producer.send("reminders", b"later", delay=3600)
    faults.crash()
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            Peer(address)
    clock.advance(hours=1)
    faults.restart()
    assert (broker.endpoint, broker.remoting, broker.namesrv) == addresses
    assert broker.embedded.store.recovery()["is_clean"] is False
    assert bodies(broker) == [b"%d" % number for number in range(100)]
    assert broker.wait_for_messages("reminders")[0].body == b"later"
    producer.send("orders", b"after")
    assert bodies(broker)[-1] == b"after"


def test_a_crash_in_the_middle_of_sends_loses_nothing_that_was_answered(broker: Broker, faults: Faults) -> None:
    """The copy of the store is taken while others write."""
    answered: list[bytes] = []
    stop = threading.Event()

    def send() -> None:
        with ferromq.Producer(broker.endpoint, timeout=20) as producer:
            for number in itertools.count():
                if stop.is_set():
                    return
                producer.send("orders", b"%d" % number)
                answered.append(b"%d" % number)

    sender = threading.Thread(target=send)
    sender.start()
    for _ in range(3):
        broker.wait_for_messages("orders", len(answered) + 20, timeout=20)
        faults.crash()
        faults.restart()
    stop.set()
    sender.join()
    assert set(answered) <= set(bodies(broker))
    assert list(dict.fromkeys(bodies(broker))) == answered


def test_a_stopped_broker_has_a_clean_store(broker: Broker, faults: Faults) -> None:
    """So has one that is restarted while it runs."""
    broker.send("orders", b"one")
    faults.stop()
    faults.restart()
    assert broker.embedded.store.recovery()["is_clean"] is True
    faults.restart()
    assert broker.embedded.store.recovery()["is_clean"] is True
    broker.send("orders", b"two")
    assert bodies(broker) == [b"one", b"two"]


def test_a_broker_that_is_down_says_how_it_comes_back(broker: Broker, faults: Faults) -> None:
    """Reads of its store and faults of its connections."""
    faults.stop()
    broker.producer().close()  # a client may be created meanwhile
    for call in (lambda: broker.messages("orders"), lambda: broker.embedded, faults.refuse, faults.stop, faults.crash):
        with pytest.raises(RuntimeError, match=r"the broker is down; ferromq_faults\.restart"):
            call()


def test_a_full_disk_refuses_sends_and_serves_consumers(broker: Broker, faults: Faults) -> None:
    """Over a restart, too, until there is space again; the option that the test gave is restored."""
    broker.embedded.configure(retention_disk_usage=(80, 90, 99))
    faults.free_disk()
    broker.send("orders", b"one")
    producer = broker.producer(attempts=1)
    faults.fill_disk()
    faults.fill_disk()
    with pytest.raises(ferromq.StoreFull):
        producer.send("orders", b"two")
    assert [message.body for message in broker.consumer("billing", "orders").receive(1)] == [b"one"]
    faults.restart()
    with pytest.raises(ferromq.StoreFull):
        broker.producer(attempts=1).send("orders", b"three")
    faults.free_disk()
    broker.send("orders", b"four")
    assert bodies(broker) == [b"one", b"four"]
    assert broker.embedded.store.options()["retention_disk_usage"] == (80, 90, 99)


def test_a_disk_that_cannot_be_full_is_an_error(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that is nearly empty the broker's limit would not be reached."""
    empty = SimpleNamespace(f_frsize=4096, f_blocks=1_000_000, f_bfree=999_000, f_bavail=999_000)
    monkeypatch.setattr("os.statvfs", lambda _path: empty)
    with pytest.raises(RuntimeError, match=r"less than 1 %.*--basetemp"):
        faults.fill_disk()


@pytest.mark.parametrize("ends", ["crash", "restart"])
def test_a_failed_flush_is_an_error_of_the_send_that_waited_for_it(broker: Broker, faults: Faults, ends: str) -> None:
    """Consumers are given what was promised, and no more; later sends are refused until the next start."""
    broker.embedded.configure(flush="group")
    consumer = broker.consumer("billing", "orders")
    broker.send("orders", b"one")
    faults.fail_flush()
    with pytest.raises(ferromq.NotDurable, match="a test made it fail"):
        broker.send("orders", b"two")
    with pytest.raises(ferromq.ServerError, match="stopped writing after a failed flush"):
        broker.producer(attempts=1).send("orders", b"three")
    assert [message.body for message in consumer.receive(8, wait=0.1)] == [b"one"]
    if ends == "crash":
        faults.crash()
    faults.restart()
    broker.send("orders", b"four")
    # The process was killed, and the machine was not: its files have what was written.
    assert bodies(broker) == [b"one", b"two", b"four"]


def test_a_flush_that_fails_in_the_background_stops_later_sends(
    broker: Broker, faults: Faults, clock: VirtualClock
) -> None:
    """Under `interval` a send is answered once it is written: its receipt promises nothing of the disk."""
    faults.fail_flush()
    broker.send("orders", b"one")
    clock.advance(seconds=1)
    producer = broker.producer(attempts=1)
    sent = [b"one"]

    def is_refused() -> bool:
        try:
            producer.send("orders", b"more")
        except (ferromq.ServerError, ferromq.NotDurable):
            return True
        sent.append(b"more")
        return False

    assert until(is_refused, PATIENCE)
    with pytest.raises(ferromq.ServerError, match="stopped writing after a failed flush"):
        producer.send("orders", b"last")
    consumer = broker.consumer("billing", "orders")
    assert [message.body for message in consumer.receive(1)] == [b"one"]
    faults.crash()
    faults.restart()
    assert bodies(broker)[: len(sent)] == sent


def test_a_failed_flush_outlives_no_restart(broker: Broker, faults: Faults) -> None:
    """Nor does it hold up the end of a test."""
    faults.fail_flush()
    faults.restart()
    broker.embedded.configure(flush="group")
    broker.send("orders", b"one")
    faults.fail_flush()
    with pytest.raises(ferromq.NotDurable):
        broker.send("orders", b"two")


def test_options_of_the_proxies_are_not_the_tests(tmp_path: Path) -> None:
    """The broker listens where the proxies forward to."""
    with pytest.raises(ferromq.ConfigError, match="grpc_listen is no option of a broker with faults"):
        RunningBehindProxies({"grpc_listen": "127.0.0.1:0"}, tmp_path / "broker")


def test_nothing_is_left_of_a_broker_with_faults(tmp_path: Path, no_thread_left: None) -> None:
    """Neither its directory nor a thread, also if it is down or never started."""
    directory = tmp_path / "broker"
    running = RunningBehindProxies({}, directory)
    assert (directory / "store").is_dir()
    running.crash()
    running.close()
    running.close()
    assert not directory.exists()
    with pytest.raises(ferromq.ConfigError):
        RunningBehindProxies({"flsh": "group"}, directory)
    assert not directory.exists()
