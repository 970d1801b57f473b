"""Read a topic with Spark as it grows, and stop and go on without losing a message: pip install 'ferromq[spark]'."""

import tempfile
from pathlib import Path
from typing import Any

import ferromq
from ferromq import spark


def main() -> dict[str, int]:
    """Return how many messages of each tag came."""
    counts: dict[str, int] = {}

    def count(batch: Any, number: int) -> None:
        # Spark may repeat a batch after a crash; its number identifies it.
        for row in batch.groupBy("tag").count().collect():
            counts[row["tag"]] = counts.get(row["tag"], 0) + row["count"]
        print(f"batch {number}: {counts}")

    session = spark.session("local[2]", config={"spark.ui.enabled": "false"})
    with ferromq.embedded() as mq, mq.producer() as producer, tempfile.TemporaryDirectory() as directory:
        stream = (
            session.readStream.format("ferromq")
            .option("endpoint", mq.endpoint)
            .option("topic", "sales")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 1000)
            .option("group", "sales-counter")  # `mqadmin consumerProgress -g sales-counter` shows how far it is
            .load()
        )
        writer = stream.writeStream.foreachBatch(count).option(
            "checkpointLocation", str(Path(directory) / "checkpoint")
        )
        for products in [("tea", "coffee", "tea"), ("milk", "tea")]:
            for product in products:
                producer.send("sales", b"1", tag=product)
            # The messages of now; without a trigger it would go on for ever.
            writer.trigger(availableNow=True).start().awaitTermination()
    return counts


if __name__ == "__main__":
    main()
