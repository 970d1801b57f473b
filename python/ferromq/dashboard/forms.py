"""Reads queries and forms: texts, numbers, times. Their fields are bounded in number and length."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import parse_qsl

from ferromq.errors import FerromqError

_MOST_FIELDS = 300
_LONGEST_FIELD = 4096
_LARGEST = 2**63 - 1
T = TypeVar("T")


class WrongInput(FerromqError, ValueError):  # noqa: N818 (as the others)
    """A field of a query or form is wrong; the text says which."""


class Fields:
    """The fields of a query or a form."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs
        if any(len(value) > _LONGEST_FIELD for _, value in pairs):
            raise WrongInput(f"a field has more than {_LONGEST_FIELD:,} characters")

    @classmethod
    def parse(cls, content: bytes) -> "Fields":
        """Read `application/x-www-form-urlencoded`. Raises `WrongInput`."""
        try:
            text = content.decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
        except ValueError as error:
            raise WrongInput(
                f"the fields are malformed, or more than {_MOST_FIELDS:,}: {type(error).__name__}"
            ) from error
        return cls(pairs)

    def text(self, name: str) -> str:
        """Return a field without the blanks around it; empty if it is missing."""
        return self.raw(name).strip()

    def raw(self, name: str) -> str:
        """Return a field as it is; empty if it is missing."""
        return next((value for key, value in self._pairs if key == name), "")

    def needed(self, name: str) -> str:
        """Return a field. Raises `WrongInput` if it is missing or empty."""
        value = self.text(name)
        if not value:
            raise WrongInput(f"the field {name} is missing; fill it in")
        return value

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return [value for key, value in self._pairs if key == name]

    def number(self, name: str, *, least: int = 0) -> int | None:
        """Return a whole number; None if the field is missing or empty. Raises `WrongInput`."""
        text = self.text(name)
        if not text:
            return None
        if not text.isascii() or not text.isdecimal() or len(text) > len(str(_LARGEST)):
            raise WrongInput(f"{name} is {text!r:.40}; a whole number from {least} on is expected")
        value = int(text)
        if not least <= value <= _LARGEST:
            raise WrongInput(f"{name} is {text}; a whole number from {least} to {_LARGEST} is expected")
        return value

    def needed_number(self, name: str) -> int:
        """Return a whole number. Raises `WrongInput` if it is missing."""
        value = self.number(name)
        if value is None:
            raise WrongInput(f"the field {name} is missing; give a whole number")
        return value

    def choice(self, name: str, choices: Mapping[str, T]) -> T | None:
        """Return what an answer of a list means; None if the field is missing or empty. Raises `WrongInput`."""
        text = self.text(name)
        if not text:
            return None
        if text not in choices:
            raise WrongInput(f"{name} is {text!r:.40}; it may be {', '.join(filter(None, choices))}")
        return choices[text]

    def time(self, name: str) -> datetime | None:
        """Return a time in UTC; None if the field is missing or empty. Raises `WrongInput`."""
        text = self.text(name)
        if not text:
            return None
        try:
            found = datetime.fromisoformat(text)
            found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
            is_time = found.timestamp() >= 0
        except (ValueError, OverflowError):
            is_time = False
        if not is_time:
            raise WrongInput(f"{name} is {text!r:.40}; a time in UTC since 1970 is expected, as 2026-11-21T07:30")
        return found
