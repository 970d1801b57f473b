"""What the command line reads: files of contexts, lines of JSON, and times."""

import base64
import contextlib
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.cli.administration import times
from ferromq.cli.administration.contexts import Context, Contexts, parse
from ferromq.cli.administration.messages import parse_line
from ferromq.cli.administration.output import age, visible
from ferromq.errors import ConfigError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["body", "body_base64", "keys", "tag", "properties", "message_group", "topic", "other"])


def file(environment: dict[str, str]) -> Contexts:
    """Read the file of contexts."""
    return Contexts.load(environment)


def test_contexts_are_kept_in_a_file_of_their_owner(tmp_path: Path) -> None:
    """A file that others can read, or that is something else, is refused with the way out."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    contexts = file(environment)
    assert contexts.known == {}
    contexts.known["prod"] = Context(namesrv="h:9876", tls_trust="/ca.pem", namespace="shop")
    contexts.current = "prod"
    contexts.save()
    path = tmp_path / "ferromq" / "contexts.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["contexts.json"]
    again = file(environment)
    assert (again.current, again.known) == ("prod", contexts.known)
    with pytest.raises(ConfigError, match="there is no context 'test'; known are: prod"):
        again.find("test")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        file(environment)
    path.chmod(0o600)
    path.write_text("[]")
    with pytest.raises(ConfigError, match=r"no file of contexts: .*; correct or remove it"):
        file(environment)
    other = tmp_path / "other.json"
    assert file({"FERROMQ_CONTEXTS": os.fspath(other)}).path == other


@given(st.binary(max_size=100) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_contexts_or_a_value_error(content: bytes) -> None:
    """Nothing else is raised."""
    with contextlib.suppress(ValueError):
        parse(content)


@given(st.dictionaries(st.sampled_from([*Context.__dataclass_fields__, "more"]), JSON, max_size=4))
def test_any_fields_are_a_context_or_a_value_error(fields: dict[str, object]) -> None:
    """And a context has one address."""
    try:
        _, known = parse(json.dumps({"contexts": {"c": fields}}).encode())
    except ValueError:
        return
    assert (known["c"].namesrv is None) != (known["c"].endpoint is None)


def test_a_line_of_json_is_a_message() -> None:
    """The fields that `tail --json` prints beside it are taken, unknown ones are refused."""
    line = {"body": "tea", "keys": ["o-1"], "tag": "new", "properties": {"a": "b"}, "topic": "orders", "queue_id": 0}
    message = parse_line(json.dumps(line).encode())
    assert (message.body, message.keys, message.tag) == (b"tea", ("o-1",), "new")
    encoded = base64.b64encode(b"\xff").decode()
    assert parse_line(json.dumps({"body_base64": encoded}).encode()).body == b"\xff"
    for wrong, text in (
        (b"[]", "a JSON object"),
        (b'{"body": "a", "bodi": 1}', "unknown field 'bodi'"),
        (b'{"tag": "a"}', "one of body and body_base64"),
        (b'{"body": 1}', "no text"),
    ):
        with pytest.raises(ValueError, match=text):
            parse_line(wrong)


@given(st.binary(max_size=60) | st.dictionaries(FIELDS, JSON, max_size=4).map(lambda value: json.dumps(value).encode()))
def test_any_line_is_a_message_or_a_clear_error(line: bytes) -> None:
    """Nothing else is raised."""
    with contextlib.suppress(ValueError, TypeError):
        parse_line(line)


def test_a_time_is_absolute_or_so_long_ago() -> None:
    """Or milliseconds since 1970."""
    assert times.parse("2026-11-21T07:30+00:00") == datetime(2026, 11, 21, 7, 30, tzinfo=UTC)
    assert times.parse("1790000000000") == 1_790_000_000_000
    ago = times.parse("2h")
    assert isinstance(ago, datetime)
    assert timedelta(hours=2) <= datetime.now(UTC) - ago < timedelta(hours=3)
    for wrong in ("", "yesterday", "1969-01-01", "99999999d", "5 m", "9" * 30):
        with pytest.raises(ValueError, match="is no time as"):
            times.parse(wrong)


@given(st.text(max_size=30) | st.text("0123456789-:T+smhd", max_size=20))
def test_any_text_is_a_time_or_a_value_error(text: str) -> None:
    """Nothing else is raised, and a `datetime` has a zone."""
    try:
        found = times.parse(text)
    except ValueError:
        return
    assert isinstance(found, int) or found.tzinfo is not None


def test_text_of_others_gives_a_terminal_no_orders() -> None:
    """Characters that it would obey, or not show, are printed as escapes; the rest is as it was."""
    assert visible("\u00e9 \u4e2d") == "\u00e9 \u4e2d"
    assert visible("\x1b[2J\n\x9b\u202e\ud800") == r"\u001b[2J\n\u009b\u202e\ud800"
    assert visible("a\nb\r", "\n") == "a\nb\\r"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.0, "0 s"), (59.4, "59 s"), (185.0, "3 m 5 s"), (7800, "2 h 10 m"), (266_400, "3 d 2 h")],
)
def test_ages_are_for_people(seconds: float | None, text: str) -> None:
    """In two units."""
    assert age(seconds) == text
