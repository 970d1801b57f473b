"""How `make matrix` judges the lines of programs, and reasons."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "compat"))
sys.path.insert(0, str(Path(__file__).parents[1] / "matrix"))

import differences
import fetching
import rows_access
import rows_frameworks
import rows_grpc
import rows_remoting
import run
from differences import Reason
from programs_run import Programs, Verdict, read_checks
from rows import BuildError, CannotFetchError, Row
from sides import Side
from table import Result, print_table

ROW = Row("client", "1.0", ("send", "tags"), lambda _: [])
OK = Verdict(passed=True, seen="")
BAD = Verdict(passed=False, seen="nothing came")


def reason(**fields: object) -> Reason:
    """Return a reason why `tags` fails on ours."""
    given = {"client": "cl*", "version": "*", "check": "tags", "fails": "ours", "seen": "nothing*", "compat": ("",)}
    return Reason(**{**given, "kind": "generous", "reason": "it may.", **fields})  # type: ignore[arg-type]


def passes(original: Verdict, ours: Verdict, *reasons: Reason, compat: str = "") -> bool:
    """Return whether a matrix with this result of the check `tags` passes."""
    result = Result(ROW, {"send": OK, "tags": original}, {"send": OK, "tags": ours})
    return print_table([result], reasons, compat)


def test_a_check_without_a_line_was_not_reached() -> None:
    """Lines of other kinds are ignored."""
    found = read_checks(ROW, "starting\nCHECK send ok in 3 ms\nCHECK tag\n", "the program ended with 1")
    assert found["send"] == Verdict(passed=True, seen="in 3 ms")
    assert found["tags"] == Verdict(passed=False, seen="not reached: the program ended with 1")


def test_what_was_seen_is_kept_and_two_verdicts_are_a_failure() -> None:
    """In either order."""
    found = read_checks(ROW, "CHECK send ok\nCHECK send ok\nCHECK tags FAILED received [a, c]\n", "")
    assert not found["send"].passed
    assert found["tags"] == Verdict(passed=False, seen="received [a, c]")


def test_failures_of_rocketmq_alone_may_be_left_out() -> None:
    """Failures of ferromq, or of both sides, stay."""
    names = {"send": (OK, OK), "tags": (BAD, OK), "sql": (OK, BAD), "delay": (BAD, BAD)}
    original, ours = ({name: each[side] for name, each in names.items()} for side in (0, 1))
    assert Result(ROW, original, ours).failing() == ["tags", "sql", "delay"]
    left = Result(ROW, original, ours).where_ours_fails()
    assert {name: left.fails(name) for name in left.failing()} == {"sql": "ours", "delay": "both"}


def test_a_check_that_the_row_does_not_list_is_an_error() -> None:
    """It had no topic."""
    with pytest.raises(RuntimeError, match="sql"):
        read_checks(ROW, "CHECK sql ok\n", "")


def test_a_failure_needs_a_reason_for_its_sides_and_its_compat() -> None:
    """Failures on both sides, too: a broken program fails on both."""
    assert passes(OK, OK)
    assert not passes(OK, BAD)
    assert passes(OK, BAD, reason())
    assert not passes(BAD, OK, reason())
    assert not passes(OK, BAD, reason(), compat="rocketmq")
    assert passes(OK, BAD, reason(compat=("", "rocketmq")), compat="rocketmq")
    assert not passes(OK, BAD, reason(client="other"))
    assert not passes(BAD, BAD)
    assert not passes(BAD, BAD, reason())
    assert passes(BAD, BAD, reason(fails="both"))
    assert not passes(OK, BAD, reason(fails="both"))


def test_a_reason_explains_only_what_it_names() -> None:
    """On both sides, if the check fails on both; an unreached check needs a pattern of its own."""
    other = Verdict(passed=False, seen="another text")
    lost = Verdict(passed=False, seen="not reached: the program ended with 1")
    assert not passes(OK, other, reason())
    assert not passes(other, BAD, reason(fails="both"))
    assert not passes(BAD, other, reason(fails="both"))
    assert not passes(OK, lost, reason(seen="*"))
    assert passes(OK, lost, reason(seen="not reached: *"))


def test_a_reason_without_its_failure_fails_the_run() -> None:
    """Unless it is marked as intermittent."""
    assert not passes(OK, OK, reason())
    assert not passes(BAD, BAD, reason())
    assert not passes(OK, OK, reason(fails="both"))
    assert passes(OK, OK, reason(sometimes=True))
    assert passes(OK, OK, reason(), compat="rocketmq")


def test_a_client_that_cannot_be_fetched_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has the reason."""
    assert not print_table([Result(ROW, {}, {}, "no network")], [], "")
    assert "could not be fetched: no network" in capsys.readouterr().out


def made(prepare: Callable[[Path], list[str]], tmp_path: Path) -> Result:
    """Return the result of a row whose client is fetched so."""
    return run._result(Row("client", "1.0", (), prepare), (), "r", tmp_path)


def test_a_failure_of_a_row_is_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others run, and the table is printed; only rows that cannot be fetched may be left out."""

    def fails(error: Exception) -> Callable[[Path], list[str]]:
        def prepare(_: Path) -> list[str]:
            raise error

        return prepare

    assert made(fails(CannotFetchError("no network")), tmp_path).missing == "no network"
    for error, text in ((BuildError("a ; is missing"), "a ; is missing"), (KeyError("x"), "KeyError: 'x'")):
        result = made(fails(error), tmp_path)
        assert (result.missing, result.broken) == ("", text)
        assert not print_table([result], [], "")
        assert f"client 1.0 is broken: {text}" in capsys.readouterr().out


@pytest.fixture
def rows_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that runs `make matrix` with rows that find these results, and returns its exit code."""

    @contextlib.contextmanager
    def side(*_: object, **_options: object) -> Iterator[None]:
        yield None

    def status(*results: Result | BaseException) -> int:
        given = iter(results)

        def result(*_: object) -> Result:
            each = next(given)
            if isinstance(each, BaseException):
                raise each
            return each

        monkeypatch.setattr(run, "ROWS", [ROW] * len(results))
        monkeypatch.setattr(run, "_result", result)
        return run.main(["--skip"])

    monkeypatch.setattr(run.sides, "original", side)
    monkeypatch.setattr(run.sides, "ours", side)
    monkeypatch.setattr(run.compat_peer, "missing", lambda: None)
    monkeypatch.setattr(fetching, "limit_s", fetching.limit_s)
    return status


def test_a_run_is_left_out_only_if_all_that_is_wrong_is_what_cannot_be_fetched(rows_of: Callable[..., int]) -> None:
    """Exit code 77 reports it; a broken row takes precedence."""
    good, missing = Result(ROW, {"send": OK}, {"send": OK}), Result(ROW, {}, {}, missing="no network")
    assert rows_of(good) == 0
    assert rows_of(good, missing) == 77
    assert rows_of(missing, Result(ROW, {}, {}, broken="no class")) == 1
    assert rows_of(missing, Result(ROW, {"send": OK}, {"send": BAD})) == 1


def test_an_interrupted_run_prints_the_table_so_far(
    rows_of: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """As SIGTERM and Ctrl-C end it."""
    with pytest.raises(SystemExit):
        rows_of(Result(ROW, {"send": OK}, {"send": OK}), SystemExit(143))
    assert "| client | 1.0 | 1 of 1 | 1 of 1 | none |" in capsys.readouterr().out


def test_programs_end_at_once_with_what_they_started(tmp_path: Path) -> None:
    """And no other one starts."""
    programs, side = Programs(), Side("ours", "", "")
    command = ["sh", "-c", "sleep 600 & echo CHECK send ok; touch started; wait"]
    found = []
    thread = threading.Thread(target=lambda: found.append(programs.run(ROW, command, side, "r", tmp_path)))
    thread.start()
    while not (tmp_path / "started").exists():
        thread.join(0.01)
        assert thread.is_alive()
    programs.end()
    thread.join()
    assert found[0]["send"].passed
    assert found[0]["tags"].seen == "not reached: the program ended with -9"
    with pytest.raises(RuntimeError, match="has ended"):
        programs.run(ROW, command, side, "r", tmp_path)


def test_a_folder_is_made_once_and_again_where_it_is_gone(tmp_path: Path) -> None:
    """Or if its sources changed."""
    made_from = []
    for given in ("a", "a", "b"):
        folder = fetching.once(tmp_path, "x", [given], lambda _, given=given: made_from.append(given))
    assert made_from == ["a", "b"]
    folder.rmdir()
    fetching.once(tmp_path, "x", ["b"], lambda _: made_from.append("again"))
    assert made_from == ["a", "b", "again"]


def test_a_mistake_of_ours_is_not_a_missing_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not compile, a wrong `pom.xml`; but not a missing tool."""
    with pytest.raises(BuildError, match="failed: no ;"):
        fetching.build("sh", "-c", "echo 'no ;'; exit 1")
    with pytest.raises(BuildError, match="Could not find artifact"):
        fetching.fetch("sh", "-c", "echo Could not find artifact a:b:1; exit 1")
    with pytest.raises(CannotFetchError, match="Could not transfer"):
        fetching.fetch("sh", "-c", "echo Could not transfer artifact a:b:1; exit 1")
    for words in (fetching.fetch, fetching.build):
        with pytest.raises(CannotFetchError, match="no such-tool on the PATH"):
            words("such-tool")
    monkeypatch.setattr(fetching, "limit_s", 0.01)
    with pytest.raises(CannotFetchError, match="took more than"):
        fetching.fetch("sleep", "60")


def test_every_row_has_its_own_name_and_every_reason_a_row() -> None:
    """The names are directories."""
    rows = (*rows_grpc.ROWS, *rows_remoting.ROWS, *rows_frameworks.ROWS, *rows_access.ROWS)
    assert len({row.slug for row in rows}) == len(rows)
    for each in differences.read():
        assert any(each.covers(row, compat) for row in rows for compat in ("", "rocketmq")), each
