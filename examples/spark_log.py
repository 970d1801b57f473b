"""Read a broker's files with Spark, without the broker: pip install 'ferromq[spark]'."""

import tempfile
from typing import Any

import ferromq
from ferromq import spark

ORDERS = {"tea": 3, "coffee": 4, "milk": 1}


def main() -> dict[str, Any]:
    """Return how many messages there are of each tag."""
    with tempfile.TemporaryDirectory() as store:
        with ferromq.embedded(store) as mq, mq.producer() as producer:
            for product, count in ORDERS.items():
                producer.send_all("orders", [ferromq.Message(b"1", tag=product)] * count)

        # The broker is closed; a running one is read in the same way, up to its last flush.
        session = spark.session("local[2]", config={"spark.ui.enabled": "false"})
        files = session.read.format("ferromq-log").option("topic", "orders").option("columns", "tag,queue_id")
        counts = files.load(store).where("tag <> 'milk'").groupBy("tag").count().orderBy("tag")
        counts.show()
        return {row["tag"]: row["count"] for row in counts.collect()}


if __name__ == "__main__":
    main()
