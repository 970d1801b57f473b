"""Read a topic with Spark, as a DataFrame: pip install 'ferromq[spark]'."""

import json
from typing import Any

import ferromq
from ferromq import spark

SALES = [("tea", 3), ("coffee", 4), ("tea", 5), ("coffee", 1), ("milk", 2)]


def main() -> dict[str, Any]:
    """Return the sum for each product."""
    with ferromq.embedded() as mq:
        with mq.producer() as producer:
            for product, amount in SALES:
                producer.send("sales", json.dumps({"amount": amount}).encode(), tag=product)

        session = spark.session("local[2]", config={"spark.ui.enabled": "false"})
        topic = session.read.format("ferromq").option("endpoint", mq.endpoint).option("topic", "sales").load()
        topic.createOrReplaceTempView("sales")
        sums = session.sql(
            """
            SELECT tag AS product, sum(from_json(string(body), 'amount INT').amount) AS amount
            FROM sales GROUP BY tag ORDER BY amount DESC
            """
        )
        sums.show()
        return {row["product"]: row["amount"] for row in sums.collect()}


if __name__ == "__main__":
    main()
