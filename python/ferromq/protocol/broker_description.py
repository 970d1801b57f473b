"""
DescribeBroker, a request of ferromq over gRPC: what administrators and producers need to know of a broker.

Request and answer are JSON; see docs/wire-format.md.
"""

from typing import NamedTuple

from ferromq.errors import Forbidden
from ferromq.protocol import java_json

DESCRIBE_BROKER = "DescribeBroker"
_OK, _UNAUTHORIZED = 20000, 40100


class BrokerDescription(NamedTuple):
    """A broker as it describes itself."""

    name: str
    cluster: str
    broker_id: int
    """0 for a master."""
    remoting: str
    """The advertised `host:port` of its remoting listener."""
    namesrv: tuple[str, ...]
    """The name servers that it registers with."""
    dedup_window_ms: int | None = None
    """Milliseconds for which it recognizes a repeated numbered message; None: an older broker, which does not say."""


def encode(description: BrokerDescription) -> bytes:
    """Return the answer that describes a broker."""
    return java_json.dumps({"code": _OK, "message": "OK", **description._asdict()})


def decode(answer: bytes) -> BrokerDescription:
    """Return the description in an answer. Raises `Forbidden`, and `ValueError` for bytes that are no such answer."""
    content = java_json.loads_object(answer)
    if content.get("code") == _UNAUTHORIZED:
        text = str(content.get("message"))
        raise Forbidden(text, _UNAUTHORIZED, text)
    if content.get("code") != _OK:
        raise ValueError(f"code {content.get('code')}: {content.get('message')}")
    name, cluster, broker_id, remoting, namesrv, window = (content.get(field) for field in BrokerDescription._fields)
    if not (isinstance(name, str) and isinstance(cluster, str) and isinstance(remoting, str)):
        raise ValueError("name, cluster or remoting is no text")  # noqa: TRY004 (one error for bad bytes)
    if type(broker_id) is not int:
        raise ValueError(f"broker_id is {broker_id!r}; expected a whole number")
    if not isinstance(namesrv, list) or not all(isinstance(address, str) for address in namesrv):
        raise ValueError("namesrv is no list of texts")
    if window is not None and type(window) is not int:
        raise ValueError(f"dedup_window_ms is {window!r}; expected a whole number")
    return BrokerDescription(name, cluster, broker_id, remoting, tuple(namesrv), window)
