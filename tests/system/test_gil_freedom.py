"""Sends and receives go on while the serving process holds its interpreter lock."""

import subprocess
import sys

import ferromq

SERVER = """
import ctypes, sys, threading, time
import ferromq

holding_the_lock = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the interpreter lock
steps, is_over = 0, False

def step():
    global steps
    while not is_over:
        steps += 1
        time.sleep(0)

with ferromq.embedded() as mq:
    thread = threading.Thread(target=step)
    thread.start()
    print(mq.endpoint, flush=True)
    sys.stdin.buffer.raw.read(1)
    room = ctypes.create_string_buffer(1)
    sys.setswitchinterval(1000.0)
    first = steps
    while (before := steps) < first + 2:  # a thread that waits for the lock keeps the interval it began with
        time.sleep(0)
    holding_the_lock.write(1, b"held\\n", 5)
    holding_the_lock.read(0, room, 1)
    after = steps
    sys.setswitchinterval(0.005)
    print(after - before, flush=True)
    is_over = True
    thread.join()
"""
ROUNDS = 500


def test_hot_verbs_need_no_interpreter_lock() -> None:
    """All sends, receives and acknowledgements end while the lock is held: it is given back after the last one."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        endpoint = server.stdout.readline().decode().strip()
        with ferromq.Producer(endpoint) as producer, ferromq.Consumer(endpoint, "gil", "gil") as consumer:
            producer.send("gil", b"the topic exists before the lock is held")
            consumer.ack(consumer.receive(1, wait=10))
            server.stdin.write(b"h")
            server.stdin.flush()
            assert server.stdout.readline() == b"held\n"
            for _ in range(ROUNDS):
                producer.send("gil", b"x" * 1024)
                received = consumer.receive(1, wait=10)
                assert len(received) == 1
                consumer.ack(received)
            server.stdin.write(b"g")
            server.stdin.flush()
        # A switch that was asked for just before may still happen; without the lock there are thousands.
        assert int(server.stdout.readline()) < ROUNDS // 100, "other threads ran meanwhile: the lock was not held"
