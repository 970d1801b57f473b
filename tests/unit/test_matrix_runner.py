"""What `make matrix` makes of the lines that programs print, and of reasons."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "compat"))
sys.path.insert(0, str(Path(__file__).parents[1] / "matrix"))

import differences
import rows_frameworks
import rows_grpc
import rows_remoting
from differences import Reason
from programs_run import Verdict, read_checks
from rows import Row
from table import Result, print_table

ROW = Row("client", "1.0", ("send", "tags"), lambda _: [])
OK = Verdict(passed=True, seen="")
BAD = Verdict(passed=False, seen="nothing came")


def reason(**fields: object) -> Reason:
    """Return a reason why `tags` fails on ours."""
    given = {"client": "cl*", "version": "*", "check": "tags", "fails": "ours", "compat": ("",), "kind": "generous"}
    return Reason(**{**given, "reason": "it may.", **fields})  # type: ignore[arg-type]


def passes(original: Verdict, ours: Verdict, *reasons: Reason, compat: str = "") -> bool:
    """Say whether a matrix passes in which the check `tags` found this."""
    result = Result(ROW, {"send": OK, "tags": original}, {"send": OK, "tags": ours})
    return print_table([result], reasons, compat)


def test_a_check_without_a_line_was_not_reached() -> None:
    """Lines of other kinds are ignored."""
    found = read_checks(ROW, "starting\nCHECK send ok in 3 ms\nCHECK tag\n", "the program ended with 1")
    assert found["send"] == Verdict(passed=True, seen="in 3 ms")
    assert found["tags"] == Verdict(passed=False, seen="not reached: the program ended with 1")


def test_what_was_seen_is_kept_and_two_verdicts_are_a_failure() -> None:
    """Whichever came first."""
    found = read_checks(ROW, "CHECK send ok\nCHECK send ok\nCHECK tags FAILED received [a, c]\n", "")
    assert not found["send"].passed
    assert found["tags"] == Verdict(passed=False, seen="received [a, c]")


def test_a_check_that_the_row_does_not_list_is_an_error() -> None:
    """It had no topic."""
    with pytest.raises(RuntimeError, match="sql"):
        read_checks(ROW, "CHECK sql ok\n", "")


def test_a_difference_needs_a_reason_for_its_side_and_its_compat() -> None:
    """What fails on both sides is no difference."""
    assert passes(OK, OK)
    assert passes(BAD, BAD)
    assert not passes(OK, BAD)
    assert passes(OK, BAD, reason())
    assert not passes(BAD, OK, reason())
    assert not passes(OK, BAD, reason(), compat="rocketmq")
    assert passes(OK, BAD, reason(compat=("", "rocketmq")), compat="rocketmq")
    assert not passes(OK, BAD, reason(client="other"))


def test_a_reason_without_its_difference_fails_the_run() -> None:
    """Unless the difference comes only sometimes."""
    assert not passes(OK, OK, reason())
    assert not passes(BAD, BAD, reason())
    assert passes(OK, OK, reason(sometimes=True))
    assert passes(OK, OK, reason(), compat="rocketmq")


def test_a_client_that_cannot_be_fetched_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The table says why."""
    assert not print_table([Result(ROW, {}, {}, "no network")], [], "")
    assert "could not be fetched: no network" in capsys.readouterr().out


def test_every_row_has_its_own_name_and_every_reason_a_row() -> None:
    """The names are directories."""
    rows = (*rows_grpc.ROWS, *rows_remoting.ROWS, *rows_frameworks.ROWS)
    assert len({row.slug for row in rows}) == len(rows)
    for each in differences.read():
        assert any(each.covers(row, compat) for row in rows for compat in ("", "rocketmq")), each
