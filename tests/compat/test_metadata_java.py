"""The metadata of RocketMQ's own cluster, taken over by ferromq, and the other way round."""

from pathlib import Path

from java_processes import JavaServers

import ferromq
from ferromq.admin.metadata import Metadata

PATIENCE = 60.0


def test_metadata_moves_in_both_directions(servers: JavaServers, tmp_path: Path) -> None:
    """Each import says what differs, makes it, and finds nothing the second time."""
    with (
        ferromq.Admin(servers.namesrv, timeout=PATIENCE) as java,
        ferromq.embedded(tmp_path) as mq,
        ferromq.Admin(mq.name_server.address, timeout=PATIENCE) as ours,
    ):
        java.create_topic("theirs", queues=3, message_type="FIFO")
        java.create_group("their-readers", fifo=True, retries=7, retry_delays=[1, 5])
        ours.create_topic("ours", queues=2, message_type="DELAY")
        ours.create_group("our-readers", retries=4)
        for source, target, topic, group in (
            (java, ours, "theirs", "their-readers"),
            (ours, java, "ours", "our-readers"),
        ):
            exported = source.export_metadata()
            text = exported.to_json()
            moved = Metadata(topics=exported.topics, groups=exported.groups)
            planned = target.import_metadata(moved, dry_run=True)
            assert {(change.kind, change.name) for change in planned.changes} >= {("topic", topic), ("group", group)}
            made = target.import_metadata(Metadata.from_json(text))
            assert not [change for change in made.changes if change.error and change.kind in {"topic", "group"}]
            again = target.import_metadata(Metadata.from_json(text))
            assert [change for change in again.changes if change.error is None] == []
            there = target.export_metadata()
            assert there.topics[topic] == exported.topics[topic]
            # All but ferromq's own options, and its name server's lease.
            shared = {name for name in exported.broker_options["*"] if not name.islower()}
            assert {"transactionCheckMax", "regionId", "recallMessageEnable"} < shared
            assert {name: there.broker_options["*"][name] for name in shared} == {
                name: exported.broker_options["*"][name] for name in shared
            }
            assert target.describe_group(group).retries == source.describe_group(group).retries
            assert target.describe_group(group).retry_policy == source.describe_group(group).retry_policy
