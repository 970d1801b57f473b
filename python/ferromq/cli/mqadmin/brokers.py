"""The commands of `mqadmin` for brokers, and for the tables and options of name servers."""

import threading
import time
from collections.abc import Mapping

from ferromq.admin import progress
from ferromq.admin.asking import Ask
from ferromq.admin.inventory import configuration
from ferromq.cli.mqadmin.options import Command, Given, flag, may, must, one_of
from ferromq.cli.mqadmin.session import Session
from ferromq.cli.mqadmin.times import HOUR_MS
from ferromq.errors import ConfigError, RequestError
from ferromq.protocol.codes import RequestCode
from ferromq.protocol.route import MASTER

_BROKER = "{:<22}  {:<22}  {:<4}  {:<22} {:<16}  {:>16}  {:>30}  {:<22}  {:>11}  {:<12}  {:<8}  {:>10}"
_BROKER_HEAD = "{:<22}  {:<22}  {:<4}  {:<22} {:<16}  {:>16}  {:>30}  {:<22}  {:<11}  {:<12}  {:<8}  {:<10}"
_TOTALS = "{:<16}  {:<32} {:>14} {:>14} {:>14} {:>14}"
_OPTION = "{:<50}=  {}"


def cluster_list(session: Session, given: Given) -> None:
    """Print all brokers, once or again and again."""
    never, seconds = threading.Event(), given.number("i", 1)
    if seconds < 1:
        raise ConfigError(f"-i is {seconds}; at least 1 second is expected")
    while True:
        _list_brokers(session, given)
        if "i" not in given:
            return
        never.wait(seconds)


def _list_brokers(session: Session, given: Given) -> None:
    if "m" in given:
        heads = "#Cluster Name", "#Broker Name", "#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday"
        session.say(_TOTALS.format(*heads))
    else:
        heads_of_load = "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)", "#Timer(Progress)", "#PCWait(ms)", "#Hour"
        heads_of_place = "#Cluster Name", "#Broker Name", "#BID", "#Addr"
        session.say(_BROKER_HEAD.format(*heads_of_place, *heads_of_load, "#SPACE", "#ACTIVATED"))
    for broker in session.names.brokers(given.get("c") or None):
        told = session.part(figures, session, broker.address) or {}
        if "m" in given:
            session.say(_TOTALS.format(broker.cluster, broker.name, *_totals(told)))
        else:
            place = broker.cluster, broker.name, broker.broker_id, broker.address
            session.say(_BROKER.format(*place, *_load(told)))


def figures(session: Session, address: str) -> dict[str, str]:
    """Return the figures of a broker, by RocketMQ's names."""
    return progress.runtime(Ask(session.calls, address, 1))


def _totals(told: Mapping[str, str]) -> list[int]:
    def between(kind: str, begin: str, end: str) -> int:
        found = [told.get(f"msg{kind}Total{moment}", "0") for moment in (begin, end)]
        return int(found[1]) - int(found[0])

    yesterday, today = ("YesterdayMorning", "TodayMorning"), ("TodayMorning", "TodayNow")
    return [between(kind, *span) for span in (yesterday, today) for kind in ("Put", "Get")]


def _load(told: Mapping[str, str]) -> list[str]:
    def rate(name: str) -> float:
        # A broker that has just started tells blanks.
        return float(next(iter((told.get(name) or "").split()), "0"))

    def pool(kind: str, default: str = "") -> str:
        size = told.get(f"{kind}ThreadPoolQueueSize", default)
        return f"{size},{told.get(f'{kind}ThreadPoolQueueHeadWaitTimeMills', default)}ms"

    timer = [float(told.get(f"timer{name}") or 0) for name in ("ReadBehind", "OffsetBehind", "CongestNum")]
    timer_rates = [float(told.get(f"timer{name}Tps") or 0) for name in ("Enqueue", "Dequeue")]
    earliest = told.get("earliestMessageTimeStamp")
    hours = 0.0 if not earliest else (time.time() * 1000 - int(earliest)) / HOUR_MS
    return [
        told.get("brokerVersionDesc", ""),
        f"{rate('putTps'):9.2f}({pool('send')})",
        f"{rate('getTransferredTps'):9.2f}({pool('pull')}|{pool('ack', 'N')})",
        f"{timer[0]:.0f}-{timer[1]:.0f}({timer[2] / 10_000:.1f}w, {timer_rates[0]:.1f}, {timer_rates[1]:.1f})",
        told.get("pageCacheLockTimeMills", ""),
        f"{hours:.2f}",
        f"{float(told.get('commitLogDiskRatio') or 0):.4f}",
        str(told.get("brokerActive", "false")).lower(),
    ]


def broker_status(session: Session, given: Given) -> None:
    """Print the figures of a broker, or of all of a cluster."""
    for address in session.targets(given, with_slaves=True):
        told = session.part(figures, session, address) or {}
        before = f"{address:<24} " if "c" in given else ""
        for name, value in sorted(told.items()):
            session.say(f"{before}{name:<32}: {value}")


def get_broker_config(session: Session, given: Given) -> None:
    """Print the options of a broker, or of all of a cluster."""
    if "b" in given:
        _print_options(session, given["b"], f"============{given['b']}============")
        return
    brokers = session.names.brokers(given["c"])
    masters = {broker.name: broker.address for broker in brokers if broker.broker_id == MASTER}
    for broker in sorted(brokers, key=lambda one: (one.name not in masters, one.name, one.broker_id)):
        title = f"Master: {broker.address}"
        if broker.broker_id != MASTER:
            title = f"My Master: {masters.get(broker.name, 'NO_MASTER')}=====Slave: {broker.address}"
        _print_options(session, broker.address, f"============{title}============")


def _print_options(session: Session, address: str, title: str) -> None:
    options = session.part(configuration, session.calls, address, RequestCode.GET_BROKER_CONFIG)
    if options is not None:
        session.say(title)
        for name, value in options.items():
            session.say(_OPTION.format(name, value))
        session.say()


def update_broker_config(session: Session, given: Given) -> None:
    """Change an option of a broker, or of all of a cluster."""
    body = f"{given['k']}={given['v']}\n".encode()
    for address in session.targets(given, with_slaves="a" in given):
        session.ask(address, RequestCode.UPDATE_BROKER_CONFIG, {}, body)
        session.say(f"update broker config success, {address}")


def clean_queues(session: Session, given: Given) -> None:
    """Delete the expired files of consume queues."""
    _clean(session, given, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)


def clean_topics(session: Session, given: Given) -> None:
    """Delete the queues of unknown topics."""
    _clean(session, given, RequestCode.CLEAN_UNUSED_TOPIC)


def _clean(session: Session, given: Given, code: RequestCode) -> None:
    chosen = [given]
    if "b" not in given and "c" not in given:
        chosen = [Given({"c": name}) for name in sorted({broker.cluster for broker in session.names.brokers(None)})]
    for one in chosen:
        for address in session.targets(one):
            session.ask(address, code)
    session.say("success")


def get_name_server_config(session: Session, _given: Given) -> None:
    """Print the options of each name server."""
    for address in session.names.name_servers():
        options = session.part(configuration, session.calls, address, RequestCode.GET_NAMESRV_CONFIG)
        if options is not None:
            session.say(f"============{address}============")
            for name, value in options.items():
                session.say(_OPTION.format(name, value))


def update_key_value(session: Session, given: Given) -> None:
    """Set a value in the tables of all name servers."""
    fields = {"namespace": given["s"], "key": given["k"], "value": given["v"]}
    session.names.everywhere(RequestCode.PUT_KV_CONFIG, fields)
    session.say("create or update kv config to namespace success.")


def delete_key_value(session: Session, given: Given) -> None:
    """Delete a value in the tables of all name servers."""
    session.names.everywhere(RequestCode.DELETE_KV_CONFIG, {"namespace": given["s"], "key": given["k"]})
    session.say("delete kv config from namespace success.")


def wipe_write_permission(session: Session, given: Given) -> None:
    """Take the write permission from all topics on a broker, on each name server."""
    _change_permission(session, given, RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipe")


def add_write_permission(session: Session, given: Given) -> None:
    """Give the write permission to all topics on a broker, on each name server."""
    _change_permission(session, given, RequestCode.ADD_WRITE_PERM_OF_BROKER, "add")


def _change_permission(session: Session, given: Given, code: RequestCode, verb: str) -> None:
    failure: RequestError | None = None
    for address in session.names.name_servers():
        start = f"{verb} write perm of broker[{given['b']}] in name server[{address}]"
        try:
            answer = session.part(session.calls.exchange, address, code, {"brokerName": given["b"]})
        except RequestError as error:
            answer, failure = None, error
        count = "Failed" if answer is None else f"OK, {answer[1].get(f'{verb}TopicCount', 0)}"
        session.say(f"{start} {count}")
    if failure is not None:
        raise failure


_BROKER_OPTION = may("b", "brokerAddr", "Broker address")
_KEYS = (must("s", "namespace", "set the namespace"), must("k", "key", "set the key name"))
_NAME = must("b", "brokerName", "broker name")

COMMANDS = (
    Command(
        "clusterList",
        "List cluster infos.",
        cluster_list,
        (
            flag("m", "moreStats", "Print more stats"),
            may("i", "interval", "specify intervals numbers, it is in seconds"),
            may("c", "clusterName", "which cluster"),
        ),
    ),
    Command(
        "brokerStatus",
        "Fetch broker runtime status data.",
        broker_status,
        one_of(_BROKER_OPTION, may("c", "clusterName", "which cluster")),
    ),
    Command(
        "getBrokerConfig",
        "Get broker config by cluster or special broker.",
        get_broker_config,
        one_of(may("b", "brokerAddr", "get which broker"), may("c", "clusterName", "get which cluster")),
    ),
    Command(
        "updateBrokerConfig",
        "Update broker's config.",
        update_broker_config,
        (
            may("b", "brokerAddr", "update which broker"),
            may("c", "clusterName", "update which cluster"),
            may("a", "updateAllBroker", "update all brokers include slave"),
            must("k", "key", "config key"),
            must("v", "value", "config value"),
        ),
    ),
    Command(
        "cleanExpiredCQ",
        "Clean expired ConsumeQueue on broker.",
        clean_queues,
        (_BROKER_OPTION, may("c", "cluster", "clustername")),
    ),
    Command(
        "cleanUnusedTopic",
        "Clean unused topic on broker.",
        clean_topics,
        (_BROKER_OPTION, may("c", "cluster", "cluster name")),
    ),
    Command("getNamesrvConfig", "Get configs of name server.", get_name_server_config, ()),
    Command(
        "updateKvConfig",
        "Create or update KV config.",
        update_key_value,
        (*_KEYS, must("v", "value", "set the key value")),
    ),
    Command("deleteKvConfig", "Delete KV config.", delete_key_value, _KEYS),
    Command(
        "wipeWritePerm",
        "Wipe write perm of broker in all name server you defined in the -n param.",
        wipe_write_permission,
        (_NAME,),
    ),
    Command(
        "addWritePerm",
        "Add write perm of broker in all name server you defined in the -n param.",
        add_write_permission,
        (_NAME,),
    ),
)
