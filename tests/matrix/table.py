"""The Markdown table of the matrix, and what is wrong in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from differences import Reason
from programs_run import Verdict
from rows import Row

_LONG = 160


@dataclass(frozen=True)
class Result:
    """What the program of a row found on both sides."""

    row: Row
    original: Mapping[str, Verdict]
    ours: Mapping[str, Verdict]
    missing: str = ""
    """Why the client could not be fetched."""

    def differing(self) -> list[str]:
        """Return the checks that passed on one side alone."""
        return [name for name in self.original if self.original[name].passed != self.ours[name].passed]

    def fails(self, check: str) -> str:
        """Return the side on which a differing check failed."""
        return "original" if self.ours[check].passed else "ours"

    def seen(self, check: str) -> str:
        """Return what was seen where the check failed."""
        failed = self.original[check] if self.ours[check].passed else self.ours[check]
        text = failed.seen.replace("|", "\\|")
        return text if len(text) <= _LONG else f"{text[:_LONG]}…"

    def summary(self) -> str:
        """Return the numbers in one line."""
        if self.missing:
            return f"not fetched: {self.missing}"
        return f"original {_passed(self.original)}, ours {_passed(self.ours)}, differing: {self.differing()}"


def print_table(results: Sequence[Result], reasons: Sequence[Reason], compat: str) -> bool:
    """Print the table and what is wrong; say whether nothing is."""
    print(
        f"The original is Apache RocketMQ 5.5.0; ours runs with {f'compat={compat}' if compat else 'its defaults'}.\n"
    )
    print("| client | version | original | ours | differences |\n| --- | --- | --- | --- | --- |")
    for result in results:
        print("| " + " | ".join(_cells(result, reasons, compat)) + " |")
    print()
    both = [
        f"- {result.row.client} {result.row.version} `{name}`: {verdict.seen[:_LONG]}"
        for result in results
        for name, verdict in result.ours.items()
        if not verdict.passed and not result.original[name].passed
    ]
    if both:
        print("Fails on both sides alike:\n\n" + "\n".join(both) + "\n")
    wrong = [each for result in results for each in _wrong(result, reasons, compat)]
    if wrong:
        print("Wrong:\n\n" + "\n".join(f"- {each}" for each in wrong) + "\n")
    return not wrong


def _cells(result: Result, reasons: Sequence[Reason], compat: str) -> list[str]:
    name = [result.row.client, result.row.version]
    if result.missing:
        return [*name, "-", "-", f"could not be fetched: {result.missing}"]
    texts = []
    for check in result.differing():
        reason = _reason(result, check, reasons, compat)
        why = reason.text() if reason else f"**no reason** ({result.seen(check)})"
        texts.append(f"`{check}` fails on {_name(result.fails(check))}; {why}")
    return [*name, _passed(result.original), _passed(result.ours), "<br>".join(texts) or "none"]


def _reason(result: Result, check: str, reasons: Sequence[Reason], compat: str) -> Reason | None:
    fitting = (each for each in reasons if each.check == check and each.covers(result.row, compat))
    return next((each for each in fitting if each.fails == result.fails(check)), None)


def _wrong(result: Result, reasons: Sequence[Reason], compat: str) -> Iterator[str]:
    name = f"{result.row.client} {result.row.version}"
    if result.missing:
        yield f"{name} could not be fetched: {result.missing}"
        return
    differing = result.differing()
    for check in differing:
        if _reason(result, check, reasons, compat) is None:
            yield f"{name}: `{check}` fails on {_name(result.fails(check))}, without a reason: {result.seen(check)}"
    for reason in reasons:
        if reason.covers(result.row, compat) and not reason.sometimes:
            applies = reason.check in differing and result.fails(reason.check) == reason.fails
            if not applies:
                yield f"{name}: `{reason.check}` no longer fails on {_name(reason.fails)}; take its reason out"


def _passed(verdicts: Mapping[str, Verdict]) -> str:
    return f"{sum(verdict.passed for verdict in verdicts.values())} of {len(verdicts)}"


def _name(side: str) -> str:
    return "the original" if side == "original" else side
