"""Real rows through the whole path: sent, streamed with a watermark, written to another topic, and read back."""

import os
import runpy
from pathlib import Path
from typing import Any

import pytest

from ferromq.demo import flights

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights_stream.py"
ROWS = int(os.environ.get("FERROMQ_FLIGHTS", "50000"))


@pytest.mark.timeout(600)
def test_the_streamed_aggregation_equals_the_table(session: Any, again: Any) -> None:
    """Every day and airline once, with the table's number of flights and mean delay."""
    session.conf.set("spark.sql.session.timeZone", "UTC")
    main = runpy.run_path(str(EXAMPLE))["main"]
    found = again(lambda: main(ROWS))
    table = flights.load(ROWS).table
    days = table.groupby([table.time_hour.str.slice(0, 10), "carrier"]).dep_delay.agg(["size", "mean"])
    wanted = {key: (int(row["size"]), float(row["mean"])) for key, row in days.iterrows()}
    assert len(found) == len(wanted)
    for row in found:
        count, delay = wanted[f"{row.start:%Y-%m-%d}", row.carrier]
        assert row.flights == count
        assert (row.delay is None and delay != delay) or row.delay == pytest.approx(delay, rel=1e-9)  # noqa: PLR0124 (NaN)
