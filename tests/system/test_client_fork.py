"""Forks: a client made before one is a clear error in the child, and goes on in the parent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os, sys, threading
import ferromq

def in_child(use):
    child = os.fork()
    if child == 0:
        try:
            use()
        except ferromq.ForkedProcess as error:
            print("refused:", error, flush=True)
        EXIT
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status

with ferromq.embedded() as mq:
    producer, consumer, admin = mq.producer(), mq.consumer("g", "t"), mq.admin()
    producer.send("t", b"before")
    (message,) = consumer.receive(wait=10)
    in_child(lambda: producer.send("t", b"x"))
    in_child(lambda: producer.submit("t", b"x"))
    in_child(lambda: producer.send_all("t", [b"x"]))
    in_child(lambda: consumer.receive())
    in_child(lambda: next(iter(consumer)))
    in_child(lambda: message.ack())
    in_child(lambda: admin.topics())
    in_child(lambda: print("closed", *[thing.close() for thing in (producer, consumer, admin)], flush=True))
    message.ack()
    producer.send("t", b"after")
    assert [m.body for m in consumer.receive(wait=10)] == [b"after"]
    producer.close(); consumer.close(); admin.close()
print("parent fine", flush=True)
"""


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_a_forked_child_is_refused_and_never_hangs(leave: str) -> None:
    """Whatever the child calls and however it ends, it is quick and clear; the parent's clients go on."""
    run = subprocess.run(
        [sys.executable, "-c", CODE.replace("EXIT", leave)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("refused: this ") == 7
    assert run.stdout.count("closed") == 1
    assert "Create a new one after the fork" in run.stdout
    assert run.stdout.endswith("parent fine\n")


MAKE_ANEW = """
import os, ferromq
with ferromq.embedded() as mq, mq.producer() as parents:
    parents.send("other", b"gRPC is in use here")
    child = os.fork()
    if child == 0:
        with ferromq.Producer(mq.endpoint) as producer:
            producer.send("t", b"from the child")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    with mq.consumer("g", "t") as consumer:
        assert consumer.receive(wait=10)[0].body == b"from the child"
"""


def test_a_client_made_after_the_fork_works() -> None:
    """Also where the parent has clients of its own."""
    subprocess.run([sys.executable, "-c", MAKE_ANEW], timeout=60, check=True)


UNUSED = """
import asyncio, os, ferromq, ferromq.aio
with ferromq.embedded() as mq:
    unused, awaited = ferromq.Producer(mq.endpoint), ferromq.aio.Producer(mq.endpoint)
    connection = ferromq.connect(mq)
    with mq.producer() as used:
        used.send("other", b"gRPC is in use here")
        for number in range(2):
            child = os.fork()
            if child == 0:
                with unused:
                    unused.send("t", b"from a child")
                    unused.submit("t", b"from a child").result(10)
                asyncio.run(awaited.send("t", b"from a child"))
                connection.producer().send("t", b"from a child")  # over the network: the broker is the parent's
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
    unused.send("t", b"from the parent")
    bodies = []
    with mq.consumer("g", "t") as consumer:
        while len(bodies) < 9:
            messages = consumer.receive(wait=10)
            bodies += [message.body for message in messages]
            assert messages
            for message in messages:
                message.ack()
    assert bodies.count(b"from a child") == 8 and bodies.count(b"from the parent") == 1, bodies
    unused.close()
"""


def test_a_producer_that_was_never_used_begins_in_the_child() -> None:
    """Servers load the program, and fork then: each child has it for itself, and so has the parent."""
    subprocess.run([sys.executable, "-c", UNUSED], timeout=60, check=True)


GIVING_BACK = """
import os, sys, threading, time
import ferromq
from fault_proxy import FaultProxy
from ports import kept_port

COUNT = 64
with kept_port() as address, FaultProxy(address) as proxy:
    with ferromq.embedded(clock=ferromq.Clock.manual(), grpc_listen=address, grpc_advertise=proxy.address) as mq:
        with mq.producer() as producer:
            producer.send_all("t", [b"%d" % number for number in range(COUNT)])
        consumer = ferromq.Consumer(proxy.address, "g", "t", invisible_duration=600)
        messages = []
        while len(messages) < COUNT:
            messages += consumer.receive(wait=10)
        proxy.hang()
        call, under_way = consumer._client.channels.call, threading.Semaphore(0)

        def called(*arguments):
            under_way.release()
            return call(*arguments)

        consumer._client.channels.call = called
        giving = threading.Thread(target=consumer._leases.give_back, args=(messages, time.monotonic() + 60))
        giving.start()
        for _ in range(4):
            assert under_way.acquire(timeout=20)
        child = os.fork()
        if child == 0:
            try:
                consumer.receive()
            except ferromq.ForkedProcess as error:
                print("refused:", error, flush=True)
            consumer.close()
            EXIT
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        proxy.resume()
        giving.join(30)
        assert not giving.is_alive()
        consumer.close()
        again = []
        with mq.consumer("g", "t") as other:
            while len(again) < COUNT:
                some = other.receive(wait=20)
                assert some, len(again)
                again += some
        assert {message.delivery_attempt for message in again} == {1}
print("parent fine", flush=True)
"""

IN_USE = """
import os, sys, threading
import ferromq
from fault_proxy import FaultProxy
from ports import kept_port

with kept_port() as address, FaultProxy(address) as proxy:
    with ferromq.embedded(clock=ferromq.Clock.manual(), grpc_listen=address, grpc_advertise=proxy.address) as mq:
        with mq.producer() as producer:
            producer.send("t", b"x")
        consumer = ferromq.Consumer(proxy.address, "g", "t", invisible_duration=1)
        call, under_way = consumer._client.channels.call, threading.Event()

        def called(endpoint, method, *rest):
            if method == "ChangeInvisibleDuration":
                proxy.hang()
                under_way.set()
            return call(endpoint, method, *rest)

        consumer._client.channels.call = called
        for message in consumer:
            assert under_way.wait(20)
            child = os.fork()
            if child == 0:
                break
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
            proxy.resume()
            message.ack()
            break
        if child == 0:
            consumer.stop()
            consumer.close()
            print("left", flush=True)
            EXIT
        consumer.close()
print("parent fine", flush=True)
"""


def in_program(code: str, leave: str) -> str:
    """Run a program that uses the kit for talks between processes, and return what it and its child printed."""
    kit = str(Path(__file__).parents[1] / "faults")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([kit, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", code.replace("EXIT", leave)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_a_fork_while_messages_are_given_back(leave: str) -> None:
    """The child is refused and ends; the parent gives back all of them, without an attempt."""
    output = in_program(GIVING_BACK, leave)
    assert output.count("refused: this consumer") == 1
    assert output.endswith("parent fine\n")


@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
def test_a_fork_while_a_lease_is_renewed(leave: str) -> None:
    """The child leaves the loop at once, although the thread that renews is not there; the parent goes on."""
    assert in_program(IN_USE, leave) == "left\nparent fine\n"
