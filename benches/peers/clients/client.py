"""
Runs one row for one peer, in a process of its own, and prints its figures as JSON.

    client.py PEER ROW WORK

WORK is a `Work` of `measuring` as JSON. `PEERS` says which module has the loads of a peer, and which server they need.
"""

import importlib
import json
import sys
from dataclasses import dataclass

from measuring import Work


@dataclass(frozen=True, slots=True)
class Peer:
    """Where the loads of a client are, and the server that they run against."""

    module: str
    rows: str
    server: str | None


PEERS = {
    "ferromq": Peer("ferromq_rows", "SYNC", "ferromq"),
    "ferromq.aio": Peer("ferromq_rows", "AIO", "ferromq"),
    "confluent-kafka": Peer("kafka_rows", "CONFLUENT", "kafka"),
    "aiokafka": Peer("kafka_rows", "AIOKAFKA", "kafka"),
    "nats-py": Peer("nats_rows", "NATS", "nats"),
    "rocketmq-python-client": Peer("rocketmq_rows", "OFFICIAL", "rocketmq"),
    "rocketmq-python-client, ferromq's broker": Peer("rocketmq_rows", "OFFICIAL", "ferromq"),
    "ferromq, RocketMQ's broker": Peer("ferromq_rows", "SYNC", "rocketmq"),
    "ferromq, embedded, flush=interval": Peer("ferromq_rows", "EMBEDDED", None),
    "ferromq, embedded, flush=group": Peer("ferromq_rows", "EMBEDDED_GROUP", None),
}
FILLERS = {
    "ferromq": ("ferromq", "send_many"),
    "rocketmq": ("ferromq", "send_many"),
    "kafka": ("confluent-kafka", "send_many"),
    "nats": ("nats-py", "send_futures"),
}
"""Which client fills the topics of a server for the rows that read."""


def main() -> None:
    """Run the row."""
    peer, row, work = sys.argv[1:]
    rows = getattr(importlib.import_module(PEERS[peer].module), PEERS[peer].rows)
    print(json.dumps(rows[row](Work.parse(work))), flush=True)


if __name__ == "__main__":
    main()
