"""
Fold `engine load<TAB>value<TAB>unit` lines of two engines into a table of medians.

The engines' names are the arguments; without, those of the stores.

Each cell shows the median and, in brackets, the least and the greatest value.
"""

import statistics
import sys
from collections import defaultdict

OURS, THEIRS = sys.argv[1:3] or ("ferromq-store", "java-store")
# The goal: how many times as good as the peer.
GOALS = {
    "append async, 1 threads, until dispatched": 4.0,
    "append async, 4 threads, until dispatched": 4.0,
    "append sync, 1 waiting": 2.0,
    "append sync, 64 waiting": 5.0,
    "append sync, 64 waiting, p99": 5.0,
    "get, 32 at once": 1.0,
    "get, 1 at once": 2.0,
    "recover, all walked": 6.0,
    "query by key": 2.0,
    "offset by time": 5.0,
    "send, 64 connections": 5.0,
    "send, 64 connections, CPU per million": 4.0,
    "memory without store pages": 4.0,
    "java client: 1 threads, one a send": 1.5,
    "java client: 64 threads, one a send": 2.0,
    "java client: 64 threads, one a send, p99": 2.0,
    "java client: 16 threads, batches of 32": 2.0,
    "java client: consume a backlog": 2.0,
    "route of 1 of 1,000 topics, 16 connections": 1.0,
    "grpc: send, 64 in flight": 5.0,
    "python client: send, 16 threads": 2.0,
    "python client: send, 16 threads, CPU per million": 4.0,
    "python client: receive and acknowledge": 3.0,
    "spark: batch read": 1.5,
    "spark: batch read from the files of the log": 2.5,
    "spark: stream read": 1.0,
}
LESS_IS_BETTER = {"us", "ms", "s", "MiB"}
COMPARED = LESS_IS_BETTER | {"msg/s", "op/s", "row/s"}

Values = dict[str, list[float]]


def number(value: float) -> str:
    """Write a value with as many digits as it needs."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cell(values: list[float]) -> str:
    """Write median and spread."""
    if not values:
        return "-"
    median = number(statistics.median(values))
    least, greatest = number(min(values)), number(max(values))
    return median if least == greatest else f"{median} ({least}-{greatest})"


def times(engines: Values, unit: str) -> float | None:
    """Return how many times as good ours is."""
    if unit not in COMPARED or not engines[OURS] or not engines[THEIRS]:
        return None
    ours, theirs = statistics.median(engines[OURS]), statistics.median(engines[THEIRS])
    return theirs / ours if unit in LESS_IS_BETTER else ours / theirs


def main() -> None:
    """Read lines from stdin and print a row for each load, then what follows from them."""
    loads: dict[str, Values] = defaultdict(lambda: defaultdict(list))
    units: dict[str, str] = {}
    for line in sys.stdin:
        name, value, unit = line.rstrip("\n").split("\t")
        engine, load = name.split(" ", 1)
        loads[load][engine].append(float(value))
        units[load] = unit
    rows = [("work", "unit", OURS, THEIRS, "times", "goal", "met")]
    for load, engines in loads.items():
        ratio, goal = times(engines, units[load]), GOALS.get(load)
        met = "" if ratio is None or goal is None else "yes" if ratio >= goal else "NO"
        theirs = "not counted" if load.endswith("flushes") else cell(engines[THEIRS])
        rows.append(
            (
                load,
                units[load],
                cell(engines[OURS]),
                theirs,
                "" if ratio is None else f"{ratio:.2f}",
                "" if goal is None else f"{goal:g}",
                met,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, tuple("-" * width for width in widths))
    for row in rows:
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |")
    medians = {load: statistics.median(engines[OURS]) for load, engines in loads.items() if engines[OURS]}
    for sentence in shares(medians):
        print(sentence)


def shares(ours: dict[str, float]) -> list[str]:
    """Return the ratio of two loads, if both were run."""
    one, four = "append async, 1 threads, until dispatched", "append async, 4 threads, until dispatched"
    bare = "bare loop, copy and CRC32"
    wanted = [
        (four, one, "goal: 90 % or more"),
        (one, bare, "stretch goal: 30 %"),
        ("append async, 1 threads, put", bare, "the same without dispatch"),
    ]
    return [
        f"{load} is {ours[load] / ours[other]:.0%} of {other} ({goal})"
        for load, other, goal in wanted
        if load in ours and other in ours
    ]


if __name__ == "__main__":
    main()
