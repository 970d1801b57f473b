"""The Markdown table of the matrix, and its errors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from differences import Reason
from programs_run import Verdict
from rows import Row

_LONG = 160
_NAMES = {"ours": "ours", "original": "the original", "both": "both sides"}


@dataclass(frozen=True)
class Result:
    """The results of a row on both sides."""

    row: Row
    original: Mapping[str, Verdict]
    ours: Mapping[str, Verdict]
    missing: str = ""
    """Why the client could not be fetched."""
    broken: str = ""
    """Why the row could not be run, although the client is there."""

    @property
    def name(self) -> str:
        """The client and its version."""
        return f"{self.row.client} {self.row.version}"

    def failing(self) -> list[str]:
        """Return the checks that failed on a side, or on both."""
        return [name for name in self.original if not (self.original[name].passed and self.ours[name].passed)]

    def fails(self, check: str) -> str:
        """Return the failing side of a check: `ours`, `original` or `both`; "" if it passed."""
        sides = {"original": self.original[check], "ours": self.ours[check]}
        failed = [side for side, verdict in sides.items() if not verdict.passed]
        return "both" if len(failed) == len(sides) else "".join(failed)

    def where_ours_fails(self) -> "Result":
        """Return it with failures of RocketMQ alone as passed."""
        passed = {name: self.ours[name] for name in self.original if self.fails(name) == "original"}
        return replace(self, original={**self.original, **passed})

    def seen(self, check: str) -> list[str]:
        """Return the text of the failing check."""
        return [each[check].seen for each in (self.original, self.ours) if not each[check].passed]

    def summary(self) -> str:
        """Return the numbers in one line."""
        if self.missing:
            return f"not fetched: {self.missing}"
        if self.broken:
            return f"broken: {self.broken}"
        return f"original {_passed(self.original)}, ours {_passed(self.ours)}, failing: {self.failing()}"


def print_table(results: Sequence[Result], reasons: Sequence[Reason], compat: str) -> bool:
    """Print the table and its errors; return whether there are none."""
    print(
        f"The original is Apache RocketMQ 5.5.0; ours runs with {f'compat={compat}' if compat else 'its defaults'}.\n"
    )
    print("| client | version | original | ours | differences |\n| --- | --- | --- | --- | --- |")
    for result in results:
        print("| " + " | ".join(_cells(result, reasons, compat)) + " |")
    print()
    found = wrong(results, reasons, compat)
    if found:
        print("Wrong:\n\n" + "\n".join(f"- {each}" for each in found) + "\n")
    return not found


def wrong(results: Sequence[Result], reasons: Sequence[Reason], compat: str) -> list[str]:
    """Return the errors, a sentence each."""
    return [each for result in results for each in _wrong(result, reasons, compat)]


def _cells(result: Result, reasons: Sequence[Reason], compat: str) -> list[str]:
    name = [result.row.client, result.row.version]
    if result.missing:
        return [*name, "-", "-", f"could not be fetched: {_cell(result.missing)}"]
    if result.broken:
        return [*name, "-", "-", f"**broken**: {_cell(result.broken)}"]
    texts = []
    for check in result.failing():
        reason = _reason(result, check, reasons, compat)
        why = reason.text() if reason else f"**no reason** ({_cell(_text(result, check))})"
        texts.append(f"`{check}` fails on {_NAMES[result.fails(check)]}; {why}")
    return [*name, _passed(result.original), _passed(result.ours), "<br>".join(texts) or "none"]


def _reason(result: Result, check: str, reasons: Sequence[Reason], compat: str) -> Reason | None:
    fitting = (each for each in reasons if each.check == check and each.covers(result.row, compat))
    return next((each for each in fitting if _applies(each, result)), None)


def _applies(reason: Reason, result: Result) -> bool:
    return reason.fails == result.fails(reason.check) and all(map(reason.explains, result.seen(reason.check)))


def _wrong(result: Result, reasons: Sequence[Reason], compat: str) -> Iterator[str]:
    if result.missing:
        yield f"{result.name} could not be fetched: {result.missing}"
        return
    if result.broken:
        yield f"{result.name} is broken: {result.broken}"
        return
    for check in result.failing():
        if _reason(result, check, reasons, compat) is None:
            where = _NAMES[result.fails(check)]
            yield f"{result.name}: `{check}` fails on {where}, without a reason: {_text(result, check)}"
    for reason in reasons:
        if reason.covers(result.row, compat) and not reason.sometimes and not _applies(reason, result):
            where = _NAMES[reason.fails]
            yield f"{result.name}: `{reason.check}` no longer fails on {where} as its reason says; take it out"


def _text(result: Result, check: str) -> str:
    """Return the text of a failing check, shortened."""
    texts = dict.fromkeys(text if len(text) <= _LONG else f"{text[:_LONG]}…" for text in result.seen(check))
    return " / ".join(texts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _passed(verdicts: Mapping[str, Verdict]) -> str:
    return f"{sum(verdict.passed for verdict in verdicts.values())} of {len(verdicts)}"
