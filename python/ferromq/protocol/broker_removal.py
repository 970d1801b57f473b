"""
Removes a broker that will not come back from the tables of name servers.

Its part of every order configuration is deleted, and its gRPC address is replaced by the mark `gone`.
"""

from collections.abc import Callable, Mapping

from ferromq.errors import RequestError
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.namespaces import GRPC_NAMESPACE, ORDER_NAMESPACE
from ferromq.protocol.order_configuration import all_parts, parts, with_part, without

GONE = "gone"
"""The mark in place of a gRPC address: an operator removed the broker for good."""
Ask = Callable[[str, RequestCode, Mapping[str, str], int], bytes]
"""Sends a request to a name server and returns the body. The last argument is a code that means an empty body."""


def start_or_take_out(broker_name: str) -> str:
    """Return what to do about a missing broker, for an error text."""
    return (
        f"start it, or remove it for good: ferromq.Admin(...).take_out_broker({broker_name!r}), "
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
    Remove the brokers of a cluster, or all, from the order configuration of a topic that was deleted there.

    RocketMQ's name server needs this; ferromq's does it by itself.
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


def mark(ask: Ask, address: str, broker_name: str) -> bool | None:
    """Return whether a name server has the mark `gone` in place of a broker's address; None: it knows neither."""
    fields = {"namespace": GRPC_NAMESPACE}
    body = ask(address, RequestCode.GET_KVLIST_BY_NAMESPACE, fields, ResponseCode.QUERY_NOT_FOUND)
    found = (java_json.loads_object(body).get("table") or {}).get(broker_name) if body else None
    return None if found is None else found == GONE


def check_away(ask: Ask, address: str, broker_name: str) -> None:
    """Raise `RequestError` if the broker is registered with a name server."""
    known = java_json.loads_object(ask(address, RequestCode.GET_BROKER_CLUSTER_INFO, {}, 0))
    if broker_name in (known.get("brokerAddrTable") or {}):
        raise RequestError(
            f"the broker {broker_name} is registered with {address}; stop it first, or remove its write permission "
            "(permission = 4), which also removes it from order configurations"
        )


def is_known(ask: Ask, address: str, broker_name: str) -> bool:
    """Whether the tables of a name server have a broker, or the mark that it was removed."""
    has_mark = mark(ask, address, broker_name) is not None
    return has_mark or any(broker_name in all_parts(text) for text in _table(ask, address).values())


def take_out(ask: Ask, address: str, broker_name: str) -> list[str]:
    """Remove a broker from the tables of one name server, and return the topics that had it."""
    topics = []
    for topic, text in _table(ask, address).items():
        if broker_name in all_parts(text):
            _put(ask, address, topic, with_part(text, broker_name, 0))
            topics.append(topic)
    fields = {"namespace": GRPC_NAMESPACE, "key": broker_name, "value": GONE}
    ask(address, RequestCode.PUT_KV_CONFIG, fields, 0)
    return topics
