"""The examples work as they stand. With Spark: tests/spark."""

import ast
import asyncio
import inspect
import json
import runpy
from pathlib import Path
from typing import Any

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


def test_asyncio_pipeline() -> None:
    """examples/asyncio_pipeline.py prices every order, several at once and never more than it says."""
    names = runpy.run_path(str(ROOT / "examples" / "asyncio_pipeline.py"))
    main, price, under_way = names["main"], names["price"], [0]

    async def counted(order: dict[str, str]) -> Any:
        under_way.append(under_way[-1] + 1)
        priced = await price(order)
        under_way.append(under_way[-1] - 1)
        return priced

    main.__globals__["price"] = counted
    assert asyncio.run(main(100)) == {f"o-{number}": 300 for number in range(100)}
    assert 1 < max(under_way) <= names["AT_ONCE"]


def test_notebook() -> None:
    """The cells of examples/notebook.ipynb run from top to bottom, as in Jupyter; what they show is there."""
    notebook = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells), "a notebook with outputs is out of date at once"
    names: dict[str, Any] = {}
    broker, receipts, table, sums, tea, receipt, closed = asyncio.run(shown([cell["source"] for cell in cells], names))
    assert names["mq"].endpoint in broker._repr_html_()
    assert receipts._repr_html_().count("<tr>") == 5
    assert sorted(table["item"]) == ["coffee", "milk", "tea", "tea"]
    assert sums.to_dict() == {"tea": 800, "coffee": 400, "milk": 200}
    assert tea == (b'{"cents": 300}', "tea", 1)
    assert receipt.topic == "sales"
    assert closed is None
    assert names["mq"].closed


async def shown(cells: list[list[str]], names: dict[str, Any]) -> list[Any]:
    """Run cells, which may await, and return the value of each: that of its last line, if it is an expression."""
    values = []
    for number, lines in enumerate(cells):
        cell = ast.parse("".join(lines))
        if isinstance(cell.body[-1], ast.Expr):
            cell.body[-1] = ast.Assign([ast.Name("_", ast.Store())], cell.body[-1].value)
        else:
            cell.body.append(ast.parse("_ = None").body[0])
        code = compile(ast.fix_missing_locations(cell), f"cell {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result
        values.append(names["_"])
    return values


def test_examples_are_short() -> None:
    """An example is read in one look."""
    long = [path.name for path in (ROOT / "examples").glob("*.py") if len(path.read_text().splitlines()) >= 60]
    assert long == []
