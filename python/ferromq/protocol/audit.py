"""
The audit log of administrative changes: a line for each, with user, certificate, address, request, subject and outcome.

A line names topics, groups, users and options, and never their values, which may be secrets.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from ferromq._ferromq import Request
from ferromq.process.limited_log import LimitedLog
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.remoting import Answer, Handler

_log = logging.getLogger("ferromq.audit")
_LINES = 1_000
"""The most lines in ten seconds."""
_limited = LimitedLog(_log, lines=_LINES)
_SHOWN = 500
"""The most characters of a value."""
_UNKNOWN = "-"

Subject: TypeAlias = Callable[[Request], Iterable[str]]
"""Returns what a request is about, as texts `name=value`."""


def _fields(*names: str) -> Subject:
    def read(request: Request) -> Iterator[str]:
        return (f"{name}={request.fields[name]}" for name in names if request.fields.get(name))

    return read


def _members(*paths: str) -> Subject:
    """Return the subject in the body, which is JSON: members such as `topicConfigList.topicName`, through lists."""

    def read(request: Request) -> list[str]:
        # A body that cannot be read was refused, and what nests deeply names nothing.
        with suppress(ValueError, RecursionError):
            content = java_json.loads_object(request.body)
            return [
                f"{path.rpartition('.')[2]}={value}" for path in paths for value in _values(content, path.split("."))
            ]
        return []

    return read


def _values(content: Any, path: list[str]) -> Iterator[str]:
    if isinstance(content, list):
        for item in content:
            yield from _values(item, path)
    elif path and isinstance(content, dict):
        yield from _values(content.get(path[0]), path[1:])
    elif not path and isinstance(content, str):
        yield content


def _options(request: Request) -> Iterator[str]:
    """Return the names of the options in the body, which has lines KEY=VALUE."""
    lines = request.body.decode(errors="replace").splitlines()
    return (f"option={name.strip()}" for name, separator, _ in (line.partition("=") for line in lines) if separator)


_OF_USER = _fields("username")
_OF_ACL = _fields("subject", "policyType", "resource")


_OF_ENTRY = {"resource": "resource", "actions": "actions", "sources": "sourceIps", "decision": "decision"}
"""What a line has of an entry of a policy, and its member in the body."""


def _policies(request: Request) -> Iterator[str]:
    yield from _OF_ACL(request)
    with suppress(ValueError, RecursionError):  # as in `_members`
        for policy in _objects(java_json.loads_object(request.body), "policies"):
            yield from (f"policyType={value}" for value in _values(policy, ["policyType"]))
            for entry in _objects(policy, "entries"):
                for name, member in _OF_ENTRY.items():
                    values = ",".join(_values(entry, [member]))
                    if values:
                        yield f"{name}={values}"


def _objects(content: Mapping[str, Any], member: str) -> list[dict[str, Any]]:
    found = content.get(member)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _user(request: Request) -> Iterator[str]:
    yield from _OF_USER(request)
    yield from _members("userType", "userStatus")(request)


CHANGES: Mapping[RequestCode, Subject] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: _fields("topic"),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _members("topicConfigList.topicName"),
    RequestCode.DELETE_TOPIC_IN_BROKER: _fields("topic"),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _members("groupName"),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _members("groupConfigList.groupName"),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _fields("groupName", "cleanOffset"),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _fields("group", "topic", "readable"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _fields("topic", "group", "timestamp", "queueId", "offset"),
    RequestCode.CLONE_GROUP_OFFSET: _fields("srcGroup", "destGroup", "topic"),
    RequestCode.SET_MESSAGE_REQUEST_MODE: _members("topic", "consumerGroup", "mode"),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _fields("topic", "consumerGroup", "clientId", "msgId"),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _fields("topic", "msgId"),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _fields(),
    RequestCode.CLEAN_UNUSED_TOPIC: _fields(),
    RequestCode.DELETE_EXPIRED_COMMITLOG: _fields(),
    RequestCode.UPDATE_BROKER_CONFIG: _options,
    RequestCode.CHANGE_BROKER_STATE: _fields("state", "quietMs", "timeoutMs"),
    RequestCode.RELOAD_CONFIG: _fields(),
    RequestCode.AUTH_CREATE_USER: _user,
    RequestCode.AUTH_UPDATE_USER: _user,
    RequestCode.AUTH_DELETE_USER: _OF_USER,
    RequestCode.AUTH_CREATE_ACL: _policies,
    RequestCode.AUTH_UPDATE_ACL: _policies,
    RequestCode.AUTH_DELETE_ACL: _OF_ACL,
    RequestCode.PUT_KV_CONFIG: _fields("namespace", "key"),
    RequestCode.DELETE_KV_CONFIG: _fields("namespace", "key"),
    RequestCode.UNREGISTER_BROKER: _fields("clusterName", "brokerName", "brokerId", "brokerAddr"),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _fields("brokerName"),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _fields("brokerName"),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _fields("topic"),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _fields("topic", "clusterName"),
    RequestCode.UPDATE_NAMESRV_CONFIG: _options,
}
"""The requests that change something, of brokers and name servers, and what each is about."""


def audited(
    code: RequestCode, handler: Handler, is_routine: Callable[[Request], bool] = lambda _request: False
) -> Handler:
    """
    Return *handler*, which raises nothing, with a line for each request if the code is one of `CHANGES`.

    A request that *is_routine* has no line: servers send it by themselves.
    """
    subject = CHANGES.get(code)
    if subject is None:
        return handler

    def handle(request: Request) -> Answer:
        if is_routine(request):
            return handler(request)
        answer = handler(request)
        # Without `readable` it is a query.
        if code is not RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN or request.fields.get("readable"):
            write(request, code.name, subject(request), _outcome(answer[0]))
        return answer

    return handle


def write(request: Request, name: str, subject: Iterable[str], outcome: str) -> None:
    """Write the line of a request."""
    text = "change request=%s user=%s certificate=%s peer=%s subject=%s outcome=%s"
    sender = (request.user or _UNKNOWN, request.certificate or _UNKNOWN, request.peer)
    shown = (_shown(value) for value in (*sender, " ".join(subject) or _UNKNOWN))
    _limited.log(logging.INFO, text, name, *shown, outcome)


def _outcome(code: int) -> str:
    with suppress(ValueError):
        return ResponseCode(code).name
    return str(code)


def _shown(value: str) -> "_Shown":
    return _Shown(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…")


class _Shown(str):
    """A text that a line quotes if it has blanks or anything but printable ASCII, and that JSON has as it is."""

    __slots__ = ()

    def __str__(self) -> str:
        is_plain = all("!" <= each <= "~" and each != '"' for each in self)
        return str.__str__(self) if is_plain else json.dumps(self)
