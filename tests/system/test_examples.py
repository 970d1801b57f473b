"""The examples work as they stand. With Spark: tests/spark."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_send_and_receive() -> None:
    """examples/send_and_receive.py gets back what it sent."""
    main = runpy.run_path(str(ROOT / "examples" / "send_and_receive.py"))["main"]
    assert sorted(main()) == [b"order 0", b"order 1", b"order 2"]


def test_batch_send() -> None:
    """examples/batch_send.py stores every message of both ways."""
    main = runpy.run_path(str(ROOT / "examples" / "batch_send.py"))["main"]
    assert main(2000) == 4000


def test_ordered() -> None:
    """examples/ordered.py keeps the order of each account over failures."""
    main = runpy.run_path(str(ROOT / "examples" / "ordered.py"))["main"]
    assert main() == {"anna": ["open", "deposit", "close"], "ben": ["open", "deposit", "close"]}


def test_transaction() -> None:
    """examples/transaction.py settles both orders, the second by a check-back."""
    main = runpy.run_path(str(ROOT / "examples" / "transaction.py"))["main"]
    assert sorted(main()) == ["o-1", "o-2"]


def test_delayed() -> None:
    """examples/delayed.py gets what was not recalled."""
    main = runpy.run_path(str(ROOT / "examples" / "delayed.py"))["main"]
    assert main() == [b"pay the invoice"]


def test_examples_are_short() -> None:
    """An example is read in one look."""
    long = [path.name for path in (ROOT / "examples").glob("*.py") if len(path.read_text().splitlines()) >= 60]
    assert long == []
