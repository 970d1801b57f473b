"""A scripted server, against which the client's plans run."""

from typing import Any

from ferromq._proto import messages as pb
from ferromq.core.plans import Common
from ferromq.core.requests import Arrive, Call, Identity, Join, Pause, Plan, Stream, T
from ferromq.core.routes import Routes, endpoints_message
from ferromq.errors import ConnectionFailed, FerromqError

SEED = "seed:8081"
ONE, TWO = "10.0.0.1:8081", "10.0.0.2:8081"
LOST = ConnectionFailed("the connection broke")


class Server:
    """Answers steps from a script, and moves time instead of waiting."""

    def __init__(self, *brokers: str) -> None:
        self.now = 0.0
        self.brokers = brokers or (ONE,)
        self.calls: list[Call | Stream] = []
        self.pauses: list[float] = []
        self.arrives: list[float] = []
        """How long each wait at several brokers lasted."""
        self.arrived: list[list[str]] = []
        """The names that these waits bring; then none."""
        self.queue_ids: dict[str, tuple[int, ...]] = dict.fromkeys(self.brokers, (0, 1))
        self.script: list[Any] = []
        """The answers to calls beside QueryRoute: bytes, packets, an error, or a function of the call."""
        self.route_error: FerromqError | None = None
        self.away: set[str] = set()
        """Endpoints that answer no QueryRoute."""
        self.common = Common(Identity(), (SEED,), 3.0, 3, Routes(lambda: self.now), now=lambda: self.now)

    def run(self, plan: Plan[T]) -> T:
        """Run a plan to its end."""
        try:
            step = next(plan)
            while True:
                try:
                    answer = self.take(step)
                except FerromqError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def take(self, step: Call | Stream | Join | Pause | Arrive) -> Any:
        """Answer one step."""
        if isinstance(step, Arrive):
            self.arrives.append(step.timeout)
            self.now += step.timeout
            return self.arrived.pop(0) if self.arrived else []
        if isinstance(step, Pause):
            self.pauses.append(step.seconds)
            self.now += step.seconds
            return None
        if isinstance(step, Join):
            return None
        self.calls.append(step)
        if step.method == "QueryRoute":
            answer = LOST if step.endpoint in self.away else self.route()
        else:
            answer = self.script.pop(0)
        if callable(answer):
            answer = answer(step)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def route(self) -> Any:
        """Answer with the queues of each broker, and one without write permission."""
        if self.route_error is not None:
            return self.route_error
        places = [
            (broker, queue_id, pb.Permission.READ_WRITE)
            for broker in self.brokers
            for queue_id in self.queue_ids[broker]
        ]
        places += [(broker, 9, pb.Permission.READ) for broker in self.brokers]
        queues = [
            pb.MessageQueue(
                id=queue_id,
                permission=permission,
                broker=pb.Broker(name=f"broker-{broker}", endpoints=endpoints_message([broker])),
            )
            for broker, queue_id, permission in places
        ]
        return pb.QueryRouteResponse(status=pb.Status(code=pb.OK), message_queues=queues).SerializeToString()

    def methods(self) -> list[str]:
        """Return the calls."""
        return [call.method for call in self.calls]


def sent(count: int = 1, code: int = pb.OK, text: str = "") -> bytes:
    """Return the answer to a send."""
    status = pb.Status(code=code, message=text)
    entries = [pb.SendResultEntry(status=status, offset=10 + index) for index in range(count if code == pb.OK else 0)]
    return pb.SendMessageResponse(status=status, entries=entries).SerializeToString()


def request_of(call: Call | Stream) -> pb.SendMessageRequest:
    """Return the decoded request of a send."""
    return pb.SendMessageRequest.FromString(call.request)
