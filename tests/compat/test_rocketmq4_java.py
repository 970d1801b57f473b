"""The administrator, the command line and the dashboard on servers of RocketMQ 4, which lack requests of RocketMQ 5."""

import json
from collections.abc import Iterator

import pytest
from compat_peer import JARS_4, Clients, missing
from dashboards import Visitor, served
from java_processes import JavaBroker4, JavaNameServer4, JavaServers
from waiting import eventually

import ferromq
from ferromq.cli import main as cli

PATIENCE = 60.0

pytestmark = pytest.mark.skipif(bool(missing(JARS_4)), reason=missing(JARS_4) or "")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServers]:
    """Run a name server and a broker of RocketMQ 4."""
    directory = tmp_path_factory.mktemp("old")
    with (
        JavaNameServer4(directory / "namesrv") as names,
        JavaBroker4(directory / "broker", names.address) as broker,
        ferromq.Admin(names.address, timeout=PATIENCE) as admin,
    ):
        # In its first seconds it fails to compute its rates.
        assert eventually(lambda: admin.cluster()[0].received_per_second is not None)
        yield JavaServers(names.address, broker.address)


@pytest.fixture
def admin(old: JavaServers) -> Iterator[ferromq.Admin]:
    """Yield an administrator."""
    with ferromq.Admin(old.namesrv, timeout=PATIENCE) as admin:
        yield admin


def test_topics_and_groups_are_administered(old: JavaServers, admin: ferromq.Admin) -> None:
    """Also a group that never read; what its broker cannot do is named."""
    admin.create_topic("four", queues=2)
    admin.create_topic("four", queues=2)
    with pytest.raises(ferromq.AlreadyExists, match="queues is 2, not 3"):
        admin.create_topic("four", queues=3)
    with pytest.raises(ferromq.Unsupported, match="RocketMQ 4, whose topics have no message type"):
        admin.create_topic("typed", message_type="fifo")
    admin.create_group("four")
    with ferromq.connect(namesrv=old.namesrv, timeout=PATIENCE) as mq, mq.producer() as producer:
        for number in range(6):
            receipt = producer.send("four", b"%d" % number, keys="k")
        with pytest.raises(ferromq.Unsupported, match="does not know POP_MESSAGE"):
            mq.consumer("four", "four").receive_many(1, wait=1)
    described = admin.describe_topic("four")
    assert (described.messages, described.brokers[0].read_queues, described.brokers[0].message_type) == (6, 2, None)
    assert {each.to_offset for each in admin.reset_offsets("four", "four", "begin")} == {0}
    assert admin.lag("four").messages == 6
    assert sum(each.skipped or 0 for each in admin.skip_backlog("four")) == 6
    assert admin.lag("four").messages == 0
    assert len(list(admin.browse("four"))) == 6
    assert eventually(lambda: admin.query_by_id("four", receipt.message_id) is not None)
    assert {"four"} <= admin.export_metadata().topics.keys()
    admin.alter_topic("four", queues=4)
    assert admin.describe_topic("four").brokers[0].read_queues == 4
    admin.delete_group("four")
    admin.delete_topic("four")
    assert "four" not in admin.topics()


def test_members_and_figures_are_told(old: JavaServers, admin: ferromq.Admin, clients: Clients) -> None:
    """RocketMQ 4 spells a name of its figures otherwise."""
    admin.create_topic("members", queues=1)
    clients.start("replier", "member", old.namesrv, "members", "members")
    try:
        assert eventually(lambda: [each.language for each in admin.members("members")] == ["JAVA"])
    finally:
        clients.ask("close", "member")
    (broker,) = admin.cluster()
    assert broker.version == "4.9.4"
    assert broker.received_per_second is not None


def test_commands_and_pages_work_there(old: JavaServers, capsys: pytest.CaptureFixture[str]) -> None:
    """Each page answers; what the broker has no request for is said."""

    def ran(*words: str) -> str:
        assert cli.main([*words, "--namesrv", old.namesrv, "--timeout", str(PATIENCE)]) == 0, capsys.readouterr()
        return capsys.readouterr().out

    ran("topic", "create", "commands", "--queues", "1")
    ran("group", "create", "commands")
    assert json.loads(ran("send", "commands", "two teas", "--key", "o-1", "--json"))["queue_offset"] == 0
    assert (
        json.loads(ran("tail", "commands", "--from", "begin", "--follow", "--count", "1", "--json"))["body"]
        == "two teas"
    )
    assert cli.main(["mqadmin", "updateTopic", "-n", old.namesrv, "-b", old.broker, "-t", "more"]) == 0
    assert "create topic to" in capsys.readouterr().out
    with served(old.namesrv, timeout=PATIENCE) as pages, Visitor(pages) as visitor:
        assert "4.9.4" in visitor.page("/")
        assert 'href="/topic?name=commands"' in visitor.page("/topics")
        assert ">1<" in visitor.page("/topic", name="commands")
        assert "No member is connected." in visitor.page("/group", name="commands")
        assert eventually(lambda: "two teas" in visitor.page("/messages", topic="commands", key="o-1"))
        assert "takes no messages with a delivery time" in visitor.page("/delayed")
        for path in (f"/broker?address={old.broker}", "/clients", "/transactions", "/dead-letters", "/configuration"):
            visitor.page(path)
