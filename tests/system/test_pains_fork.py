"""A fork while clients of every kind are in use: the child is refused or begins anew, and no process hangs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import asyncio, gc, multiprocessing, os, sys, threading
import ferromq, ferromq.aio
from ferromq import ForkedProcess

def refused(use):
    try:
        use()
    except ForkedProcess as error:
        assert "after the fork" in str(error), error
    else:
        raise AssertionError("the child was not refused")

def fresh(endpoint, body):
    with ferromq.Producer(endpoint, timeout=20) as producer:
        producer.send("fresh", body)

def joined(child):
    child.join(30)
    assert not child.is_alive(), "the child hangs"
    assert child.exitcode == 0, child.exitcode

context = multiprocessing.get_context("fork")
"""

KINDS = (
    BEGIN
    + """
def in_child(endpoint):
    refused(lambda: producer.send("orders", b"x"))
    refused(lambda: producer.submit("orders", b"x"))
    refused(lambda: producer.send_all("orders", [b"x"]))
    refused(lambda: receiving.receive())
    refused(lambda: next(iter(iterating)))
    refused(lambda: running.run(print))
    refused(lambda: admin.topics())
    connection.producer().send("fresh", b"by the connection")
    refused(lambda: asyncio.run(awaited.send("orders", b"x")))
    refused(lambda: asyncio.run(awaiting.receive()))
    for each in (producer, receiving, iterating, running, admin):
        each.close()
    gc.collect()
    fresh(endpoint, b"child")

async def use():
    await awaited.send("orders", b"awaited")
    (message,) = await awaiting.receive(1, wait=20)
    message.ack()
    child = context.Process(target=in_child, args=(mq.endpoint,))
    child.start()
    await asyncio.to_thread(joined, child)
    await awaited.send("orders", b"awaited")
    await awaited.close()
    await awaiting.close()

with ferromq.embedded() as mq, ferromq.connect(mq.endpoint) as connection:
    producer, admin = ferromq.Producer(mq.endpoint), mq.admin()
    receiving, iterating, running = (ferromq.Consumer(mq.endpoint, group, "orders") for group in ("r", "i", "h"))
    awaited, awaiting = ferromq.aio.Producer(mq.endpoint), ferromq.aio.Consumer(mq.endpoint, "a", "orders")
    connection.producer().send("orders", b"x")
    producer.send("orders", b"x")
    admin.topics()
    receiving.receive(1, wait=20)
    entered = threading.Event()
    handler = threading.Thread(target=running.run, args=(lambda _message: entered.set(),), daemon=True)
    handler.start()
    loop = iter(iterating)
    next(loop).ack()
    assert entered.wait(20)
    asyncio.run(use())
    producer.send("orders", b"after")
    next(loop).ack()
    running.stop()
    handler.join(20)
    assert not handler.is_alive()
    for each in (producer, receiving, iterating, running, admin):
        each.close()
print("parent fine", flush=True)
"""
)

UNDER_WAY = (
    BEGIN
    + """
def in_child(endpoint, number):
    refused(lambda: producer.send("orders", b"x"))
    fresh(endpoint, b"child %d" % number)

stop = threading.Event()

def send(way):
    while not stop.is_set():
        way()

with ferromq.embedded() as mq:
    producer, consumer = ferromq.Producer(mq.endpoint), ferromq.Consumer(mq.endpoint, "g", "orders")
    producer.send("orders", b"x")
    ways = [
        lambda: producer.send("orders", b"x"),
        lambda: producer.submit("orders", b"x").result(30),
        lambda: producer.send_all("orders", [b"x"] * 100),
        lambda: consumer.ack(consumer.receive(32, wait=1)),
    ]
    threads = [threading.Thread(target=send, args=(way,)) for way in ways]
    for thread in threads:
        thread.start()
    for number in range(10):
        child = context.Process(target=in_child, args=(mq.endpoint, number))
        child.start()
        joined(child)
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "the parent hangs"
    producer.close()
    consumer.close()
    bodies = set()
    with ferromq.Consumer(mq.endpoint, "g", "fresh") as consumer:
        while len(bodies) < 10:
            messages = consumer.receive(wait=20)
            assert messages, bodies
            bodies |= {message.body for message in messages}
print("parent fine", flush=True)
"""
)

PREFORK = (
    BEGIN
    + """
# As gunicorn does with preload: the master loads the program, forks workers, and replaces one that died.
def worker(number):
    connection.producer().send("orders", b"worker %d" % number)
    with connection.consumer("workers", "orders") as consumer:
        (message,) = consumer.receive(1, wait=20)
        consumer.ack(message)
    os._exit(0)

with ferromq.embedded() as mq:
    connection = ferromq.connect(mq.endpoint)
    if sys.argv[1] == "used":
        connection.producer().send("loaded", b"by the master")
    for generation in range(2):
        children = []
        for number in range(3):
            child = os.fork()
            if not child:
                try:
                    worker(number)
                except BaseException as error:
                    print(repr(error), file=sys.stderr, flush=True)
                    os._exit(4)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(codes, flush=True)
    connection.producer().send("loaded", b"by the master")
    connection.close()
"""
)


def in_program(code: str, *words: str) -> str:
    """Run a program and return its output; it ends in its time."""
    kit = str(Path(__file__).parents[1] / "faults")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([kit, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-X", "faulthandler", "-c", code, *words]
    run = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False, env=environment)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_pain_8_multiprocessing_forks_beside_every_kind_of_client() -> None:
    """The child is refused by each, closes it, and sends with a new client; the parent's go on."""
    assert in_program(KINDS) == "parent fine\n"


def test_pain_8_forks_while_sends_and_receives_are_under_way() -> None:
    """At any moment of them: no child hangs, and no parent."""
    assert in_program(UNDER_WAY) == "parent fine\n"


@pytest.mark.parametrize("loaded", ["unused", "used"])
def test_pain_8_a_server_that_forks_workers_after_loading_the_program(loaded: str) -> None:
    """Each worker has clients of its own from the connection of the master, also if the master used it before."""
    assert in_program(PREFORK, loaded) == "[0, 0, 0]\n[0, 0, 0]\n"
