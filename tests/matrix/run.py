"""
Runs the same program of each client against the original and against ours, and prints what differs.

`make matrix` calls it; CONTRIBUTING.md says how a row is added.
"""

import argparse
import contextlib
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "compat"))

import compat_peer
import differences
import rows_frameworks
import rows_grpc
import rows_remoting
import sides
from fetching import CACHE
from programs_run import Verdict, run_program
from rows import CannotFetchError, Row
from table import Result, print_table

ROWS = (*rows_grpc.ROWS, *rows_remoting.ROWS, *rows_frameworks.ROWS)


def main(words: Sequence[str] | None = None) -> int:
    """Run the rows; return 0 if every difference has a reason and every reason a difference."""
    parser = argparse.ArgumentParser(description="clients of RocketMQ against the original and against ours")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--compat", default="", help="the option `compat` of our broker")
    parser.add_argument("--skip", action="store_true", help="end with 77 where something cannot be fetched")
    given = parser.parse_args(words)
    chosen = [row for row in ROWS if given.only.lower() in row.slug or given.only in f"{row.client} {row.version}"]
    if not chosen:
        parser.error(f"no row contains {given.only!r}")
    if missing := compat_peer.missing():
        print(f"the original cannot be started: {missing}")
        return 77 if given.skip else 1
    results = list(_results(chosen, given.compat))
    passed = print_table(results, differences.read(), given.compat)
    if given.skip and any(result.missing for result in results):
        return 77
    return 0 if passed else 1


def _results(chosen: Sequence[Row], compat: str) -> Iterator[Result]:
    run = f"r{secrets.token_hex(4)}"
    directory = CACHE / "runs" / run
    with contextlib.ExitStack() as stack:
        print(f"logs: {directory}", file=sys.stderr)
        both = (
            stack.enter_context(sides.original(directory / "original")),
            stack.enter_context(sides.ours(directory / "ours", compat)),
        )
        for number, row in enumerate(chosen):
            print(f"{row.client} {row.version} …", file=sys.stderr)
            result = _result(row, both, f"{run}x{number}", directory / row.slug)
            print(f"{row.client} {row.version}: {result.summary()}", file=sys.stderr)
            yield result


def _result(row: Row, both: Sequence[sides.Side], run: str, directory: Path) -> Result:
    try:
        command = row.prepare(CACHE / row.slug)
    except CannotFetchError as error:
        return Result(row, {}, {}, str(error))

    def one(side: sides.Side) -> dict[str, Verdict]:
        side.create(row, run)
        return run_program(row, command, side, run, directory / side.name)

    with ThreadPoolExecutor(2 if row.beside else 1) as pool:
        original, ours = pool.map(one, both)
    return Result(row, original, ours)


def _forget_old_runs(keep: int = 20) -> None:
    runs = sorted((CACHE / "runs").glob("r*"), key=lambda path: path.stat().st_mtime)
    for old in runs[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    _forget_old_runs()
    sys.exit(main())
