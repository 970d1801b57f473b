"""A name server and a broker inside the calling process."""

import contextlib
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from machine import in_load
from ports import kept_port
from tls_files import SHOWN, TRUST

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.embedding import SMALL_FILES

ROUTE, SUCCESS = 105, 0

FORK = """
import os, sys, ferromq
temporary = ferromq.embedded()
mq = ferromq.embedded(sys.argv[1])
mq.store.append("t", 0, b"before")
child = os.fork()
if child == 0:
    try:
        mq.store
    except ferromq.ForkedProcess as error:
        print("child:", error, flush=True)
    mq.close()
    temporary.close()
    sys.exit(0)  # runs what is registered for the end of a process, as a child of a web server does
_, status = os.waitpid(child, 0)
assert status == 0, status
assert os.path.isdir(temporary.broker.config.store)
mq.store.append("t", 0, b"after")
try:
    ferromq.embedded(sys.argv[1])
except ferromq.StoreLocked:
    print("parent: still locked", flush=True)
mq.close()
with ferromq.embedded(sys.argv[1]) as mq:
    print("parent:", [message.body.decode() for message in mq.store.get("t", 0, 0)[1]], flush=True)
"""

FORGOTTEN = """
import ferromq
mq = ferromq.embedded()
print(mq.broker.config.store, flush=True)
"""


def run(code: str, *arguments: str) -> list[str]:
    """Run *code* in a process of its own and return its lines."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()


def files_and_threads() -> tuple[int, int]:
    """Return how many files this process has open, and how many threads."""
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))


def test_it_needs_no_directory_and_leaves_none() -> None:
    """A temporary one is removed at close; closing twice does no harm."""
    with ferromq.embedded() as mq:
        directory = Path(mq.broker.config.store)
        mq.store.append("orders", 0, b"hello")
        assert directory.is_dir()
    assert not directory.exists()
    mq.close()


def test_a_program_that_forgets_to_close_leaves_no_directory() -> None:
    """It is removed when the process ends."""
    (directory,) = run(FORGOTTEN)
    assert not Path(directory).exists()


def test_a_directory_is_kept_and_opened_again(tmp_path: Path) -> None:
    """The next run finds the stored messages, in small files."""
    for count in (0, 1, 2):
        with ferromq.embedded(tmp_path) as mq:
            assert len(mq.store.get("orders", 0, 0)[1]) == count
            mq.store.append("orders", 0, b"hello")
    (log,) = (tmp_path / "commitlog").iterdir()
    assert log.stat().st_size == 64 << 20


def test_a_directory_that_this_process_has_open_is_named_so(tmp_path: Path) -> None:
    """However it is written; the error is none of another broker."""
    with ferromq.embedded(tmp_path), pytest.raises(ferromq.StoreLocked, match="an embedded broker of this process"):
        ferromq.embedded(tmp_path / ".." / tmp_path.name)
    ferromq.embedded(tmp_path).close()
    options = {"listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "fast_listen": "off", **SMALL_FILES}
    other = BrokerController(BrokerConfig.from_options({"store": tmp_path, **options}))
    with contextlib.closing(other), pytest.raises(ferromq.StoreLocked, match="another broker"):
        ferromq.embedded(tmp_path)


def test_an_option_of_the_start_cannot_be_changed_later() -> None:
    """An unknown one has no hint at the options of a store alone."""
    with ferromq.embedded() as mq:
        options: Any = {"default_queues": 4}
        with pytest.raises(ferromq.ConfigError, match="default_queues cannot be changed while the broker runs"):
            mq.configure(**options)


def test_the_directory_is_no_option(tmp_path: Path) -> None:
    """It is the first argument, and not named twice."""
    with pytest.raises(ferromq.ConfigError, match=r"store is 'elsewhere'.*first argument"):
        ferromq.embedded(tmp_path, store="elsewhere")


def test_many_run_side_by_side() -> None:
    """Each has ports of its own, and its own messages."""
    with ferromq.embedded() as one, ferromq.embedded() as two:
        assert len({one.endpoint, one.remoting, one.namesrv, two.endpoint, two.remoting, two.namesrv}) == 6
        one.store.append("orders", 0, b"hello")
        assert two.store.queues() == {}


@pytest.mark.alone
def test_it_starts_and_stops_fast() -> None:
    """Under 300 ms to start, under a second to stop, in the middle of many rounds."""
    starts, stops = [], []
    for _ in range(5):
        begin = time.monotonic()
        mq = ferromq.embedded()
        starts.append(time.monotonic() - begin)
        begin = time.monotonic()
        mq.close()
        stops.append(time.monotonic() - begin)
    assert sorted(starts)[2] < in_load(0.3)
    assert sorted(stops)[2] < in_load(1)


def test_a_broker_stays_registered_however_far_the_clock_moves(caplog: pytest.LogCaptureFixture) -> None:
    """It renews its lease before the name server looks for ended ones; a manual clock stands still otherwise."""
    with ferromq.embedded(clock=ferromq.Clock.manual(1_700_000_000_000)) as mq:
        client = RemotingClient()
        for _ in range(3):
            mq.clock.advance(days=3)
            assert client.call(mq.namesrv, ROUTE, {"topic": "SELF_TEST_TOPIC"})[0] == SUCCESS
        assert not [record for record in caplog.records if "broker expired" in record.message]
        assert mq.clock.now_ms() == 1_700_000_000_000 + 9 * 86_400_000
        client.close()
        with pytest.raises(ValueError, match="cannot go back"):
            mq.clock.advance(days=-1)


def test_a_forked_child_leaves_its_parents_broker_alone(tmp_path: Path) -> None:
    """Using it there is a clear error, ending the child neither unlocks nor removes anything."""
    first, second, third = run(FORK, str(tmp_path))
    assert first.startswith("child: this embedded broker belongs to process")
    assert "after the fork" in first
    assert second == "parent: still locked"
    assert third == "parent: ['before', 'after']"


def test_a_wrong_option_is_named() -> None:
    """Before anything is started, with the nearest name."""
    with pytest.raises(ferromq.ConfigError, match="did you mean auto_create_topics"):
        ferromq.embedded(auto_create_topic=False)


def test_a_failed_start_leaves_nothing_running(tmp_path: Path) -> None:
    """A broker whose port was taken does not lock the store."""
    with ferromq.embedded() as mq:
        with pytest.raises(OSError, match=mq.endpoint.rpartition(":")[2]):
            ferromq.embedded(tmp_path, grpc_listen=mq.endpoint)
        with ferromq.embedded(tmp_path):
            pass


def test_the_process_has_no_threads_left_of_it(
    tmp_path: Path, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """Opening and closing many times leaks neither threads nor files, and leaves nothing to the garbage collector."""
    with ferromq.embedded(tmp_path):
        pass
    gc.collect()
    gc.disable()
    try:
        before = files_and_threads()
        for _ in range(5):
            with ferromq.embedded(tmp_path):
                pass
        # Threads that close does not join end a moment later.
        assert eventually(lambda: all(now <= then + 2 for now, then in zip(files_and_threads(), before, strict=True)))
    finally:
        gc.enable()


def test_a_program_that_never_closes_ends_without_a_word(tmp_path: Path) -> None:
    """The store is left clean, and nothing is printed."""
    code = f"import ferromq\nmq = ferromq.embedded({str(tmp_path)!r})\nmq.producer().send('orders', b'hello')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert not (tmp_path / "abort").exists()


Opens = Callable[[ferromq.Embedded, ferromq.Producer[bytes], int], bool]


@pytest.fixture
def opens(eventually: Callable[[Callable[[], bool]], bool]) -> Opens:
    """Return a function that says whether a producer's sends open so many gRPC and framed connections."""

    def check(mq: ferromq.Embedded, producer: ferromq.Producer[bytes], count: int) -> bool:
        def connections() -> int:
            return mq.broker.server.stats()["connections"]

        assert eventually(lambda: connections() == 0)  # the broker sees that one is closed a moment later
        with producer:
            for _ in range(3):
                producer.send("orders", b"x")
            return eventually(lambda: connections() >= count) and connections() == count

    return check


def test_clients_of_an_embedded_broker_send_without_a_connection_for_frames(opens: Opens) -> None:
    """The one that they open is gRPC's, for routes and settings; a client that connects by itself has both."""
    with ferromq.embedded() as mq, ferromq.connect(mq.endpoint) as other:
        assert opens(mq, mq.producer(), 1)
        assert opens(mq, other.producer(), 2)


@pytest.mark.parametrize(("flush", "has_threads"), [("interval", False), ("group", True)])
def test_many_messages_are_stored_in_the_callers_thread_unless_it_waits_for_the_disk(
    flush: Literal["interval", "group"], *, has_threads: bool
) -> None:
    """On others they would only take turns with it; several that wait share a flush."""
    seen: set[str] = set()

    def note(_: int) -> None:
        seen.update(thread.name for thread in threading.enumerate() if thread.name.startswith("ferromq-send"))

    bodies = [b"%d" % number for number in range(2_000)]
    with ferromq.embedded(flush=flush) as mq:
        with mq.producer() as producer:
            sent = producer.send_all("orders", bodies, on_progress=note)
            generated = producer.send_all("orders", iter(bodies), on_progress=note)
        assert bool(seen) == has_threads
        for summary in (sent, generated):
            # A stored message is dispatched to its queue a moment later.
            while any(mq.store.max_offset("orders", each.queue_id) <= each.queue_offset for each in summary):
                time.sleep(0.001)
            kept = [mq.store.get("orders", each.queue_id, each.queue_offset)[1][0].body for each in summary]
            assert kept == bodies


def test_clients_of_an_embedded_broker_speak_the_tls_that_they_are_given(opens: Opens) -> None:
    """A program that tests its TLS must not be answered without it."""
    with ferromq.embedded(**SHOWN) as mq:  # type: ignore[arg-type]
        assert opens(mq, mq.producer(tls=TRUST), 2)


def test_clients_of_an_embedded_broker_go_where_it_is_advertised(opens: Opens) -> None:
    """As faults in tests need, for example, whose proxies have the advertised address."""
    with kept_port() as address:
        port = address.rpartition(":")[2]
        with ferromq.embedded(grpc_listen=address, grpc_advertise=f"localhost:{port}") as mq:
            assert opens(mq, mq.producer(), 2)
