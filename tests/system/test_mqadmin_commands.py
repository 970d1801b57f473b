"""`ferromq mqadmin` where RocketMQ's tool is no measure: brokers that are away, odd bodies and ids, and refusals."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from dispatching import dispatched
from fault_proxy import FaultProxy
from ports import kept_port

import ferromq
from ferromq._ferromq import StoredMessage
from ferromq.broker.controller import BrokerController
from ferromq.cli.main import main
from ferromq.cli.mqadmin import brokers, messages
from ferromq.cli.mqadmin.session import opened
from ferromq.config.broker import BrokerConfig
from ferromq.embedding import SMALL_FILES
from ferromq.errors import CorruptMessage

PATIENCE = 15.0


class Ran(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    error: str


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Yield an embedded broker."""
    with ferromq.embedded(name="a") as embedded:
        yield embedded


@pytest.fixture
def capture(capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """Return what captures the output of commands."""
    return capsys


def ran(capture: pytest.CaptureFixture[str], *words: str) -> Ran:
    """Run a command in this process."""
    code = main(["mqadmin", *words])
    printed = capture.readouterr()
    return Ran(code, printed.out, printed.err)


def stored(admin: ferromq.Admin, offset: int) -> StoredMessage:
    """Return a message once its queue has it, a moment after it is stored."""
    while not (found := admin.query_by_offset("orders", 0, offset)):
        pass
    return found[0]


def test_a_broker_is_asked_without_a_name_server(
    mq: ferromq.Embedded, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the command needs only that one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("FERROMQ_CONTEXTS", "FERROMQ_ENDPOINT", "NAMESRV_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert "brokerVersionDesc" in ran(capture, "brokerStatus", "-b", mq.remoting).out
    assert ran(capture, "topicList").code == 2
    monkeypatch.setenv("FERROMQ_ENDPOINT", mq.endpoint)
    assert "TBW102" in ran(capture, "topicList").out


def test_the_part_of_a_broker_that_is_away_is_told(tmp_path: Path, capture: pytest.CaptureFixture[str]) -> None:
    """The others' part is printed; a change is made at none of them, and named by the error."""
    with ferromq.embedded(name="a") as mq, kept_port() as listen, FaultProxy(listen) as proxy:
        given = {"store": tmp_path / "b", "name": "b", "namesrv": mq.namesrv, "grpc_listen": "127.0.0.1:0"}
        given |= {"listen": listen, "advertise": proxy.address, "fast_listen": "off", **SMALL_FILES}
        with closing(BrokerController(BrokerConfig.from_options(given))) as broker:
            address = ("-n", mq.namesrv)
            cluster = ("-c", broker.config.cluster)
            assert ran(capture, "updateSubGroup", "-g", "billing", *cluster, *address).code == 0
            proxy.refuse()
            for words in (
                ("clusterList",),
                ("clusterList", "-m"),
                ("getBrokerConfig", *cluster),
                ("brokerStatus", *cluster),
            ):
                found = ran(capture, *words, *address)
                assert (found.code, proxy.address in found.error, mq.remoting in found.out or "-m" in words) == (
                    4,
                    True,
                    True,
                ), found
            found = ran(capture, "getConsumerConfig", "-g", "billing", *address)
            assert (found.code, ":a==" in found.out, ":b==" in found.out) == (4, True, False)
            assert ran(capture, "updateTopic", "-t", "orders", *cluster, *address).code == 4


def test_messages_are_found_beside_a_broker_that_is_away(tmp_path: Path, capture: pytest.CaptureFixture[str]) -> None:
    """Though it is the first one asked; without a message its error is the answer."""
    with ferromq.embedded(name="b") as mq, kept_port() as listen, FaultProxy(listen) as proxy:
        given = {"store": tmp_path / "a", "name": "a", "namesrv": mq.namesrv, "grpc_listen": "127.0.0.1:0"}
        given |= {"listen": listen, "advertise": proxy.address, "fast_listen": "off", **SMALL_FILES}
        with closing(BrokerController(BrokerConfig.from_options(given))), mq.admin() as admin:
            admin.create_topic("orders", 1)
            with mq.producer() as producer:
                receipts = [producer.send("orders", b"x", keys="k") for _ in range(8)]
            receipt = next(each for each in receipts if each.broker_name == "b")
            dispatched(mq)
            proxy.refuse()
            address = ("-t", "orders", "-n", mq.namesrv)
            for words in (("queryMsgByKey", "-k", "k"), ("queryMsgByUniqueKey", "-i", receipt.message_id)):
                found = ran(capture, *words, *address)
                shown = receipt.message_id in found.out or "Message Body Path" in found.out
                assert (found.code, shown, proxy.address in found.error) == (4, True, True), found
            found = ran(capture, "queryMsgByKey", "-k", "other", *address)
            assert (found.code, proxy.address in found.error) == (4, True), found


@pytest.mark.parametrize("command", ["consumerProgress", "consumerStatus", "consumerConnection"])
def test_a_group_without_a_consumer_so_far_is_told(
    mq: ferromq.Embedded, capture: pytest.CaptureFixture[str], command: str
) -> None:
    """No command is named that makes a topic of retries."""
    with mq.admin() as admin:
        admin.create_group("billing")
    found = ran(capture, command, "-g", "billing", "-n", mq.namesrv)
    assert (found.code, "has had no consumer so far" in found.error) == (3, True), found
    assert "topic create" not in found.error


def test_a_backlog_is_skipped_under_consumers_unless_it_is_forbidden(
    mq: ferromq.Embedded, capture: pytest.CaptureFixture[str]
) -> None:
    """RocketMQ forces it by default."""
    with mq.producer() as producer, mq.consumer("billing", "orders") as consumer:
        producer.send("orders", b"tea")
        consumer.ack(consumer.receive(wait=PATIENCE))
        words = ("skipAccumulatedMessage", "-g", "billing", "-t", "orders", "-n", mq.namesrv)
        refused = ran(capture, *words, "-f", "false")
        assert (refused.code, "a connected consumer" in refused.error) == (1, True)
        one = ("resetOffsetByTime", *words[1:], "-s", "-1", "-b", mq.remoting, "-q", "0")
        assert ran(capture, *one, "-f", "false").code == 1
        assert "reset consumer offset to" in ran(capture, *one).out
        assert ran(capture, *words).code == 0
        for wrong in (("-s", "0", "-q", "0"), ("-s", "0", "-o", "1"), ("-s", "soon")):
            assert ran(capture, "resetOffsetByTime", *words[1:], *wrong).code == 2


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_a_compressed_body_is_printed_and_sent_again(
    mq: ferromq.Embedded,
    capture: pytest.CaptureFixture[str],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """As it was sent."""
    monkeypatch.setattr(messages, "_BODIES", tmp_path / "above" / "bodies")
    body = b"tea " * 1000
    with mq.admin() as admin:
        admin.create_topic("orders", queues=1)
    with mq.producer(compress=kind, compress_over=100) as producer:
        producer.send("orders", body)
    dispatched(mq)
    words = ("-t", "orders", "-n", mq.namesrv)
    found = ran(capture, "printMsg", *words)
    assert (found.code, body.decode() in found.out, found.error) == (0, True, "")
    with mq.admin() as admin:
        first = stored(admin, 0)
        by_id = ("queryMsgById", *words, "-i", first.offset_message_id)
        assert ran(capture, *by_id).code == 0
        assert (tmp_path / "above" / "bodies" / first.message_id).read_bytes() == body
        assert "sendStatus=SEND_OK" in ran(capture, *by_id, "-s", "true").out
        assert (stored(admin, 1).sys_flag, stored(admin, 1).plain_body) == (first.sys_flag, body)


def test_a_body_that_cannot_be_decompressed_is_told(mq: ferromq.Embedded, capture: pytest.CaptureFixture[str]) -> None:
    """The command goes on with the bytes as they are stored, and fails."""
    with mq.admin() as admin:
        admin.create_topic("orders", queues=1)
        with opened(mq.namesrv) as session:
            messages._send(session, "orders", ("a", 0), {"UNIQ_KEY": "id"}, b"as stored", sys_flag=1)
        with pytest.raises(CorruptMessage, match=r"message id of topic orders, queue 0, offset 0: .* as zlib"):
            _ = stored(admin, 0).plain_body
    found = ran(capture, "printMsg", "-t", "orders", "-n", mq.namesrv)
    assert (found.code, "BODY: as stored" in found.out) == (1, True)
    assert "it is shown as it is stored" in found.error


def test_the_id_of_a_stranger_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to a directory above, nor through a link that waits there."""
    monkeypatch.setattr(messages, "_BODIES", tmp_path / "above" / "bodies")
    messages._kept("first", b"")
    (tmp_path / "above" / "bodies" / "link").symlink_to(tmp_path / "other")
    for name in ("../../up", "..", "/etc/passwd", "link", "a\x00b"):
        path = messages._kept(name, b"x")
        assert (path.parent, path.is_symlink(), path.read_bytes()) == (tmp_path / "above" / "bodies", False, b"x")
    assert [each.name for each in tmp_path.iterdir()] == ["above"]
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "above", path.parent, path)] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("level", ["above", "above/bodies"])
@pytest.mark.parametrize("trap", ["link", "writable", "file"])
def test_no_body_goes_through_the_directory_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, trap: str
) -> None:
    """Who can write a directory on the way could choose which file is written or deleted."""
    monkeypatch.setattr(messages, "_BODIES", tmp_path / "above" / "bodies")
    (tmp_path / "victim" / "bodies").mkdir(parents=True)
    (tmp_path / "victim" / "bodies" / "kept").write_text("of another user")
    path = tmp_path / level
    path.parent.mkdir(exist_ok=True)
    if trap == "link":
        path.symlink_to(tmp_path / "victim" / ("bodies" if level.endswith("bodies") else ""))
    elif trap == "file":
        path.write_text("")
    else:
        path.mkdir()
        path.chmod(0o777)
    with pytest.raises(PermissionError, match=f"{path} is not a directory that you alone can write"):
        messages._kept("kept", b"x")
    assert (tmp_path / "victim" / "bodies" / "kept").read_text() == "of another user"


def test_what_a_broker_added_is_not_sent_again(mq: ferromq.Embedded, capture: pytest.CaptureFixture[str]) -> None:
    """A number of a write would make it a duplicate, a delay would hold it back."""
    with mq.admin() as admin:
        admin.create_topic("orders", queues=1)
        with mq.producer() as producer:
            producer.send("orders", b"tea", properties={"FERROMQ_SEQUENCE": "w/0/1/1", "colour": "green"})
        first = stored(admin, 0)
        words = ("-n", mq.namesrv, "-t", "orders", "-i", first.offset_message_id, "-s", "true")
        assert "SEND_OK" in ran(capture, "queryMsgById", *words).out
        again = stored(admin, 1)
    assert (again.body, again.properties["colour"]) == (b"tea", "green")
    assert "FERROMQ_SEQUENCE" not in again.properties


def test_a_user_without_its_secret_key_is_not_copied(
    capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker tells secret keys only with `show_passwords`; the copy would have none."""
    monkeypatch.setenv("FERROMQ_ACCESS_KEY", "root")
    monkeypatch.setenv("FERROMQ_SECRET_KEY", "a long secret")
    options = {"authentication_enabled": True, "initial_user": "root:a long secret"}
    with ferromq.embedded(**options) as mq:  # type: ignore[arg-type]
        words = ("copyUser", "-u", "root", "-f", mq.remoting, "-t", mq.remoting)
        found = ran(capture, *words)
        assert (found.code, found.out, "show_passwords" in found.error) == (1, "", True)
    with ferromq.embedded(**options, show_passwords=True) as mq:  # type: ignore[arg-type]
        assert ran(capture, *words[:3], "-f", mq.remoting, "-t", mq.remoting).code == 0


def test_a_message_is_sent_again(mq: ferromq.Embedded, capture: pytest.CaptureFixture[str]) -> None:
    """With its keys and its tag, by an id of its own."""
    with mq.admin() as admin:
        admin.create_topic("orders", queues=1)
    words = ("-n", mq.namesrv, "-t", "orders")
    assert "SEND_OK" in ran(capture, "sendMessage", *words, "-p", "two teas", "-k", "o-1", "-c", "new").out
    with mq.admin() as admin:
        first = stored(admin, 0)
        found = ran(capture, "queryMsgById", *words, "-i", first.offset_message_id, "-s", "true")
        assert "sendStatus=SEND_OK" in found.out
        second = stored(admin, 1)
    assert (second.body, second.keys, second.tag) == (b"two teas", ("o-1",), "new")
    assert second.message_id != first.message_id
    assert ran(capture, "topicStatus", *words, "-c", "DefaultCluster").code == 0
    for name in (("topicStatus",), ("consumerProgress", "-g", "billing"), ("queryMsgByKey", "-k", "o-1")):
        found = ran(capture, *name, *words, "-c", "elsewhere")
        assert (found.code, "no broker of the cluster elsewhere has the topic orders" in found.error) == (2, True)
    for options in (("-m", "true"), ("-i", "0")):
        assert ran(capture, "sendMessage", *words, "-p", "x", *options).code in {1, 2}
    assert ran(capture, "queryMsgByOffset", *words, "-b", "a", "-i", "0", "-o", "7").code == 3


def test_a_list_is_repeated_until_ctrl_c(
    mq: ferromq.Embedded, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is its end, as of a stream; for any other command it is an interruption."""
    assert ran(capture, "clusterList", "-i", "0", "-n", mq.namesrv).code == 2

    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(brokers, "_list_brokers", pressed)
    assert ran(capture, "clusterList", "-i", "1", "-n", mq.namesrv).code == 0
    assert ran(capture, "clusterList", "-n", mq.namesrv).code == 130
