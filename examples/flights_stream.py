"""
Each day's flights and delays by airline, streamed from one topic to another, exactly once.

Needs `pip install 'ferromq[spark,demo]'`.
"""

import tempfile
from typing import Any

from pyspark.sql import functions as f

import ferromq
from ferromq import spark
from ferromq.demo import flights

COLUMNS = "carrier STRING, time_hour TIMESTAMP, dep_delay DOUBLE"
LAST = ferromq.Message(b'{"time_hour": "2014-12-31T00:00:00Z"}')
"""Moves event time on, so that the last days are complete, too."""


def aggregate(rows: Any) -> Any:
    """Return the flights and the mean delay of each day and airline, of rows whose bodies are flights."""
    table = rows.select(f.from_json(f.col("body").cast("string"), COLUMNS).alias("row")).select("row.*")
    days = table.withWatermark("time_hour", "7 days").groupBy(f.window("time_hour", "1 day").alias("day"), "carrier")
    return days.agg(f.count("*").alias("flights"), f.avg("dep_delay").alias("delay"))


def stream(session: Any, endpoint: str, checkpoint: str) -> None:
    """Aggregate what the topic `flights` holds now into the topic `days`; run again, it goes on from there."""
    options = {
        "endpoint": endpoint,
        "topic": "flights",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "100000",
    }
    days = aggregate(session.readStream.format("ferromq").options(**options).load())
    messages = days.select(
        f.to_json(f.struct("day.start", "carrier", "flights", "delay")).alias("body"), f.col("carrier").alias("tag")
    )
    writer = messages.writeStream.format("ferromq").options(endpoint=endpoint, topic="days", delivery="exactly-once")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def main(count: int | None = None) -> list[Any]:
    """Do it with the first *count* flights, all where None; return a row for each day and airline."""
    session = spark.session(config={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"})
    with ferromq.embedded() as mq, tempfile.TemporaryDirectory() as checkpoint:
        with mq.producer() as producer:
            producer.send_all("flights", flights.load(count).messages())
            producer.send("flights", LAST)
        stream(session, mq.endpoint, checkpoint)
        days = session.read.format("ferromq").options(endpoint=mq.endpoint, topic="days").load()
        schema = "start TIMESTAMP, carrier STRING, flights LONG, delay DOUBLE"
        return days.select(f.from_json(f.col("body").cast("string"), schema).alias("row")).select("row.*").collect()


if __name__ == "__main__":
    for row in sorted(main(), key=lambda row: (row.start, row.carrier)):
        print(f"{row.start:%Y-%m-%d}  {row.carrier}  {row.flights:5,} flights  {row.delay or 0:6.1f} min late")
