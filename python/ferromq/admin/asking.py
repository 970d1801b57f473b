"""Asks several brokers, and goes on without those that do not answer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ferromq._ferromq import StoredMessage, decode_records
from ferromq.admin.calls import Calls, decoded
from ferromq.admin.results import Unreachable
from ferromq.errors import OutcomeUnknown, ServerError
from ferromq.protocol.codes import RequestCode

T = TypeVar("T")


class Ask:
    """Asks one broker within its share of the time that is left, so that one that hangs does not use it all."""

    def __init__(self, calls: Calls, address: str, share: int) -> None:
        self._calls = calls
        self.address = address
        self._share = share

    def __call__(self, code: RequestCode, fields: dict[str, str], also: int = 0) -> bytes:
        """Return the body of the answer; the code *also* counts as success without a body."""
        return self._calls.ask(self.address, code, fields, also, share=self._share)

    def header(self, code: RequestCode, fields: dict[str, str], missing: int = 0) -> Mapping[str, str] | None:
        """Return the fields in the header of the answer; None for the code *missing*."""
        answer, answered, _ = self._calls.exchange(self.address, code, fields, (missing,), share=self._share)
        return None if answer == missing and missing else answered

    def number(self, code: RequestCode, fields: dict[str, str], field: str, missing: int = 0) -> int:
        """
        Return a whole number in the header of the answer; -1 for the code *missing*.

        Raises `ServerError` for an answer without it.
        """
        answered = self.header(code, fields, missing)
        if answered is None:
            return -1
        try:
            return int(answered[field])
        except (KeyError, ValueError) as error:
            raise ServerError(f"{self.address} answered {code.name} without a number {field}") from error

    def topic(self, name: str) -> Mapping[str, Any] | None:
        """Return the settings of a topic, in RocketMQ's fields; None if the broker has no such topic."""
        return self._calls.topic(self.address, name, self._share)

    def messages(self, body: bytes) -> list[StoredMessage]:
        """Return the messages of an answer. Raises `ServerError` for one in another form."""
        return self.decoded("messages", lambda: decode_records(body))

    def decoded(self, what: str, read: Callable[[], T]) -> T:
        """Return what *read* makes of an answer. Raises `ServerError` for one in another form."""
        return decoded(self.address, what, read)


def each(
    calls: Calls, addresses: Iterable[str], question: Callable[[Ask], T], *, later: int = 0
) -> tuple[list[tuple[str, T]], tuple[Unreachable, ...]]:
    """
    Return each broker's address and answer, and the brokers that did not answer.

    Leaves time for so many *later* questions. Raises the first failure if none answers.
    """
    asked: Sequence[str] = list(addresses)
    answers: list[tuple[str, T]] = []
    failures: list[Unreachable] = []
    for number, address in enumerate(asked):
        try:
            answers.append((address, question(Ask(calls, address, len(asked) - number + later))))
        except OutcomeUnknown as error:
            failures.append(Unreachable(address, error))
    if failures and not answers:
        raise failures[0].error
    return answers, tuple(failures)
