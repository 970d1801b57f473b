"""
Writes the synchronous modules of the client from those for asyncio; with `--check` it fails if one is out of date.

A module for asyncio is written by hand. This changes its docstrings by `WORDS` and its text by `CODE`, in their order;
ruff sorts the imports, removes unused ones, and formats the result. What cannot be equal lies in modules of the same
interface (`MODULES`), or is marked in the source:

    left_out = 1  # async
    # sync: put_in = 1
"""

import re
import subprocess
import sys
from pathlib import Path
from textwrap import fill

import async_admin

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "ferromq"
WIDTH = 120

GENERATED = {
    "aio/_handling.py": "client/handling.py",
    "aio/consumer.py": "client/consumer.py",
    "aio/producer.py": "client/producer.py",
    "aio/reader.py": "client/reader.py",
    "aio/connecting.py": "connecting.py",
    "admin/admin.py": "aio/admin.py",
}
"""The source and the target. Of the administrator the synchronous one is written by hand, see `async_admin`."""

MODULES = {
    "aio._ahead": "client.receive_ahead",
    "aio._checks": "client.transactions",
    "aio._closing": "client.closing",
    "aio._connection": "client.client",
    "aio._direct_receives": "client.direct_receives",
    "aio._direct_sends": "client.direct_sends",
    "aio._leases": "client.leases",
    "aio._push": "client.push",
    "aio._send_all": "client.send_all",
    "aio._submitted": "client.submitted",
    "aio.admin": "admin",
}
"""Modules of the same interface, beside those of `GENERATED`."""

WORDS = {
    "(it|each) belongs to the loop of its first use": "thread-safe",
    "Use it in an `async with`, or await `close`": "Use it in a `with`, or call `close`",
    ", on the loop": ", from any thread",
    "in as many tasks": "on as many threads",
    r"\btask(s?)\b": r"thread\1",
    ", and are then cancelled; cancelling `run` cancels them at once": "",
    "It runs on the loop": "It runs on the sending thread",
    "on the producer's loop and awaited if it is a coroutine function": "on a thread of its own",
    "asked for from the first use on": "asked for from the start",
    " [*]messages[*] may be an asynchronous iterable, too.": "",
    "([*]max_pending_bytes[*] are on their way)[.]": r"\1, but not in a callback of such a future.",
    "a handler that cannot be awaited": "an asynchronous handler, and for one whose result would have to be awaited",
} | {there: here for here, there in async_admin.WORDS.items()}
"""What differs in docstrings."""

CODE = {
    r"^.*  # async\n": "",
    r"^( *)# sync: ": r"\1",
    r"\basync (def|with|for)\b": r"\1",
    r"\bawait ": "",
    r"\b__a(enter|exit|iter|next)__\b": r"__\1__",
    r"\bAsync(Client|Iterator|ProducerOptions)\b": r"\1",
    r"\bAwaitable\[[^]]*\] \| ": "",
    r"\bAwaitable\[(\w+)\]": r"\1",
    r" \| AsyncIterable\[[^]]*\]": "",
    r"\b(call|check)_async\b": r"\1_sync",
    r"\b_client\.base\b": "_client",
    r"\bheld\.is_over = True\b": "held.leave()",
    r"\basyncio\.(Event|Lock)\b": r"threading.\1",
    r"^import asyncio$": "import threading",
    r"^from asyncio import Future$": "from concurrent.futures import Future",
    r"\"aio\.": '"',
    r"\bferromq\.aio\.(?=connect\b|[A-Z])": "ferromq.",
}

_DOCSTRING = re.compile(r'^( +)"""(\n?)(.+?)"""$', re.MULTILINE | re.DOTALL)


def replaced(text: str, rules: dict[str, str]) -> str:
    """Return a text after all rules."""
    for pattern, replacement in rules.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def synchronous(text: str) -> str:
    """Return the text of a synchronous module, before it is formatted."""
    pairs = {source: target for source, target in GENERATED.items() if source.startswith("aio/")}
    twins = MODULES | {_module(source): _module(target) for source, target in pairs.items()}
    imports = {rf"\bferromq\.{re.escape(module)}\b": f"ferromq.{twin}" for module, twin in twins.items()}
    return replaced(with_words(text, WORDS | CODE), CODE | imports)


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def with_words(text: str, rules: dict[str, str]) -> str:
    """Return a module with rules applied to its docstrings; a paragraph that they change is filled anew."""

    def paragraph(indent: str, old: str) -> str:
        words = " ".join(old.split())
        new = replaced(words, rules)
        if new == words or old.startswith(indent + " "):
            return old
        lines = fill(new, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        return (lines if old.startswith(indent) else new) + (f"\n{indent}" if old.endswith(f"\n{indent}") else "")

    def docstring(found: re.Match[str]) -> str:
        indent, begin, inside = found.groups()
        paragraphs = "\n\n".join(paragraph(indent, each) for each in inside.split("\n\n"))
        return f'{indent}"""{begin}{paragraphs}"""'

    return _DOCSTRING.sub(docstring, text)


def generated(source: str, target: str) -> str:
    """Return what a target must hold."""
    text = f"# Generated from {source} by tools/sync_from_async.py: change that file, then run `make sync`.\n"
    written = (PACKAGE / source).read_text()
    if source.startswith("aio/"):
        text += synchronous(written)
    else:
        text += with_words(async_admin.asynchronous(written), async_admin.WORDS)
    for options in (["check", "--fix", "--select", "F401"], ["check", "--fix", "--select", "I"], ["format"]):
        command = [sys.executable, "-m", "ruff", *options, "--quiet", "--stdin-filename", str(PACKAGE / target), "-"]
        text = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout
    return text


def main() -> None:
    """Write the targets, or name those that are out of date."""
    is_check = "--check" in sys.argv[1:]
    stale = []
    for source, target in GENERATED.items():
        text, path = generated(source, target), PACKAGE / target
        if path.exists() and path.read_text() == text:
            continue
        stale.append(target)
        if not is_check:
            path.write_text(text)
    if is_check and stale:
        raise SystemExit(f"out of date: {', '.join(stale)}; change the file that each names, then run `make sync`")


if __name__ == "__main__":
    main()
