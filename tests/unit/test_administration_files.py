"""What the command line reads: files of contexts, lines of JSON, and times."""

import ast
import base64
import contextlib
import errno
import io
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ferromq
from ferromq.admin import DeadLetter, Unreachable, dead_letters
from ferromq.admin.inventory import found_broker
from ferromq.cli.administration import times
from ferromq.cli.administration.access import read_secret
from ferromq.cli.administration.contexts import Context, Contexts, parse
from ferromq.cli.administration.messages import _send_lines, message_batches, parse_line
from ferromq.cli.administration.output import fail, partial, plain, visible
from ferromq.dashboard.problems import problem
from ferromq.errors import (
    ConfigError,
    CorruptMessage,
    FerromqError,
    Forbidden,
    IllegalName,
    RequestError,
    RequestTimeout,
    TopicNotFound,
    UserNotFound,
)
from ferromq.files import atomic
from ferromq.terminal.commands import in_commands, use_namespace
from ferromq.terminal.formatting import age

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["body", "body_base64", "keys", "tag", "properties", "message_group", "topic", "other"])


@pytest.mark.parametrize("content", [b"key\nother\n", b"key\n\n", b"a\rb"])
def test_a_file_with_more_lines_is_no_secret(content: bytes) -> None:
    """A key with a line break would be taken, and match no other."""
    assert read_secret("ada", io.BytesIO(b"key\r\n")) == "key"
    with pytest.raises(ConfigError, match="has a line break; give --secret-file a file with one line"):
        read_secret("ada", io.BytesIO(content))


def test_an_unknown_broker_may_be_one_that_hung() -> None:
    """The error names the way out."""
    with pytest.raises(ConfigError, match=r"neither name nor address .*registers again within 60 s.*stop its process"):
        found_broker([], "b")


def file(environment: dict[str, str]) -> Contexts:
    """Read the file of contexts."""
    return Contexts.load(environment)


def test_contexts_are_kept_in_a_file_of_their_owner(tmp_path: Path) -> None:
    """A file that others can read, or that is something else, is refused with the way out."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert file(environment).known == {}
    with Contexts.changing(environment) as contexts:
        contexts.known["prod"] = Context(namesrv="h:9876", tls_trust="/ca.pem", namespace="shop")
        contexts.current = "prod"
    path = tmp_path / "ferromq" / "contexts.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in path.parent.iterdir()) == ["contexts.json", "contexts.json.lock"]
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


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_to_a_file_of_contexts_stays(tmp_path: Path, *, is_there: bool) -> None:
    """The file that it leads to is changed, or made."""
    link, real = tmp_path / "link.json", tmp_path / "real" / "contexts.json"
    environment = {"FERROMQ_CONTEXTS": os.fspath(link)}
    if is_there:
        with Contexts.changing({"FERROMQ_CONTEXTS": os.fspath(real)}) as contexts:
            contexts.known["a"] = Context(namesrv="h:9876")
    link.symlink_to(real)
    with Contexts.changing(environment) as contexts:
        contexts.known["b"] = Context(namesrv="h:9876")
    assert link.is_symlink()
    assert sorted(parse(real.read_bytes())[1]) == (["a", "b"] if is_there else ["b"])
    assert real.stat().st_mode & 0o777 == 0o600


def test_what_is_no_file_of_contexts_is_named(tmp_path: Path) -> None:
    """The variable is, too."""
    environment = {"FERROMQ_CONTEXTS": os.fspath(tmp_path)}
    with pytest.raises(ConfigError, match="is a directory; FERROMQ_CONTEXTS names the file of contexts"):
        file(environment)


@pytest.mark.parametrize("write", [atomic.put_file, atomic.replace_file])
def test_a_file_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    """The old content stays, without a new file beside it."""
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail_to_flush(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail_to_flush)
    with pytest.raises(OSError, match="No space"):
        write(path, b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"old")]


@pytest.mark.parametrize("write", [atomic.put_file, atomic.replace_file])
def test_a_new_file_is_not_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    """Another user of the directory may make it after what was left is removed."""
    other = tmp_path / "other"
    (tmp_path / "folder").mkdir()

    def link_instead(path: Path, *, missing_ok: bool = False) -> None:
        del missing_ok
        path.symlink_to(other)

    monkeypatch.setattr(Path, "unlink", link_instead)
    with pytest.raises(FileExistsError):
        write(tmp_path / "folder" / "file", b"secret")
    assert not other.exists()


def test_files_put_at_once_are_whole(tmp_path: Path) -> None:
    """Each process has a new file of its own."""
    path, together = tmp_path / "file", threading.Barrier(8)

    def put(number: int) -> None:
        together.wait()
        for _ in range(20):
            atomic.put_file(path, b"%d" % number * 100_000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(8)))
    content = path.read_bytes()
    assert content == content[:1] * 100_000
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd", "linked", "link to it"])
def test_an_open_file_is_written_at_its_end(tmp_path: Path, folder: str) -> None:
    """As `>> all.json` with `/dev/stdout` asks for."""
    path = tmp_path / "all.json"
    path.write_bytes(b"before\n")
    with path.open("ab") as file:
        number = str(file.fileno())
        (tmp_path / "linked").symlink_to("/dev/fd")
        (tmp_path / "link").symlink_to(f"linked/{number}")
        atomic.put_file(tmp_path / "link" if folder == "link to it" else tmp_path / folder / number, b"after\n")
        assert path.stat().st_ino == os.fstat(file.fileno()).st_ino
    assert path.read_bytes() == b"before\nafter\n"


def test_the_error_of_a_wrong_field_has_no_secret() -> None:
    """It goes to terminals and logs."""
    with pytest.raises(ValueError, match="secret_key of context a is no str") as caught:
        parse(b'{"contexts": {"a": {"namesrv": "h:1", "access_key": "root", "secret_key": ["very secret"]}}}')
    assert "very" not in str(caught.value)
    with pytest.raises(ConfigError, match="access_key is missing"):
        Context(namesrv="h:1", secret_key="very secret")
    assert "very" not in repr(Context(namesrv="h:1", access_key="root", secret_key="very secret"))


def test_changes_at_once_are_all_kept(tmp_path: Path) -> None:
    """Each waits for the one before it; one that fails changes nothing, and ends its lock."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    together = threading.Barrier(8)

    def add(number: int) -> None:
        together.wait()
        with Contexts.changing(environment) as contexts:
            contexts.known[f"c{number}"] = Context(namesrv="h:9876")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    with contextlib.suppress(ConfigError), Contexts.changing(environment) as contexts:
        contexts.known.clear()
        contexts.find("gone")  # raises
    assert sorted(file(environment).known) == [f"c{number}" for number in range(8)]


@given(
    st.lists(st.sampled_from([b'{"body": "a"}', b"", b'{"body": "' + b"long" * 30_000 + b'"}']), max_size=9),
    st.booleans(),
)
def test_lines_are_messages_however_they_are_read(lines: list[bytes], ends: bool) -> None:
    """Blank ones are none, the last one may have no end."""
    source = io.BytesIO(b"\n".join(lines) + b"\n" * ends)
    found = [message for batch in message_batches(source) for message in batch.values()]
    assert [message.body for message in found] == [parse_line(line).body for line in lines if line]


def test_messages_before_a_wrong_line_come_first() -> None:
    """The error has its number, or tells that the line is too long to be kept."""
    endless = message_batches(io.BytesIO(b'{"body": "a"}\n' + b"x" * (65 << 20)))
    assert [message.body for message in next(endless).values()] == [b"a"]
    with pytest.raises(ConfigError, match="a line has more than 67,108,864 bytes"):
        next(endless)
    batches = message_batches(io.BytesIO(b'{"body": "a"}\n\n{"body": "b"}\n[]\n{"body": "c"}'))
    assert {place: message.body for place, message in next(batches).items()} == {1: b"a", 3: b"b"}
    with pytest.raises(ConfigError, match="line 4: a JSON object is expected"):
        next(batches)


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
        (b'{"body_base64": "eJw=", "compressed": true}', "compressed; `ferromq tail --json` prints it decompressed"),
        (b'{"tag": "a"}', "one of body and body_base64"),
        (b'{"body": 1}', "no text"),
        (b'{"body": "a", "keys": {"a": 1}}', "keys is {'a': 1}, no list"),
        (b'{"body": "a", "tag": 5}', "tag is 5, no str"),
        (b'{"body": "a", "properties": [["a", "b"]]}', "properties is .* no dict"),
        (b'{"body": "a", "properties": {"KEYS": "a"}}', "property KEYS is reserved for the system"),
        (rb'{"body": "a", "keys": ["\ud800"]}', r"keys has the text '\\ud800', which is not valid UTF-8"),
        (rb'{"body": "\ud800"}', r"body has the text '\\ud800', which is not valid UTF-8"),
    ):
        with pytest.raises(ValueError, match=text):
            parse_line(wrong)


def test_a_stored_message_is_sent_without_what_brokers_noted() -> None:
    """As dead letters are that are sent again; in other lines such a property is the sender's own."""
    properties = {**dict.fromkeys(dead_letters._LEFT_OUT, "x"), "table": "7"}
    line = {"body": "tea", "properties": properties, "store_timestamp": 1}
    assert parse_line(json.dumps(line).encode()).properties == {"table": "7"}
    own = {"body": "tea", "properties": {"DLQ_REASON": "x"}}
    assert parse_line(json.dumps(own).encode()).properties == {"DLQ_REASON": "x"}


@pytest.mark.parametrize(
    ("error", "stored", "told", "notes"),
    [
        (RequestTimeout("no answer"), 0, "no answer", ["stored: 0 messages, and perhaps a batch more"]),
        (
            Forbidden("no right"),
            0,
            "no right",
            ["message 0 is that of line 2, the last one that of line 4", "stored: 0 messages"],
        ),
        (RequestError("message 1: bad"), 1, "line 4: message 1: bad", ["stored: 1 message"]),
    ],
)
def test_an_error_of_lines_tells_what_is_stored(error: FerromqError, stored: int, told: str, notes: list[str]) -> None:
    """A server that takes the messages of a request one by one stores those before the refused one."""

    def send_all(_topic: str, _messages: object, on_progress: Callable[[int], None]) -> None:
        on_progress(stored)
        raise error

    producer: Any = SimpleNamespace(send_all=send_all)
    target: Any = None
    with pytest.raises(type(error)) as caught:
        _send_lines(target, producer, "orders", io.BytesIO(b'\n{"body": "a"}\n\n{"body": "b"}\n'))
    assert (str(caught.value), caught.value.__notes__) == (told, notes)


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


@pytest.mark.parametrize(
    ("noted", "attempts"), [("7", 7), ("", 3), ("x", 3), ("-1", 3), ("\u0665", 5), (5000 * "9", 3), ("1.5", 3)]
)
def test_any_noted_number_of_attempts_is_a_number(noted: str, attempts: int) -> None:
    """A property holds whatever a sender wrote; then the record tells it."""
    message: Any = SimpleNamespace(properties={"DLQ_ATTEMPTS": noted}, reconsume_times=3)
    assert DeadLetter("billing", message, "h:1").attempts == attempts


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (IllegalName("x"), 2),
        (ValueError("x"), 2),
        (CorruptMessage("x"), 1),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "x"), 1),
        (json.JSONDecodeError("x", "x", 0), 1),
        (UserNotFound("x"), 3),
        (RequestTimeout("x"), 4),
    ],
)
def test_an_error_has_the_exit_code_of_what_to_do(error: Exception, code: int) -> None:
    """Wrong usage is only what the command line can correct."""
    assert fail(error) == code


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("several have it; choose one with broker=", "several have it; choose one with --broker"),
        ("queues is 1, not 2; alter_topic changes it", "queues is 1, not 2; ferromq topic alter changes it"),
        ("retries is 1, not 2; alter_group changes it", "retries is 1, not 2; ferromq group alter changes it"),
        ("update_user('billing') changes it", "ferromq user update billing changes it"),
        ("over remoting, too; tls=False speaks plaintext", "over remoting, too; without --tls it speaks plaintext"),
        ("it with ferromq.Admin(...).take_out_broker('b'), and", "it with ferromq cluster remove b, and"),
        ("no topic t; create_topic('t') creates it", "no topic t; ferromq topic create t creates it"),
        ("create it: ferromq.Admin(...).create_group('g'), or", "create it: ferromq group create g, or"),
        ("servers: ferromq.Admin('h:9876')", "servers: --namesrv h:9876"),
        ("port (8081) as Admin(endpoint='h:1')", "port (8081) as --endpoint h:1"),
        ("as with connect(...).admin().create_topic('t')", "as with ferromq topic create t"),
        ("create_user('u', SECRET) creates it", "ferromq user create u creates it"),
        ('alter_topic("orders", message_type="FIFO"), or', "ferromq topic alter orders --type FIFO, or"),
        ("is signed by none that tls= trusts", "is signed by none that --tls or --tls-trust trusts"),
        ("end a drain with resume_broker(BROKER)", "end a drain with ferromq cluster undrain BROKER"),
    ],
)
def test_an_error_names_the_command_in_place_of_the_call(
    text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in the part of a broker that is missing, in JSON, and on a page of the dashboard."""
    assert (plain(RequestError(text)), problem(RequestError(text)).text) == (told, told)
    fail(RequestError(text))
    partial([Unreachable("h:1", RequestError(text))])
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"ferromq: {told}", f"ferromq: the part of the broker at h:1 is missing: {told}"]


def texts(file: Path) -> Iterator[str]:
    """Yield the texts of a module except documentation, with x in place of values."""
    tree = ast.parse(file.read_text())
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {*ast.walk(node)} - {node}
            parts = [
                str(each.value) if isinstance(each, ast.Constant) else "'x'" if each.conversion == ord("r") else "x"  # type: ignore[attr-defined]
                for each in node.values
            ]
            if node not in left_out:
                yield "".join(parts)
        elif isinstance(node, ast.Expr):
            left_out.add(node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            yield node.value


CALLS = re.compile(
    r"\b(create|alter|update|resume|take_out)_(topic|group|user|acl|broker)\b|set_queue_access\(|\bAdmin\b"
    r"|connect\(|\b(tls|to|until|since|topic|resource|queue_id|broker|cluster|namesrv)=(?![{%])"
)


@pytest.mark.parametrize(
    "place",
    [
        *(
            "admin",
            "broker/cluster/routes.py",
            "broker/metadata/not_found.py",
            "client/tls.py",
            "core/remoting/routes.py",
        ),
        *(
            "core/requests.py",
            "core/routes.py",
            "core/send_plans.py",
            "namesrv/requests.py",
            "protocol/broker_removal.py",
        ),
    ],
)
def test_no_error_of_a_command_names_a_call(place: str) -> None:
    """Each text that names a call, in the modules whose errors commands tell."""
    root = Path(ferromq.__file__).parent / place
    named = {
        in_commands(text)
        for file in ([root] if root.is_file() else sorted(root.glob("*.py")))
        for text in texts(file)
        if " " in text and "%s" not in text and CALLS.search(text)
    }
    assert named
    assert [text for text in named if CALLS.search(text)] == []


def test_a_command_names_topics_as_their_user_does() -> None:
    """Without the namespace, which the command adds; names in other namespaces stay whole."""
    text = "no topic nsA%t; ferromq.Admin(...).create_topic('nsA%t') or create_group('nsB%g')"
    told = "no topic nsA%t; ferromq topic create t or ferromq group create nsB%g"
    use_namespace("nsA")
    try:
        assert in_commands(text) == told
        assert problem(TopicNotFound(text)).text == told, "pages of the dashboard, too"
    finally:
        use_namespace("")
