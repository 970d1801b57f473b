"""
An administrator's day with RocketMQ's `mqadmin`, or with `ferromq mqadmin`, and the facts in the output.

The same steps run against Apache RocketMQ and against ferromq. Times, ports and counts of memory differ from run to run
and are no facts; names, offsets, permissions, numbers of queues and codes of failures are. Two tools print nearly the
same about one cluster: see `alike`.
"""

import contextlib
import io
import re
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from compat_peer import Clients

from ferromq.cli.mqadmin import app

BROKER: Final = "broker-a"
CLUSTER: Final = "DefaultCluster"
Facts = Callable[[str], object]
Tool = Callable[..., str]
"""Runs a command, and returns what it printed."""
FAILED: Final = "Exception"
"""What only a command that failed prints."""
READS: Final = frozenset(
    {
        *("topicRoute", "topicStatus", "topicClusterList", "topicList", "statsAll", "clusterList", "brokerStatus"),
        *("getBrokerConfig", "getNamesrvConfig", "getConsumerConfig", "consumerProgress", "brokerConsumeStats"),
        *("consumerConnection", "consumerStatus", "producerConnection", "producer"),
        *("queryMsgByKey", "queryMsgByUniqueKey", "queryMsgById", "queryMsgByOffset", "queryCq", "printMsg"),
    }
)
"""The commands that change nothing."""

_NOISE = re.compile(r"\|-(INFO|WARN) in |^\s+at |^\s*\.\.\. \d+ more|^For more information|^See https")
_MASKS = (
    (re.compile(r"\d+\.\d+\.\d+\.\d+:\d+"), "ADDRESS"),
    (re.compile(r"\b[0-9A-F]{32,56}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?"), "TIME"),
    (re.compile(r"\b1[0-9]{12}\b"), "TIME"),
    (re.compile(r"DESC: .*"), ""),
    # Offsets are committed every few seconds.
    (re.compile(r"trackType=(CONSUMED|NOT_CONSUME_YET)"), "trackType=KNOWN"),
)


def lines(text: str) -> list[str]:
    """Return the lines with facts, one blank between words, with varying values masked."""
    found = []
    for line in text.splitlines():
        if _NOISE.search(line):
            continue
        for pattern, mask in _MASKS:
            line = pattern.sub(mask, line)  # noqa: PLW2901 (mask after mask)
        if words := line.split():
            found.append(" ".join(words))
    return found


_PRINTING = threading.Lock()
_MOMENTS = re.compile(
    r"\(\d+,\d+ms(\|\d+,\d+ms)?\)"
    r"|-?\d+\.\d+(ms|w)?|\b\d+ms|\d{13}(?=/)|(?<=lastUpdateTimestamp=)\d+|(?<=trackType=)(CONSUMED|NOT_CONSUME_YET)"
    r"|\b\d+(?=-\d+\()"  # how late the timer is, in seconds
)


def own(*words: str) -> str:
    """Run `ferromq mqadmin`, and return what it printed; an exit code other than 0 as an exception."""
    printed = io.StringIO()
    # consumerStatus writes files where it is run.
    with (
        _PRINTING,
        tempfile.TemporaryDirectory() as directory,
        contextlib.chdir(directory),
        contextlib.redirect_stdout(printed),
    ):
        code = app.run(words)
    return printed.getvalue() + (f"{FAILED}: exit code {code}" if code else "")


def alike(words: str, text: str) -> object:
    """Return what does not change from one moment to the next; the order is that of hash tables."""
    if FAILED in text:
        return "failed"
    if words.startswith("brokerStatus"):
        return sorted(line.partition(":")[0].strip() for line in text.splitlines() if not _NOISE.search(line))
    found = []
    for line in text.splitlines():
        if not _NOISE.search(line) and line.strip():
            steady = _MOMENTS.sub("NOW", line)
            if words.startswith("statsAll") or words == "consumerProgress":
                steady = re.sub(r"(?<=\s)\d+(?=\s|$)", "COUNT", steady)  # rates, and what is committed now and then
            steady = re.sub(r"\{[^{}]*\}", lambda match: "".join(sorted(match[0])), steady)
            found.append(" ".join(steady.split()))
    return sorted(found)


def unordered(text: str) -> list[str]:
    """Return the lines without their order, which is that of a hash table."""
    return sorted(lines(text))


def without_decimals(text: str) -> list[str]:
    """Return the lines without rates and delays, which depend on the moment."""
    return sorted(
        re.sub(r"\d+\.\d+(ms|w)?|\b\d+(?=-\d+\()|\(\d+,\d+ms(\|\d+,\d+ms)?\)", "RATE", line) for line in lines(text)
    )


def progress(text: str) -> list[str]:
    """Return a group's progress, without rates and without uncommitted pulls, which are not counted."""
    # The consumer may or may not have pulled its retry topic yet.
    facts = (line for line in without_decimals(text) if "Inflight Total" not in line and "%RETRY%" not in line)
    rows = (line.split() for line in facts)
    return [" ".join(words[:6] + words[7:]) if words[0] == "orders" else " ".join(words) for words in rows]


def keys(text: str) -> set[str]:
    """Return the first column of a table with `:` or `=`."""
    names = (re.split(r" ?[:=]( |$)", line, maxsplit=1)[0] for line in lines(text) if re.search(r"[:=]( |$)", line))
    # A disk is named by its path.
    return {re.sub(r"/.*", "PATH", name) for name in names}


def succeeded(text: str) -> bool:
    """Say whether it worked."""
    return "Exception" not in text


def queues_and_bodies(text: str) -> list[str]:
    """Return the place of each printed message."""
    return sorted(re.findall(r"queueId=\d+, storeSize=\d+, queueOffset=\d+, sysFlag=\d+|m\w+Offset=\d+", text))


@dataclass(frozen=True)
class Step:
    """A command; `{broker}`, `{unique}` and `{id}` stand for the broker's address and the ids of the first message."""

    words: str
    facts: Facts = lines


@dataclass(frozen=True)
class Do:
    """An action of clients between commands."""

    name: str
    action: Callable[[Clients, str], object]


STEPS: Final[tuple[Step | Do, ...]] = (
    Step("updateTopic -c DefaultCluster -t orders -r 4 -w 4 -a +message.type=NORMAL"),
    Step("updateTopic -b {broker} -t single -r 2 -w 2"),
    Step("updateTopic -b {broker} -t single -r 2 -w 2 -a +message.type=PRIORITY"),
    Step("updateTopic -b {broker} -t single -r 2 -w 2 -a +message.type=LETTER", succeeded),
    Step("updateSubGroup -c DefaultCluster -g readers -r 3"),
    Step("sendMessage -t orders -p body -k key-1 -c tag-1 -b broker-a -i 0"),
    Do("producer", lambda clients, namesrv: clients.start("producer", "writer", namesrv, "writers")),
    Do("send", lambda clients, _: clients.send("writer", "selector", "orders", "m", 40, 4)),
    Do(
        "consumer",
        lambda clients, namesrv: clients.start("push", "reader", namesrv, "readers", "orders", "concurrent", 0),
    ),
    Do("consume", lambda clients, _: clients.wait_for("reader", 41)),
    Step("topicRoute -t orders"),
    Step("topicStatus -t orders"),
    Step("topicClusterList -t orders"),
    Step("producerConnection -g writers -t orders"),
    Step("producer -b {broker}", unordered),
    Step("consumerConnection -g readers", unordered),
    Step("consumerStatus -g readers", succeeded),
    Step("statsAll -t orders", succeeded),
    Step("statsAll -a", succeeded),
    Step("clusterList", without_decimals),
    Step("clusterList -m"),
    Step("queryMsgByKey -t orders -k key-1", lambda text: re.findall(r"ID +(\d+ +\d+)", "\n".join(lines(text)))),
    Step("queryMsgByUniqueKey -t orders -i {unique}"),
    Step("queryMsgByOffset -t orders -b broker-a -i 0 -o 0"),
    Step("queryMsgById -t orders -i {id} -f UTF-8"),
    Step("queryMsgById -t orders -i none"),
    Step("queryCq -t orders -q 0 -i 0 -c 3 -b {broker}"),
    Step("printMsg -t orders -d true", queues_and_bodies),
    Do("leave", lambda clients, _: clients.ask("close", "reader")),
    Step("consumerProgress -g readers", progress),
    Step("consumerProgress", succeeded),
    Step("brokerConsumeStats -b {broker}", unordered),
    Step("resetOffsetByTime -g readers -t orders -s 0", unordered),
    Step("consumerProgress -g readers ", progress),
    Step("skipAccumulatedMessage -g readers -t orders", unordered),
    Step("consumerProgress -g readers  ", progress),
    Step("cloneGroupOffset -s readers -d others -t orders"),
    Step("updateSubGroup -c DefaultCluster -g others"),
    Step("cloneGroupOffset -s readers -d others -t orders "),
    Step("consumerProgress -g others", progress),
    Step("updateBrokerConfig -b {broker} -k defaultTopicQueueNums -v 6"),
    Step("updateKvConfig -s SPACE -k K -v V"),
    Step("deleteKvConfig -s SPACE -k K"),
    Step("updateOrderConf -t orders -m put -v broker-a:4"),
    Step("updateOrderConf -t orders -m get"),
    Step("updateOrderConf -t orders -m delete"),
    Step("wipeWritePerm -b broker-a", succeeded),
    Step("topicRoute -t orders "),
    Step("addWritePerm -b broker-a", succeeded),
    Step("topicRoute -t orders  "),
    Step("updateTopicPerm -t orders -c DefaultCluster -p 4"),
    Step("topicRoute -t orders   "),
    Step("getConsumerConfig -g readers", unordered),
    Step("deleteSubGroup -c DefaultCluster -g readers"),
    Step("deleteTopic -c DefaultCluster -t orders"),
    Step("topicRoute -t orders    "),
    Step("topicStatus -t none"),
    Step("consumerProgress -g none"),
    Step("queryMsgByKey -t none -k none"),
    Step("cleanUnusedTopic -b {broker}"),
    Step("cleanExpiredCQ -b {broker}"),
    Step("updateBrokerConfig -b {broker} -k brokerPermission -v nonsense", succeeded),
    Step("topicList", lambda text: set(lines(text))),
    Step("topicList -c", succeeded),
    Step("brokerStatus -b {broker}", keys),
    Step("getBrokerConfig -b {broker}", keys),
    Step("getNamesrvConfig", keys),
)


def run(
    clients: Clients, namesrv: str, broker: str, tool: Tool, second: Tool | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """
    Do all steps in their order, and return each command's output.

    Commands that change nothing are run by a *second* tool, too, and its outputs are returned beside.
    """
    printed: dict[str, str] = {}
    beside: dict[str, str] = {}
    ids = {"broker": broker, "unique": "none", "id": "none"}
    for step in STEPS:
        if isinstance(step, Do):
            step.action(clients, namesrv)
            continue
        words = [*step.words.format(**ids).split(), "-n", namesrv]
        printed[step.words] = _answered(tool, *words)
        if second is not None and words[0] in READS:
            beside[step.words] = second(*words)
        if words[0] == "sendMessage":
            ids["unique"] = _found(r"\b[0-9A-F]{32,56}\b", printed[step.words])
        elif words[0] == "queryMsgByOffset":
            ids["id"] = _found(r"OffsetID:\s+([0-9A-F]{32})\b", printed[step.words])
    clients.ask("close", "writer")
    return printed, beside


def _answered(tool: Tool, *words: str) -> str:
    """Run a command, and again if no answer came in time: a busy machine is no fact."""
    for _ in range(3):
        text = tool(*words)
        if "RemotingTimeoutException" not in text:
            break
    return text


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[match.lastindex or 0] if match else "none"
