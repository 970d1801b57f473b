"""Runs the program of a row against a side, and reads its checks."""

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from differences import NOT_REACHED
from rows import Row
from sides import Side

_LINE: Final = re.compile(r"CHECK (\w+) (ok|FAILED)(?: (.*))?")


@dataclass(frozen=True)
class Verdict:
    """The result of a check."""

    passed: bool
    seen: str


class Programs:
    """The programs that run now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def run(self, row: Row, command: Sequence[str], side: Side, run: str, directory: Path) -> dict[str, Verdict]:
        """
        Run the program once and return the result of each check of the row.

        Its output goes to `output` in *directory*, which is its working and its home directory.
        """
        directory.mkdir(parents=True, exist_ok=True)
        output = directory / "output"
        environment = {
            "MATRIX_ENDPOINT": side.endpoint,
            "MATRIX_NAMESRV": side.namesrv,
            "MATRIX_RUN": run,
            "MATRIX_CHECKS": " ".join(row.checks),
            "HOME": str(directory),
        }
        if row.keys:
            environment |= zip(("MATRIX_ACCESS_KEY", "MATRIX_SECRET_KEY"), row.keys, strict=True)
        with output.open("wb") as log, self._lock:
            if self._ended:
                raise RuntimeError("the run has ended")
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, **environment},
                start_new_session=True,
            )
            self._running.add(process)
        end = self._end(process, row.limit_s)
        return read_checks(row, output.read_text(errors="replace"), end)

    def end(self) -> None:
        """End the running programs and their children; no program starts afterwards."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill(process)

    def _end(self, process: subprocess.Popen[bytes], limit_s: float) -> str:
        """Wait until it ends, or end it and its children; return how it ended."""
        try:
            return f"the program ended with {process.wait(limit_s)}"
        except subprocess.TimeoutExpired:
            return f"the program did not end in {limit_s:.0f} s"
        finally:
            with self._lock:
                self._running.discard(process)
            _kill(process)
            process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _verdict(row: Row, passed: bool, seen: str) -> Verdict:
    if not row.refusal:
        return Verdict(passed, seen)
    if passed:
        return Verdict(passed=False, seen="accepted")
    return Verdict(re.search(row.refusal, seen) is not None, seen)


def read_checks(row: Row, output: str, end: str) -> dict[str, Verdict]:
    """Read the `CHECK` lines; a check of the row without a line was not reached."""
    found: dict[str, Verdict] = {}
    for match in filter(None, map(_LINE.fullmatch, output.splitlines())):
        name, verdict, seen = match.groups()
        if name in found:
            found[name] = Verdict(passed=False, seen="the program printed two verdicts")
        else:
            found[name] = _verdict(row, verdict == "ok", seen or "")
    unknown = found.keys() - set(row.checks)
    if unknown:
        raise RuntimeError(f"{row.client} {row.version} prints checks that the row does not list: {sorted(unknown)}")
    not_reached = Verdict(passed=False, seen=f"{NOT_REACHED}{end}")
    return {name: found.get(name, not_reached) for name in row.checks}
