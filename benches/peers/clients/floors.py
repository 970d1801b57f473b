"""
What the machine gives without a message queue: the floors below the clients' figures.

A flush of the disk, the round trip of a socket, and grpcio's unary call of an echo. Servers are processes of their own.
"""

import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from measuring import THREADS, Work, drained, latencies, one_by_one

METHOD = "/floor/Echo"
ANSWER = 16
"""Bytes that an echo answers."""
PAGE = 4096
ANSWER_MESSAGES = 4096
"""Messages of a large answer."""


def fdatasync(work: Work, directory: str) -> dict[str, Any]:
    """Time appends of a page, each with its flush."""
    took = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        end = time.perf_counter() + work.seconds
        while time.perf_counter() < end or len(took) < 10:
            begin = time.perf_counter()
            os.write(file.fileno(), b"x" * PAGE)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begin)
    return latencies(took)


def _serve_socket(ready: Connection, size: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready.send(listener.getsockname()[1])
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while peer.recv(size, socket.MSG_WAITALL):
            peer.sendall(b"x" * ANSWER)


def _serve_answers(ready: Connection, size: int) -> None:
    answer = memoryview(bytes(ANSWER_MESSAGES * size))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready.send(listener.getsockname()[1])
        peer, _ = listener.accept()
        while peer.recv(ANSWER):
            peer.sendall(answer)


def _serve_grpc(ready: Connection, _size: int) -> None:
    import grpc  # noqa: PLC0415 (after the fork of the process)

    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(lambda request, _context: request[:ANSWER])}
    server = grpc.server(ThreadPoolExecutor(THREADS))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("floor", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ready.send(port)
    server.wait_for_termination()


def _beside(serve: Callable[[Connection, int], None], work: Work) -> tuple[Any, int]:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, work.size), daemon=True)
    server.start()
    port: int = ours.recv()
    return server, port


def round_trip(work: Work) -> dict[str, Any]:
    """Send a body over a socket and wait for a short answer, one by one."""
    server, port = _beside(_serve_socket, work)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def call() -> None:
            peer.sendall(work.body)
            peer.recv(ANSWER, socket.MSG_WAITALL)

        figures = one_by_one(work, 1, call)
    server.join()
    return figures


def large_answers(work: Work) -> dict[str, Any]:
    """Ask for the bodies of many messages at once, one answer after the other, and copy them out of the socket."""
    server, port = _beside(_serve_answers, work)
    room = memoryview(bytearray(ANSWER_MESSAGES * work.size))
    with socket.create_connection(("127.0.0.1", port)) as peer:

        def take() -> int:
            peer.sendall(b"x" * ANSWER)
            peer.recv_into(room, len(room), socket.MSG_WAITALL)
            return ANSWER_MESSAGES

        figures = drained(replace(work, messages=1_000_000_000), take)
    server.join()
    return figures


def grpc_echo(work: Work, threads: int) -> dict[str, Any]:
    """Call an echo of grpcio with a body, one by one in each thread."""
    import grpc  # noqa: PLC0415

    server, port = _beside(_serve_grpc, work)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD)
        call(work.body, wait_for_ready=True)
        figures = one_by_one(work, threads, lambda: call(work.body))
    server.terminate()
    server.join()
    return figures


def floors(work: Work, directory: Path) -> dict[str, dict[str, Any]]:
    """Return the figures of all floors; *directory* is on the disk of the servers."""
    return {
        "fdatasync of 4 KiB": fdatasync(work, str(directory)),
        "socket round trip, 1 thread": round_trip(work),
        f"socket answers of {ANSWER_MESSAGES:,} bodies": large_answers(work),
        "grpcio unary echo, 1 thread": grpc_echo(work, 1),
        f"grpcio unary echo, {THREADS} threads": grpc_echo(work, THREADS),
    }
