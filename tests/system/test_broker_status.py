"""What `mqadmin brokerStatus`, the dashboard and rocketmq-exporter read of a broker: measured, in their formats."""

import json
import re
from collections.abc import Iterator

import pytest
from dispatching import dispatched
from remoting_peer import Peer

import ferromq
from ferromq.process.clock import Clock

RUNTIME_INFO, PULL, POP = 28, 11, 200_050
OWN_SUBSCRIPTION = 4
# Every key that RocketMQ 5.5.0 answers, but for those with a directory or a delay level in them.
KEYS = """
EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity
ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp brokerActive brokerVersionDesc
commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset commitLogMinOffset consumeQueueDiskRatio dispatchBehindBytes
dispatchMaxBuffer earliestMessageTimeStamp getFoundTps getMessageEntireTimeMax getMissTps getTotalTps getTransferredTps
litePullThreadPoolQueueCapacity litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize
msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
msgPutTotalYesterdayMorning pageCacheLockTimeMills pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills
pullThreadPoolQueueSize putLatency99 putLatency999 putMessageAverageSize putMessageDistributeTime
putMessageEntireTimeMax putMessageFailedTimes putMessageSizeTotal putMessageTimesTotal putTps
queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills
sendThreadPoolQueueSize startAcceptSendRequestTimeStamp timerCongestNum timerDequeueTps timerEnqueueTps
timerOffsetBehind timerReadBehind
"""
# What rocketmq-exporter parses as whole numbers; one that is missing makes it report nothing of the broker.
WHOLE = """
msgPutTotalTodayNow sendThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueHeadWaitTimeMills msgGetTotalTodayNow
queryThreadPoolQueueSize bootTimestamp msgPutTotalYesterdayMorning msgGetTotalYesterdayMorning pullThreadPoolQueueSize
commitLogMinOffset pullThreadPoolQueueHeadWaitTimeMills dispatchMaxBuffer brokerVersion pageCacheLockTimeMills
commitLogMaxOffset getMessageEntireTimeMax msgPutTotalTodayMorning putMessageTimesTotal msgGetTotalTodayMorning
sendThreadPoolQueueSize startAcceptSendRequestTimeStamp putMessageEntireTimeMax earliestMessageTimeStamp
remainTransientStoreBufferNumbs queryThreadPoolQueueCapacity dispatchBehindBytes putMessageSizeTotal
sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity
"""
NUMBERS = ("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize", "putLatency99", "putLatency999")
RATES = ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps")


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Run an embedded broker with a topic of one queue, whose time stands still."""
    with ferromq.embedded(clock=Clock.manual()) as embedded:
        with embedded.admin() as admin:
            admin.create_topic("orders", queues=1)
        yield embedded


@pytest.fixture
def peer(mq: ferromq.Embedded) -> Iterator[Peer]:
    """Connect a remoting client."""
    with Peer(mq.broker.address) as peer:
        yield peer


def status(peer: Peer) -> dict[str, str]:
    """Ask for the broker's status."""
    answer = peer.call(RUNTIME_INFO, {})
    assert answer.code == 0
    table: dict[str, str] = json.loads(answer.body)["table"]
    return table


def pull(peer: Peer, offset: int) -> int:
    """Pull without waiting, and return the code."""
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32"}
    more = {"sysFlag": str(OWN_SUBSCRIPTION), "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}
    return peer.call(PULL, {**fields, **more}).code


def pop(peer: Peer) -> int:
    """Pop without waiting, and return the code."""
    names = {"consumerGroup": "p", "topic": "orders", "queueId": "-1", "expType": "TAG", "exp": "*", "order": "false"}
    times = {"invisibleTime": "60000", "pollTime": "0", "bornTime": "1"}
    return peer.call(POP, {**names, **times, "maxMsgNums": "32", "initMode": "0"}).code


def rates(table: dict[str, str], name: str) -> list[float]:
    """Return the three rates of a name: over ten seconds, a minute and ten minutes."""
    return [float(part) for part in table[name].split(" ")]


def test_no_key_is_missing_and_each_has_the_form_that_tools_parse(peer: Peer) -> None:
    """Of RocketMQ 5.5.0, and those that rocketmq-exporter needs besides."""
    table = status(peer)
    assert not set(KEYS.split()) - table.keys()
    assert all(re.fullmatch(r"-?\d+", table[name]) for name in WHOLE.split()), {
        name: table.get(name) for name in WHOLE.split()
    }
    assert all(float(table[name]) >= -1 for name in NUMBERS)
    assert all(len(rates(table, name)) == 3 for name in RATES)
    assert re.fullmatch(r"Total : \d+\.\d [KMGT]iB, Free : \d+\.\d [KMGT]iB\.", table["commitLogDirCapacity"])
    assert re.fullmatch(r"\d+(\.\d)? ([KMGT]i)?B", table["remainHowManyDataToFlush"])
    assert re.fullmatch(r"(\[[^\] ]+\]:\d+ ){13}", table["putMessageDistributeTime"])
    assert re.fullmatch(r"\[ \d+ days, \d+ hours, \d+ minutes, \d+ seconds \]", table["runtime"])
    assert (table["brokerVersionDesc"], table["brokerVersion"]) == ("V5_5_0", "513")


def test_a_pool_that_is_not_there_holds_nothing(peer: Peer) -> None:
    """Its capacity is 0, too."""
    table = status(peer)
    of_pools = {name: value for name, value in table.items() if "Queue" in name and name != "consumeQueueDiskRatio"}
    assert len(of_pools) == 17
    assert set(of_pools.values()) == {"0"}


def test_puts_and_gets_move_the_numbers(mq: ferromq.Embedded, peer: Peer) -> None:
    """Puts by their time; reads that found something, and those that found nothing."""
    before = status(peer)
    counted = re.findall(r":(\d+)", before["putMessageDistributeTime"])
    with mq.producer() as producer:
        for number in range(5):
            producer.send("orders", str(number).encode())
    dispatched(mq)
    assert [pull(peer, offset) for offset in (0, 3, 5, 5, 5)] == [0, 0, 19, 19, 19]
    assert pop(peer) == 0
    after = status(peer)
    counts = re.findall(r":(\d+)", after["putMessageDistributeTime"])
    assert sum(map(int, counts)) == sum(map(int, counted)) + 5
    assert int(after["putMessageTimesTotal"]) == int(before["putMessageTimesTotal"]) + 5
    # From the sample before the first message on: the clock stands still meanwhile.
    assert rates(after, "getFoundTps") == [0.3] * 3
    assert rates(after, "getMissTps")[0] >= 0.3
    total = [
        found + missed for found, missed in zip(rates(after, "getFoundTps"), rates(after, "getMissTps"), strict=True)
    ]
    assert rates(after, "getTotalTps") == pytest.approx(total)
    assert rates(after, "getTransferredTps")[0] == pytest.approx((5 + 2 + 5) / 10)
    assert all(int(after[name]) >= 0 for name in ("putMessageEntireTimeMax", "getMessageEntireTimeMax"))


@pytest.mark.parametrize("flush", ["group", "each", "interval 100ms"])
def test_each_put_is_counted_once_whatever_the_flush_policy(flush: str) -> None:
    """Over both protocols, alone and together."""
    with ferromq.embedded(flush=flush) as mq:
        with mq.admin() as admin:
            admin.create_topic("orders", queues=2)
        before = sum(count for _, count in mq.broker.store.put_times())
        with mq.producer() as producer, Peer(mq.broker.address) as peer:
            for _ in range(3):
                producer.send("orders", b"x")
            fields = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
            for _ in range(4):
                assert peer.call(310, {**fields, "j": "0", "k": "false", "m": "false"}, b"x").code == 0
        assert sum(count for _, count in mq.broker.store.put_times()) == before + 7
