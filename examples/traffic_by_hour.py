"""Traffic by hour, drawn from an archive: pip install 'ferromq[spark,demo]' matplotlib. Cells as in a notebook."""

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

import ferromq
from ferromq import spark
from ferromq.demo import flights
from ferromq.pipeline import archive


# %% A week of departures from New York, each sent at the hour it was planned for: the clock is moved by hand.
def send(store: Path, rows: int) -> int:
    """Fill a store, and return how many hours there were."""
    week = flights.load(rows)
    hours = week.table.groupby(["year", "month", "day", "hour"]).indices
    clock = ferromq.Clock.manual(datetime(2013, 1, 1, tzinfo=UTC))
    with ferromq.embedded(store, clock=clock) as mq, mq.producer() as producer:
        for at, numbers in sorted(hours.items()):
            due = datetime(*at, tzinfo=UTC).timestamp() * 1000
            mq.clock.advance(milliseconds=max(0, due - mq.clock.now_ms()))
            messages = [ferromq.Message(week.bodies[i], keys=week.keys[i], tag=week.tags[i]) for i in numbers]
            producer.send_all("flights", messages)
    return len(hours)


# %% The log files become Parquet, a folder for each hour; any tool that knows Parquet counts them.
def count(store: Path, out: Path) -> Any:
    """Return a table of flights with a row for each day and hour."""
    session = spark.session("local[2]", config={"spark.ui.enabled": "false"})
    archive.archive(session, str(store), str(out)).select("name", "rows", "files", "bytes").show(truncate=False)
    traffic = archive.read(session, str(out)).where("topic = 'flights'").groupBy("date", "hour").count()
    return traffic.toPandas().pivot_table(index="date", columns="hour", values="count", fill_value=0)


# %% The picture: days as rows, and the mean of the hours below.
def draw(traffic: Any, picture: Path) -> None:
    """Write *picture*."""
    figure, (days, mean) = plt.subplots(2, 1, figsize=(8, 5), height_ratios=[2, 1], layout="constrained")
    shades = days.pcolormesh(traffic.columns, range(len(traffic)), traffic.to_numpy(), cmap="viridis")
    days.set(yticks=range(len(traffic)), yticklabels=traffic.index, title="Flights from New York, by hour")
    days.invert_yaxis()
    days.set_xticks(traffic.columns)
    figure.colorbar(shades, ax=[days, mean], label="flights an hour")
    mean.bar(traffic.columns, traffic.mean(), color="tab:green")
    mean.set(xlabel="hour", ylabel="mean", xlim=days.get_xlim(), xticks=traffic.columns)
    figure.savefig(picture, dpi=80)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        send(Path(directory, "store"), rows=6_099)
        draw(count(Path(directory, "store"), Path(directory, "archive")), Path(sys.argv[1]))
