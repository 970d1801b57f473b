"""Dead letters that are sent again by servers that are slow, do not answer, or answer half."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import ferromq
from ferromq import OutcomeUnknown, RequestError, RequestTimeout
from ferromq.admin import DeadLetter, calls
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode

ROUTE = {
    "queueDatas": [{"brokerName": "a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}],
    "brokerDatas": [{"brokerName": "a", "cluster": "c", "brokerAddrs": {"0": "h:1"}}],
}
STORED = (0, None, {"queueId": "0", "queueOffset": "7"}, b"")


def letter(number: int, topic: str = "orders") -> DeadLetter:
    """Return a dead letter of a topic."""
    properties = {"DLQ_ORIGIN_TOPIC": topic}
    message: Any = SimpleNamespace(
        message_id=f"m{number}",
        properties=properties,
        sys_flag=0,
        flag=0,
        born_timestamp=0,
        body=b"",
        queue_id=0,
        queue_offset=number,
    )
    return DeadLetter("billing", message, "h:1")


class Servers:
    """Stands for an administrator's client; *send* answers a send, and *find* is asked before a route."""

    def __init__(self, send: Callable[[], Any], find: Callable[[str], None] = lambda _topic: None) -> None:
        self._send, self._find = send, find

    def call(self, _address: str, code: int, fields: dict[str, str], *_: Any, **__: Any) -> Any:
        """Answer."""
        if code == RequestCode.SEND_MESSAGE:
            return self._send()
        self._find(fields["topic"])
        return 0, None, {}, java_json.dumps(ROUTE)


def resent(servers: Servers, letters: list[DeadLetter]) -> list[ferromq.admin.ResentLetter]:
    """Send letters again."""
    admin = ferromq.Admin("n:1")
    client: Any = servers
    admin._calls._client = client
    return admin.resend_dead_letters(letters)


def test_the_timeout_bounds_each_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are."""
    now = [0.0]
    monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def send() -> Any:
        now[0] += 6
        return STORED

    found = resent(Servers(send), [letter(number) for number in range(5)])
    assert [(each.queue_offset, each.error) for each in found] == [(7, None)] * 5


def test_letters_behind_one_whose_server_does_not_answer_are_not_sent() -> None:
    """Their results say so; the outcome of that one is unknown."""
    answers = iter([STORED])

    def send() -> Any:
        for answer in answers:
            return answer
        raise RequestTimeout("h:1 is silent")

    found = resent(Servers(send), [letter(number) for number in range(4)])
    assert [each.is_skipped for each in found] == [False, False, True, True]
    assert [type(each.error) for each in found] == [type(None), RequestTimeout, RequestError, RequestError]
    assert "m3 was not sent, as a server did not answer: h:1 is silent" in str(found[3].error)


def test_a_letter_whose_queues_are_not_known_is_not_sent() -> None:
    """As its name server does not answer: it is in no topic for certain."""

    def find(topic: str) -> None:
        if topic == "clicks":
            raise RequestTimeout("n:1 is silent")

    found = resent(Servers(lambda: STORED, find), [letter(0), letter(1, "clicks"), letter(2)])
    assert [(each.is_skipped, type(each.error)) for each in found[1:]] == [(True, RequestError)] * 2
    assert found[0].error is None


@pytest.mark.parametrize("fields", [{}, {"queueId": "0"}, {"queueId": "0", "queueOffset": "x"}])
def test_an_answer_without_a_place_leaves_the_outcome_unknown(fields: dict[str, str]) -> None:
    """The error names the server, and the results of the other letters are there."""
    answers = iter([STORED, (0, None, fields, b""), STORED])
    first, half, last = resent(Servers(lambda: next(answers)), [letter(number) for number in range(3)])
    assert (first.error, last.error) == (None, None)
    assert isinstance(half.error, OutcomeUnknown)
    assert "h:1 accepted dead letter m1, but answered SEND_MESSAGE without a number" in str(half.error)
