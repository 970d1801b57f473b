"""Requests to brokers and name servers as steps of a plan, and what their refusals mean."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from ferromq.core.request_plans import Answer
from ferromq.core.request_plans import Links as AnyLinks
from ferromq.core.requests import Await, Plan, refusal
from ferromq.errors import (
    ConnectionFailed,
    FerromqError,
    GroupNotFound,
    IllegalFilter,
    ServerError,
    Throttled,
    Unsupported,
)
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.endpoints import WHICH_PORT_OF_NAMESRV

if TYPE_CHECKING:
    from concurrent.futures import Future

_SLACK = 1.0
"""Seconds beyond its own time limit after which a call that did not end is given up."""
_FIRST_NUMBERED = 212
"""The number of RocketMQ's 4.0.0-SNAPSHOT; from there each patch release has two numbers, the snapshot's first."""
VERSION_5 = 412
"""The number of RocketMQ's 5.0.0-SNAPSHOT."""
FROM_5 = "RocketMQ's brokers have it from 5.0 on, and all brokers of ferromq"
_NEEDS: Mapping[int, str] = {
    RequestCode.POP_MESSAGE: f"a receive needs it: {FROM_5}. Upgrade the broker, or pull by offset",
}


class Links(AnyLinks, Protocol):
    """Connections over remoting that keep what peers say of themselves."""

    def version(self, address: str) -> int | None:
        """Return RocketMQ's number of the version of the server at *address*; None: it has not answered yet."""


def version_name(number: int | None) -> str:
    """Return a version of RocketMQ as people write it, such as `4.9.4`."""
    if number is None or number < _FIRST_NUMBERED:
        return "an unknown version" if number is None else "a version before 4.0"
    release = (number - _FIRST_NUMBERED) // 2
    return f"{4 + release // 100}.{release // 10 % 10}.{release % 10}"


class Calls:
    """Calls servers over remoting."""

    def __init__(self, links: Links) -> None:
        self.links = links

    def begin(
        self, address: str, code: RequestCode, fields: Mapping[str, str], timeout: float, body: bytes = b""
    ) -> "Future[Answer]":
        """Begin a call of a broker, to be awaited by `end`."""
        return self.links.call(address, code, fields, body, timeout)

    def end(
        self,
        future: "Future[Answer]",
        asked: tuple[str, RequestCode],
        timeout: float,
        accepted: Collection[int] = (ResponseCode.SUCCESS,),
    ) -> Plan[Answer]:
        """Wait for the answer of *asked*: an address and a request. Raises the error of a code not *accepted*."""
        answer: Answer = yield Await(future, timeout + _SLACK)
        if answer[0] not in accepted:
            raise self.refused(*asked, answer)
        return answer

    def call(
        self,
        address: str,
        code: RequestCode,
        fields: Mapping[str, str],
        timeout: float,
        *,
        accepted: Collection[int] = (ResponseCode.SUCCESS,),
    ) -> Plan[Answer]:
        """Call a broker. Raises the error of a code not *accepted*."""
        future = self.begin(address, code, fields, timeout)
        return (yield from self.end(future, (address, code), timeout, accepted))

    def call_name_server(
        self,
        address: str,
        code: RequestCode,
        fields: Mapping[str, str],
        timeout: float,
        accepted: Collection[int] = (ResponseCode.SUCCESS,),
    ) -> Plan[Answer]:
        """Call a name server. Raises the error of a code not *accepted*, and `Unsupported` at a broker."""
        future = self.links.call(address, code, fields, b"", timeout, is_broker=False)
        try:
            return (yield from self.end(future, (address, code), timeout, accepted))
        except Unsupported as error:
            text = (
                f"{address} is a broker, which does not know {code.name} ({code}); name servers listen on port 9876 by "
                f"default. Give one, or a broker's gRPC port (8081) as endpoint"
            )
            raise Unsupported(text, error.code, error.remark) from None
        except ConnectionFailed as error:
            if "closed the connection" not in str(error):
                raise
            raise ConnectionFailed(f"{error}; {WHICH_PORT_OF_NAMESRV}") from None

    def check_version(self, address: str, what: str) -> None:
        """Raise `Unsupported` for *what* at a broker of RocketMQ before 5.0, which would ignore it."""
        version = self.links.version(address)
        if version is not None and version < VERSION_5:
            raise Unsupported(f"the broker {address} has version {version_name(version)} and ignores {what}: {FROM_5}")

    def refused(self, address: str, code: RequestCode, answer: Answer) -> FerromqError:
        """Return the error of a refused request."""
        answered, remark = answer[0], answer[1] or ""
        text = f"{address} refused {code.name}: {remark or f'code {answered}, without a remark'}"
        if answered == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            version = version_name(self.links.version(address))
            needs = _NEEDS.get(code, "upgrade the broker")
            return Unsupported(
                f"the broker {address} has version {version} and does not know {code.name} ({code}); {needs}",
                answered,
                remark,
            )
        if answered == ResponseCode.SERVICE_NOT_AVAILABLE and "disk full" not in remark:
            return ServerError(text, answered, remark)  # it starts, stops or is a slave: another broker may do it
        kinds = {
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotFound,
            ResponseCode.SUBSCRIPTION_PARSE_FAILED: IllegalFilter,
            ResponseCode.POLLING_FULL: Throttled,
            ResponseCode.FLOW_CONTROL: Throttled,
        }
        kind = next((kind for number, kind in kinds.items() if number == answered), None)
        return refusal(address, code.name, answered, answer[1]) if kind is None else kind(text, answered, remark)


def number(answer: Answer, name: str, address: str) -> int:
    """Return a whole number among the fields of an answer. Raises `ServerError` without one."""
    value = answer[2].get(name, "")
    try:
        return int(value)
    except ValueError:
        raise ServerError(f"{address} answered {name}={value[:40]!r}; a whole number is expected") from None
