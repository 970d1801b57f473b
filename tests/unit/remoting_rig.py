"""Scripted brokers and name servers of remoting, against which the client's verbs run; no socket."""

import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from hypothesis import strategies as st

from ferromq._proto import messages as pb
from ferromq.core.remoting.bridge import Bridge
from ferromq.core.request_plans import Answer
from ferromq.core.requests import Await, Call, Plan, Stream, T, duration, resource
from ferromq.errors import (
    FerromqError,
)
from ferromq.protocol.properties import format_properties

BROKER, NAMES = "10.0.0.1:10911", "10.0.0.9:9876"
INFO = "7 1700000000000 30000 3 0 broker-a 2 9"
NUMBERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


class FakeLinks:
    """Answers calls from a script, by code; None leaves a call open."""

    def __init__(self, answers: Mapping[int, Answer | None] | None = None) -> None:
        self.answers = {**(answers or {})}
        self.calls: list[tuple[int, dict[str, str], bytes]] = []
        self.open_calls: list[Future[Answer]] = []
        self.timeouts: list[float] = []
        self.number: int | None = 513

    def call(
        self,
        _address: str,
        code: int,
        fields: Mapping[str, str],
        body: bytes,
        timeout: float,
        *,
        is_broker: bool = True,
    ) -> "Future[Answer]":
        """Note the call, and answer it."""
        self.timeouts.append(timeout)
        self.calls.append((code, dict(fields), body))
        future: Future[Answer] = Future()
        answer = self.answers.get(code, (0, None, {}, b""))
        if answer is None:
            self.open_calls.append(future)
        else:
            future.set_result(answer)
        return future

    def open(self, _address: str) -> "Future[None]":
        """Be open at once."""
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def version(self, _address: str) -> int | None:
        """Return that of all servers."""
        return self.number

    def fields(self, code: int) -> list[dict[str, str]]:
        """Return the fields of each request with a code."""
        return [fields for asked, fields, _ in self.calls if asked == code]


class Rig:
    """A bridge with scripted connections and a clock."""

    def __init__(self, answers: Mapping[int, Answer | None] | None = None, settings: pb.Settings | None = None) -> None:
        self.now = 100.0
        self.links = FakeLinks(answers)
        self.settings = settings or pb.Settings(backoff_policy=pb.RetryPolicy(max_attempts=3))
        self.told: list[pb.Settings] = []
        self.bridge = Bridge(self.links, (NAMES,), lambda: self.settings, self.told.append, lambda: self.now)

    def call(self, method: str, request: Any, response: type[Any], endpoint: str = BROKER) -> Any:
        """Return the response of a verb."""
        step = Call(endpoint, method, request.SerializeToString(), 3.0)
        return response.FromString(run(self.bridge.answer(step)))

    def receive(self, **options: Any) -> list[pb.ReceiveMessageResponse]:
        """Return the responses of a receive."""
        answer = run(self.bridge.answer(receive_step(**options)))
        return [pb.ReceiveMessageResponse.FromString(packet) for packet in answer.packets]


def run(plan: Plan[T]) -> T:
    """Run a plan whose futures are done."""
    try:
        step = next(plan)
        while True:
            assert isinstance(step, Await)
            try:
                answer = step.future.result(0)
            except FerromqError as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def receive_step(topic: str = "orders", tags: str = "*") -> Stream:
    """Return the step of a receive."""
    request = pb.ReceiveMessageRequest(
        group=resource("billing"),
        message_queue=pb.MessageQueue(topic=resource(topic), id=-1, broker=pb.Broker(name="broker-a")),
        filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression=tags),
        batch_size=100,
        invisible_duration=duration(30),
        long_polling_timeout=duration(20),
        attempt_id="again",
    )
    return Stream(BROKER, "ReceiveMessage", request.SerializeToString(), 25.0)


def record(
    offset: int = 0,
    topic: str = "orders",
    tag: str | None = None,
    times: int = 0,
    properties: Mapping[str, str] | None = None,
) -> bytes:
    """Return a record in RocketMQ's format."""
    body, name = b"body", topic.encode()
    text = format_properties({**({"TAGS": tag} if tag else {}), **(properties or {})}).encode()
    host = bytes([127, 0, 0, 1]) + (10911).to_bytes(4)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    head = struct.pack(
        ">IIiiqqiq8sq8siqi", 0xDAA320A7, crc, 0, 0, offset, 100 + offset, 0, 1, host, 2, host, times, 0, 4
    )
    rest = head + body + len(name).to_bytes(1) + name + len(text).to_bytes(2) + text
    return (4 + len(rest)).to_bytes(4) + rest


def popped(*records: bytes, **fields: str) -> Answer:
    """Return the answer to a pop."""
    told = {"popTime": "1700000000000", "invisibleTime": "30000", "reviveQid": "3", **fields}
    return 0, None, told, b"".join(records)


def message(number: int = 0, **system: Any) -> pb.Message:
    """Return a message to send."""
    properties = pb.SystemProperties(message_id=f"ID{number}", queue_id=1, **system)
    return pb.Message(topic=resource("orders"), system_properties=properties, body=b"body%d" % number)


def sent(rig: Rig, *messages: pb.Message) -> pb.SendMessageResponse:
    """Send messages."""
    found = rig.call("SendMessage", pb.SendMessageRequest(messages=messages), pb.SendMessageResponse)
    assert isinstance(found, pb.SendMessageResponse)
    return found
