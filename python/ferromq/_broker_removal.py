"""
Taking a broker that will not come back out of the tables of name servers.

Its part of every order configuration goes, and in the place of its gRPC address stands that it is gone.
"""

from collections.abc import Callable, Mapping

from ferromq import _json
from ferromq._codes import RequestCode, ResponseCode
from ferromq._order_configuration import parts, text_of
from ferromq.errors import RequestError
from ferromq.namesrv.kv_config import GRPC_NAMESPACE, ORDER_NAMESPACE

GONE = "gone"
"""In the place of a gRPC address: an operator took the broker out for good."""
Ask = Callable[[str, RequestCode, Mapping[str, str], int], bytes]
"""Asks a name server; the last is a code that is no failure, without a body."""


def order_configurations(ask: Ask, address: str) -> dict[str, dict[str, int]]:
    """Return the order configurations at one name server, by topic."""
    body = ask(
        address,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        {"namespace": ORDER_NAMESPACE},
        ResponseCode.QUERY_NOT_FOUND,
    )
    table = _json.loads_object(body).get("table") or {} if body else {}
    return {topic: parts(str(text)) for topic, text in sorted(table.items()) if text}


def check_away(ask: Ask, address: str, broker_name: str) -> None:
    """Raise `RequestError` for a broker that is registered with a name server."""
    known = _json.loads_object(ask(address, RequestCode.GET_BROKER_CLUSTER_INFO, {}, 0))
    if broker_name in (known.get("brokerAddrTable") or {}):
        raise RequestError(
            f"the broker {broker_name} is registered with {address}; stop it first, or take its write permission "
            "(permission = 4), which takes it out of order configurations by itself"
        )


def take_out(ask: Ask, address: str, broker_name: str) -> list[str]:
    """Take a broker out of the tables of one name server, and return the topics that counted it."""
    topics = []
    for topic, queues in order_configurations(ask, address).items():
        if broker_name in queues:
            fields = {"namespace": ORDER_NAMESPACE, "key": topic}
            rest = text_of({name: count for name, count in queues.items() if name != broker_name})
            ask(address, RequestCode.PUT_KV_CONFIG, {**fields, "value": rest}, 0)
            topics.append(topic)
    fields = {"namespace": GRPC_NAMESPACE, "key": broker_name, "value": GONE}
    ask(address, RequestCode.PUT_KV_CONFIG, fields, 0)
    return topics
