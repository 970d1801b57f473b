"""
Runs the same program of each client against RocketMQ and ferromq, and prints the differences.

`make matrix` calls it; CONTRIBUTING.md tells how to add a row.
"""

import argparse
import contextlib
import secrets
import shutil
import signal
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "compat"))

import compat_peer
import differences
import fetching
import rows_access
import rows_frameworks
import rows_grpc
import rows_remoting
import sides
from fetching import CACHE
from programs_run import Programs, Verdict
from rows import BuildError, CannotFetchError, Row
from table import Result, print_table, wrong

ROWS = (*rows_grpc.ROWS, *rows_remoting.ROWS, *rows_frameworks.ROWS)


def main(words: Sequence[str] | None = None) -> int:
    """Run the rows; return 0 if every failure has a reason and every reason a failure."""
    parser = argparse.ArgumentParser(description="clients of RocketMQ against the original and against ours")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--compat", default="", help="the option `compat` of our broker")
    parser.add_argument("--access", action="store_true", help="clients with right, wrong and missing keys instead")
    parser.add_argument("--checks", default="", help="the checks to make, all by default")
    parser.add_argument(
        "--skip", action="store_true", help="end with 77 if all that is wrong is what cannot be fetched"
    )
    parser.add_argument("--ours", action="store_true", help="what fails on the original alone is not wrong")
    given = parser.parse_args(words)
    rows = rows_access.ROWS if given.access else ROWS
    chosen = [row for row in rows if given.only.lower() in row.slug or given.only in f"{row.client} {row.version}"]
    if not chosen:
        parser.error(f"no row contains {given.only!r}")
    if given.checks:
        named = given.checks.split()
        chosen = [replace(row, checks=[each for each in row.checks if each in named]) for row in chosen]
    if given.skip:
        fetching.limit_s = fetching.SHORT_LIMIT_S
    if missing := compat_peer.missing():
        print(f"the original cannot be started: {missing}")
        return 77 if given.skip else 1
    reasons = differences.read()
    results = _run(chosen, reasons, given.compat, given.access)
    if given.ours:
        results = [result.where_ours_fails() for result in results]
    found = [result for result in results if not result.missing]
    if given.skip and len(found) < len(results) and not wrong(found, reasons, given.compat):
        return 77
    return 1 if wrong(results, reasons, given.compat) else 0


def _run(chosen: Sequence[Row], reasons: Sequence[differences.Reason], compat: str, is_closed: bool) -> list[Result]:
    """Run the rows and print the table; interrupted, print the table so far."""
    run = f"r{secrets.token_hex(4)}"
    directory = CACHE / "runs" / run
    results: list[Result] = []
    with contextlib.ExitStack() as stack:
        print(f"logs: {directory}", file=sys.stderr)
        both = (
            stack.enter_context(sides.original(directory / "original", is_closed=is_closed)),
            stack.enter_context(sides.ours(directory / "ours", compat, is_closed=is_closed)),
        )
        if is_closed:
            for side in both:
                side.admit(rows_access.USERS, rows_access.ENTITLED, [f"{name}_{run}*" for name in rows_access.CHECKS])
        try:
            for number, row in enumerate(chosen):
                print(f"{row.client} {row.version} …", file=sys.stderr)
                results.append(_result(row, both, f"{run}x{number}", directory / row.slug))
                print(f"{row.client} {row.version}: {results[-1].summary()}", file=sys.stderr)
        finally:
            print_table(results, reasons, compat)
    return results


def _result(row: Row, both: Sequence[sides.Side], run: str, directory: Path) -> Result:
    """Run a row; a failure is its result."""
    try:
        original, ours = _found(row, both, run, directory)
    except CannotFetchError as error:
        return Result(row, {}, {}, missing=str(error))
    except BuildError as error:
        return Result(row, {}, {}, broken=str(error))
    except Exception as error:  # noqa: BLE001 - one row does not end the others
        traceback.print_exc()
        return Result(row, {}, {}, broken=f"{type(error).__name__}: {error}")
    return Result(row, original, ours)


def _found(row: Row, both: Sequence[sides.Side], run: str, directory: Path) -> list[dict[str, Verdict]]:
    """Run the program of a row against both sides; end it at once when this is interrupted."""
    command = row.prepare(CACHE / row.slug)
    programs = Programs()

    def one(side: sides.Side) -> dict[str, Verdict]:
        side.create(row, run)
        return programs.run(row, command, side, run, directory / side.name)

    pool = ThreadPoolExecutor(2 if row.beside else 1)
    try:
        return list(pool.map(one, both))
    finally:
        programs.end()
        pool.shutdown(wait=False, cancel_futures=True)


def _end(number: int, _frame: object) -> None:
    """Raise an exception, once, so that everything is stopped."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def _forget_old_runs(keep: int = 20) -> None:
    runs = sorted((CACHE / "runs").glob("r*"), key=lambda path: path.stat().st_mtime)
    for old in runs[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _end)
    _forget_old_runs()
    sys.exit(main())
