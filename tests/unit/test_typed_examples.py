"""Type checkers take what the pages show, and refuse what fails when it runs: each program here is checked by mypy."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TAKEN = """
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_type

import ferromq
from ferromq import DecodedMessage, MessageView, aio


@dataclass
class Order:
    id: str


def store(messages: list[MessageView]) -> None:
    failures = {message: "no body" for message in messages if not message.body}
    if failures:
        raise ferromq.Failed(failures)


def store_any(messages: Sequence[MessageView]) -> None: ...
def one(message: MessageView) -> None: ...
def order(message: DecodedMessage[Order]) -> None: ...
def orders(messages: list[DecodedMessage[Order]]) -> None: ...
async def store_later(messages: list[MessageView]) -> None: ...
def of_any_group(consumer: ferromq.Consumer) -> list[MessageView]: return consumer.receive()


mq = ferromq.connect("127.0.0.1:8081")
plain = mq.consumer("billing", "orders", prefetch=10)
assert_type(plain, ferromq.Consumer[MessageView])
assert_type(ferromq.Consumer("127.0.0.1:8081", "billing", "orders"), ferromq.Consumer[MessageView])
assert_type(mq.consumer("billing", "orders", decode=None), ferromq.Consumer[MessageView])
assert_type(plain.receive(), list[MessageView])
assert_type(plain.receive_many(3), list[MessageView])
for message in plain.messages(until="end"):
    assert_type(message, MessageView)
plain.run(store, batch=5)
plain.run(store_any, batch=5)
plain.run(one)
of_any_group(plain)

typed = mq.consumer("billing", "orders", decode=Order)
assert_type(typed, ferromq.Consumer[DecodedMessage[Order]])
assert_type(ferromq.Consumer("127.0.0.1:8081", "g", "t", decode=Order), ferromq.Consumer[DecodedMessage[Order]])
assert_type(typed.receive()[0].value, Order)
assert_type(typed.decode(message), Order)
assert_type(mq.consumer("billing", "orders", decode=len).receive()[0].value, int)
typed.run(order)
typed.run(one)
typed.run(orders, batch=5)
typed.run(store_any, batch=5)


async def main(mq: aio.Connection) -> None:
    plain, typed = mq.consumer("billing", "orders"), mq.consumer("billing", "orders", decode=Order)
    assert_type(await plain.receive(), list[MessageView])
    assert_type((await typed.receive())[0].value, Order)
    async for message in plain:
        assert_type(message, MessageView)
    await plain.run(store_later, batch=5)
"""

REFUSED = {
    "plain.receive()[0].value": "attr-defined",
    "plain.decode(message)": "misc",
    "plain.run(order)": "arg-type",
    "plain.run(one, batch=5)": "arg-type",
    "plain.run(store)": "arg-type",
    "typed.run(store, batch=5)": "arg-type",
    'mq.consumer("billing", "orders", prefetch="3")': "call-overload",
}
"""What fails when it runs, or is no handler of such messages → the code of mypy's error."""


@pytest.mark.timeout(300)
def test_examples_have_the_types_that_pages_tell(tmp_path: Path) -> None:
    """And each wrong line has its error."""
    begin = TAKEN.count("\n") + 1
    program = tmp_path / "program.py"
    program.write_text(TAKEN + "\n".join(REFUSED))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", tmp_path / "cache", program]
    said = subprocess.run(command, check=False, capture_output=True, text=True, timeout=290, cwd=tmp_path).stdout
    found = [
        (int(line), code) for line, code in re.findall(r"^program\.py:(\d+): error: .*\[(.*)\]$", said, re.MULTILINE)
    ]
    assert found == list(enumerate(REFUSED.values(), begin)), said
