"""
Shows bodies to people: text, JSON with line breaks, or bytes in hex.

A body comes from a stranger, so the text of a page and the size of a decompressed body are bounded.
"""

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from ferromq._ferromq import StoredMessage

_COMPRESSED = 1
_KIND_SHIFT, _KIND_MASK = 8, 7
_ZLIB = (0, 3)
"""Kinds of compression in RocketMQ's system flag that are zlib's: 0 of producers before 5.0."""
_KINDS = {1: "LZ4", 2: "Zstandard"}
_MOST_SHOWN = 64 * 1024
_PREVIEW = 120
_HEX_SHOWN = 4096
_HEX_LINE = 16
_OPENING, _CLOSING = ("{", "["), ("}", "]")
_SIGN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
"""A part of JSON: a string, a sign, a number or a word."""


@dataclass(frozen=True, slots=True)
class Body:
    """A body as it is shown."""

    kind: str
    """`text`, `JSON`, `bytes`, or a kind of compression that is not undone here."""
    text: str
    size: int
    """Bytes as they are stored."""
    is_cut: bool
    """Whether it is longer than what is shown."""


def shown(message: StoredMessage) -> Body:
    """Return a body as a page shows it."""
    stored = message.body
    content, is_cut, kind = _plain(stored, message.sys_flag)
    if kind:
        return Body(kind, _hex(content), len(stored), len(content) > _HEX_SHOWN)
    text = _text(content, is_cut=is_cut)
    if text is None:
        return Body("bytes", _hex(content), len(stored), is_cut or len(content) > _HEX_SHOWN)
    pretty = None if is_cut else _json(text)
    return Body("text" if pretty is None else "JSON", pretty or text, len(stored), is_cut)


def preview(message: StoredMessage) -> str:
    """Return the begin of a body on one line."""
    content, is_cut, kind = _plain(message.body[: _MOST_SHOWN + 1], message.sys_flag)
    if kind:
        return f"{kind}, {len(message.body):,} bytes"
    text = _text(content, is_cut=is_cut)
    if text is None:
        return f"{content[:20].hex(' ')}{'…' if len(content) > 20 else ''}"  # noqa: PLR2004
    line = " ".join(text[: _PREVIEW * 4].split())
    return line if len(line) <= _PREVIEW else f"{line[: _PREVIEW - 1]}…"


def _plain(stored: bytes, sys_flag: int) -> tuple[bytes, bool, str]:
    """Return the begin of the body as it was sent, whether there is more, and the compression that is left."""
    if sys_flag & _COMPRESSED:
        kind = sys_flag >> _KIND_SHIFT & _KIND_MASK
        if kind not in _ZLIB:
            return stored, False, f"compressed by {_KINDS.get(kind, f'kind {kind}')}"
        try:
            stored = zlib.decompressobj().decompress(stored, _MOST_SHOWN + 1)
        except zlib.error:
            return stored, False, "damaged zlib"
    return stored[:_MOST_SHOWN], len(stored) > _MOST_SHOWN, ""


def _text(content: bytes, *, is_cut: bool) -> str | None:
    """Return UTF-8 that people can read; None for other bytes. The last character of a cut one may be in parts."""
    for end in (len(content), *((len(content) - back for back in (1, 2, 3)) if is_cut else ())):
        try:
            text = content[:end].decode()
        except UnicodeDecodeError:
            continue
        return text if all(each.isprintable() or each in "\n\r\t" for each in text) else None
    return None


def _json(text: str) -> str | None:
    """Return JSON with line breaks, each string and number as it was sent; None for other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    parts, size = [], 0
    for part in _indented(_SIGN.findall(text)):
        parts.append(part)
        size += len(part)
        if size > 4 * _MOST_SHOWN:
            return None
    return "".join(parts)


def _indented(signs: list[str]) -> Iterator[str]:
    """Yield the parts of valid JSON with blanks and line breaks between them."""
    depth, last = 0, ""
    for sign in signs:
        closes = sign in _CLOSING
        depth -= closes
        if last == "," or (last in _OPENING) != closes:
            yield "\n" + "  " * depth
        yield ": " if sign == ":" else sign
        depth += sign in _OPENING
        last = sign


def _hex(content: bytes) -> str:
    lines = []
    for start in range(0, min(len(content), _HEX_SHOWN), _HEX_LINE):
        part = content[start : start + _HEX_LINE]
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in part)  # noqa: PLR2004
        lines.append(f"{start:06x}  {part.hex(' '):<{3 * _HEX_LINE}} {text}")
    return "\n".join(lines)
