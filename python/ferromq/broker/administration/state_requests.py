"""Requests that drain and stop the broker: ferromq's own code 9876001; see docs/reference/requests.md."""

from collections.abc import Callable
from datetime import timedelta

from ferromq._ferromq import Request
from ferromq.broker.cluster.drain import RETIRED, RETIRING, Drain
from ferromq.protocol import java_json
from ferromq.protocol.remoting import Answer, BadRequest, integer, required, success

_STATES = ("draining", "serving", "retiring", "retired", "stopped")
_LONGEST_MS = 24 * 3_600_000


class StateRequests:
    """Answers request 9876001. *stop* makes the process stop the broker; None: the program around it does that."""

    def __init__(self, drain: Drain, stop: Callable[[], object] | None) -> None:
        self._drain = drain
        self._stop = stop

    def change(self, request: Request) -> Answer:
        """
        Change the state to the field `state`.

        It is draining (with `quietMs` and `timeoutMs`), serving, retiring (the body may name ordered topics that leave
        their order configurations), retired, or stopped.
        """
        wanted = required(request.fields, "state")
        if wanted not in _STATES:
            raise BadRequest(f"the header field state is {wanted[:100]!r}; it may be {', '.join(_STATES)}")
        self._check(wanted)
        if wanted == "draining":
            self._drain.begin(_duration(request, "quietMs"), _duration(request, "timeoutMs"))
        elif wanted == RETIRING:
            self._drain.retire(_topics(bytes(request.body)))
        elif wanted == RETIRED:
            self._drain.leave()
        elif wanted == "serving":
            self._drain.end()
        elif self._stop is None:
            raise BadRequest("this broker runs inside of a program, which alone can stop it")
        else:
            self._stop()
        return success(
            {"state": self._drain.state if wanted != "stopped" else wanted, "quietMs": str(self._drain.quiet_ms)}
        )

    def _check(self, wanted: str) -> None:
        """Raise `BadRequest` for a state that does not follow the present one."""
        state = self._drain.state
        if self._drain.is_final and wanted in {"serving", RETIRING}:
            raise BadRequest("this broker stops after its drain, which cannot be ended any more; start it again")
        if state == RETIRED and wanted in {"serving", "draining"}:
            raise BadRequest("this broker is retired and has left its name servers; stop it, or start it again")
        if wanted == RETIRED and state not in {RETIRING, RETIRED}:
            raise BadRequest(f"this broker is {state}; it leaves its name servers only after it was retiring")


def _topics(body: bytes) -> list[str]:
    """Return the names in `{"topics": [...]}`; an empty body names none."""
    try:
        found = java_json.loads_object(body)["topics"] if body else []
    except (ValueError, KeyError) as error:
        raise BadRequest('the body is no JSON in the form {"topics": [names]}') from error
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise BadRequest('the body is no JSON in the form {"topics": [names]}')
    return found


def _duration(request: Request, name: str) -> timedelta:
    value = integer(request.fields, name)
    if not 0 <= value <= _LONGEST_MS:
        raise BadRequest(f"the header field {name} is {value}; it may be 0 to {_LONGEST_MS} milliseconds, a day")
    return timedelta(milliseconds=value)
