"""
Taking a broker that will not come back out of the tables of name servers.

Its part of every order configuration goes, and in the place of its gRPC address stands that it is gone.
"""

from collections.abc import Callable, Mapping

from ferromq.errors import RequestError
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.namespaces import GRPC_NAMESPACE, ORDER_NAMESPACE
from ferromq.protocol.order_configuration import all_parts, parts, with_part, without

GONE = "gone"
"""In the place of a gRPC address: an operator took the broker out for good."""
Ask = Callable[[str, RequestCode, Mapping[str, str], int], bytes]
"""Asks a name server; the last is a code that is no failure, without a body."""


def start_or_take_out(broker_name: str) -> str:
    """Return what to do about a broker that is away."""
    return (
        f"start it, or take it out for good: ferromq.Admin(...).take_out_broker({broker_name!r}), "
        f"or mqadmin updateKvConfig -s {GRPC_NAMESPACE} -k {broker_name} -v {GONE}"
    )


def order_configurations(ask: Ask, address: str) -> dict[str, dict[str, int]]:
    """Return the order configurations at one name server, by topic."""
    return {topic: parts(text) for topic, text in _table(ask, address).items()}


def _table(ask: Ask, address: str) -> dict[str, str]:
    body = ask(
        address,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        {"namespace": ORDER_NAMESPACE},
        ResponseCode.QUERY_NOT_FOUND,
    )
    table = java_json.loads_object(body).get("table") or {} if body else {}
    return {topic: str(text) for topic, text in sorted(table.items()) if text}


def _put(ask: Ask, address: str, topic: str, text: str) -> None:
    ask(address, RequestCode.PUT_KV_CONFIG, {"namespace": ORDER_NAMESPACE, "key": topic, "value": text}, 0)


def forget_order(ask: Ask, address: str, topic: str, cluster: str | None) -> None:
    """
    Take the brokers of a cluster, or all, out of the order configuration of a topic that was deleted there.

    ferromq's name server does it by itself, RocketMQ's does not.
    """
    text = _table(ask, address).get(topic)
    if text is None:
        return
    members = _clusters(ask, address) if cluster is not None else {}
    goes = members.pop(cluster or "", set())
    rest = without(text, goes, set().union(*members.values()))
    if rest != text:
        _put(ask, address, topic, rest)


def _clusters(ask: Ask, address: str) -> dict[str, set[str]]:
    known = java_json.loads_object(ask(address, RequestCode.GET_BROKER_CLUSTER_INFO, {}, 0))
    return {str(name): set(members) for name, members in (known.get("clusterAddrTable") or {}).items()}


def check_away(ask: Ask, address: str, broker_name: str) -> None:
    """Raise `RequestError` for a broker that is registered with a name server."""
    known = java_json.loads_object(ask(address, RequestCode.GET_BROKER_CLUSTER_INFO, {}, 0))
    if broker_name in (known.get("brokerAddrTable") or {}):
        raise RequestError(
            f"the broker {broker_name} is registered with {address}; stop it first, or take its write permission "
            "(permission = 4), which takes it out of order configurations by itself"
        )


def take_out(ask: Ask, address: str, broker_name: str) -> list[str]:
    """Take a broker out of the tables of one name server, and return the topics that counted it."""
    topics = []
    for topic, text in _table(ask, address).items():
        if broker_name in all_parts(text):
            _put(ask, address, topic, with_part(text, broker_name, 0))
            topics.append(topic)
    fields = {"namespace": GRPC_NAMESPACE, "key": broker_name, "value": GONE}
    ask(address, RequestCode.PUT_KV_CONFIG, fields, 0)
    return topics
