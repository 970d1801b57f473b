"""Random SQL92 expressions: RocketMQ's own filter and ours agree on each."""

import random
import threading

import compat_peer
import pytest

import ferromq

NAMES = ("a", "b", "c")
VALUES = (
    "3",
    "4",
    "-3",
    "+4",
    "2.5",
    " 4 ",
    "4f",
    "3000000001",
    "1e1",
    "NaN",
    "x",
    "yx",
    "true",
    "FALSE",
    "3x",
    "-0.0",
)
OPERANDS = (
    *NAMES,
    "3",
    "4",
    "2.5",
    "-3",
    "- -4",
    "3000000000",
    "7L",
    "1e1",
    "'x'",
    "'3'",
    "TRUE",
    "FALSE",
    "-b",
    "(a)",
)
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
LEAVES = (
    "a IN ('x', '3')", "b NOT IN ('x', '4', '')", "c CONTAINS 'x'", "a NOT CONTAINS 'x'", "b STARTSWITH '3'",
    "c NOT ENDSWITH 'x'", "a CONTAINS ''", "a IS NULL", "b IS NOT NULL", "c", "NOT a", "NULL", "TRUE", "NOT a = 3",
)  # fmt: skip


def expression(draw: random.Random, depth: int) -> str:
    """Return an expression by the grammar; it ignores kinds of values, so some are refused."""
    operand = draw.choice(OPERANDS)
    shapes = [
        lambda: f"{operand} {draw.choice(COMPARISONS)} {draw.choice(OPERANDS)}",
        lambda: f"{operand} {draw.choice(COMPARISONS)} {draw.choice(OPERANDS)}",
        lambda: f"{operand} {draw.choice(('', 'NOT '))}BETWEEN {draw.choice(OPERANDS)} AND {draw.choice(OPERANDS)}",
        lambda: draw.choice(LEAVES),
    ]
    if depth:
        shapes += [
            lambda: " AND ".join(expression(draw, depth - 1) for _ in range(draw.randint(2, 3))),
            lambda: " OR ".join(expression(draw, depth - 1) for _ in range(draw.randint(2, 3))),
            lambda: f"NOT ({expression(draw, depth - 1)})",
            lambda: f"({expression(draw, depth - 1)}) {draw.choice(('IS NULL', '= (a = 3)', 'AND b > 2', ''))}",
        ]
    return draw.choice(shapes)()


def test_rocketmq_and_ferromq_select_the_same_messages(peer: compat_peer.Peer) -> None:
    """60 messages, 1,500 expressions; both refuse the same expressions."""
    draw = random.Random(6)
    messages = [{name: draw.choice(VALUES) for name in NAMES if draw.random() < 0.8} or {"d": "1"} for _ in range(60)]
    expressions = [expression(draw, 3) for _ in range(1_500)]
    answers = peer.sql(messages, expressions)
    counts = [0, 0, 0]
    with ferromq.embedded() as mq:
        with mq.admin() as admin:
            admin.create_topic("filtered", queues=1)
        for number, properties in enumerate(messages):
            mq.store.append("filtered", 0, b"%d" % number, properties)
        pause = threading.Event()
        while mq.store.max_offset("filtered", 0) < len(messages):
            pause.wait(0.01)
        for text, wanted in zip(expressions, answers, strict=True):
            if wanted is None:
                counts[0] += 1
                with pytest.raises(ValueError, match="position"):
                    mq.store.get("filtered", 0, 0, 64, filter=("SQL92", text))
                continue
            _, found, _ = mq.store.get("filtered", 0, 0, 64, filter=("SQL92", text))
            assert [message.queue_offset for message in found] == [n for n, holds in enumerate(wanted) if holds], text
            counts[1 if found else 2] += 1
    assert min(counts) > 100, counts
