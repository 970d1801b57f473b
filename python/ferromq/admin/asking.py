"""Asks several brokers, and goes on without those that do not answer."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ferromq.admin.calls import Calls
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

    def number(self, code: RequestCode, fields: dict[str, str], field: str, missing: int = 0) -> int:
        """
        Return a whole number in the header of the answer; -1 for the code *missing*.

        Raises `ServerError` for an answer without it.
        """
        answer, answered, _ = self._calls.exchange(self.address, code, fields, (missing,), share=self._share)
        if answer == missing and missing:
            return -1
        try:
            return int(answered[field])
        except (KeyError, ValueError) as error:
            raise ServerError(f"{self.address} answered {code.name} without a number {field}") from error

    def decoded(self, what: str, read: Callable[[], T]) -> T:
        """Return what *read* makes of an answer. Raises `ServerError` for one in another form."""
        try:
            return read()
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ServerError(f"{what} at {self.address} are malformed: {error!r:.200}") from error


def each(
    calls: Calls, addresses: Iterable[str], question: Callable[[Ask], T]
) -> tuple[list[tuple[str, T]], tuple[Unreachable, ...]]:
    """
    Return each broker's address and answer, and the brokers that did not answer.

    Raises the first failure if none answers.
    """
    asked: Sequence[str] = list(addresses)
    answers: list[tuple[str, T]] = []
    failures: list[Unreachable] = []
    for number, address in enumerate(asked):
        try:
            answers.append((address, question(Ask(calls, address, len(asked) - number))))
        except OutcomeUnknown as error:
            failures.append(Unreachable(address, error))
    if failures and not answers:
        raise failures[0].error
    return answers, tuple(failures)
