"""Write a DataFrame to a topic, exactly once however often it is tried: pip install 'ferromq[spark]'."""

from typing import Any

import ferromq
from ferromq import spark

SALES = [("tea", 3), ("coffee", 4), ("tea", 5), ("coffee", 1), ("milk", 2)]


def main() -> dict[str, Any]:
    """Return the sum for each product after two tries of the same write."""
    with ferromq.embedded() as mq:
        session = spark.session("local[2]", config={"spark.ui.enabled": "false"})
        sales = session.createDataFrame(SALES, "product string, amount int").coalesce(1)
        messages = sales.selectExpr("product AS tag", "string(amount) AS body")
        for _ in range(2):
            # The second try has the id of the first: the broker knows its rows.
            messages.write.format("ferromq").options(
                endpoint=mq.endpoint, topic="sales", delivery="exactly-once", writerId="sales-2026-11-21"
            ).mode("append").save()

        topic = session.read.format("ferromq").options(endpoint=mq.endpoint, topic="sales").load()
        sums = topic.selectExpr("tag", "int(string(body)) AS amount").groupBy("tag").sum("amount")
        sums.show()
        return {row["tag"]: row["sum(amount)"] for row in sums.collect()}


if __name__ == "__main__":
    main()
