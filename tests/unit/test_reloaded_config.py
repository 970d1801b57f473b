"""A configuration file that is read again while its server runs: what changes, and what a wrong file changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferromq.broker.administration.settings import Settings as BrokerSettings
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.config.source import Reloaded, reload_logged
from ferromq.errors import ConfigError
from ferromq.namesrv.server import NamesrvController
from ferromq.namesrv.settings import Settings as NameServerSettings

NOTHING = Reloaded((), ())
CHANGES = pytest.mark.parametrize(
    ("kind", "before", "after", "changed"),
    [
        ("broker", "default_queues = 3", "default_queues = 4", "default_queues"),
        ("name server", "order_messages = false", "order_messages = true", "order_messages"),
    ],
)


class Server:
    """The settings of a broker or a name server, over a file."""

    def __init__(self, kind: str, file: Path, text: str, **flags: Any) -> None:
        self.file = file
        self.write(text)
        config: type[Any] = BrokerConfig if kind == "broker" else NameServerConfig

        def load() -> Any:
            return config.load(file, environment={}, flags=flags)

        self.heard: list[Any] = []
        self.stored: dict[str, Any] = {}
        self.settings: Any
        if kind == "broker":
            self.settings = BrokerSettings(load(), file, lambda: 1_700_000_000_000, self.stored.update)
            self.settings.add_listener(lambda changed, _, __: self.heard.append(changed))
        else:
            self.settings = NameServerSettings(load(), file)
            self.settings.listen(self.heard.append)
            self.heard.clear()
        self.settings.read_from(load)

    def write(self, text: str) -> None:
        """Replace the file, as editors do."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.file)

    def value(self, name: str) -> Any:
        """Return the present value of an option."""
        return self.settings.config.given()[name]


@CHANGES
def test_what_can_change_changes(tmp_path: Path, kind: str, before: str, after: str, changed: str) -> None:
    """Listeners hear of it once; the same content changes nothing."""
    server = Server(kind, tmp_path / "file.toml", before)
    assert server.settings.reload() == NOTHING
    server.write(after)
    assert server.settings.reload() == Reloaded((changed,), ())
    assert server.value(changed) in {4, True}
    server.write(after)
    assert server.settings.reload() == NOTHING
    assert len(server.heard) == 1


@CHANGES
def test_what_is_fixed_needs_a_restart(tmp_path: Path, kind: str, before: str, after: str, changed: str) -> None:
    """It is told each time; the rest of the file takes effect."""
    server = Server(kind, tmp_path / "file.toml", before)
    server.write(f"{after}\nhandler_threads = 5")
    assert server.settings.reload() == Reloaded((changed,), ("handler_threads",))
    assert server.settings.reload() == Reloaded((), ("handler_threads",))
    assert server.value("handler_threads") != 5


@pytest.mark.parametrize(
    ("option", "is_fixed"),
    [
        ("frame_limit", True),
        ("client_memory", True),
        ("client_memory_by_connection", True),
        ("lock_memory", True),
        ("grpc_message_limit", False),
    ],
)
def test_sizes_that_need_a_restart_are_named(tmp_path: Path, option: str, is_fixed: bool) -> None:
    """The answer to a reload has them; the largest gRPC request changes at once."""
    server = Server("broker", tmp_path / "file.toml", "")
    server.write(f"{option} = 9000000")
    assert server.settings.reload() == (Reloaded((), (option,)) if is_fixed else Reloaded((option,), ()))


def _remove(file: Path) -> None:
    file.unlink()


def _refuse(file: Path) -> None:
    # Also for root, whom no permission refuses.
    file.unlink()
    file.mkdir()


def _written(text: str | bytes) -> Callable[[Path], object]:
    data = text.encode() if isinstance(text, str) else text
    return lambda file: file.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (_written("watch_config = tr"), "not TOML"),
        (_written("wach_config = true"), "watch_config"),
        (_written("handler_threads = 0"), "handler_threads"),
        (_written(b"\xff\xfe"), "file.toml"),
        (_remove, "file.toml"),
        (_refuse, "file.toml"),
    ],
    ids=["half-written", "unknown key", "wrong value", "no text", "removed", "unreadable"],
)
@CHANGES
def test_a_wrong_file_changes_nothing(
    tmp_path: Path, *, spoil: Callable[[Path], object], named: str, kind: str, before: str, after: str, changed: str
) -> None:
    """The error names the cause, and a right file is taken over later."""
    server = Server(kind, tmp_path / "file.toml", before)
    first = server.settings.config
    spoil(server.file)
    with pytest.raises(ConfigError, match=named):
        server.settings.reload()
    assert server.settings.config is first
    assert server.heard == []
    if server.file.is_dir():
        server.file.rmdir()
    server.write(after)
    assert server.settings.reload().changed == (changed,)


def test_flags_come_before_the_file(tmp_path: Path) -> None:
    """As at the start."""
    server = Server("broker", tmp_path / "file.toml", "default_queues = 3", default_queues=7)
    server.write("default_queues = 4")
    assert server.settings.reload() == NOTHING
    assert server.value("default_queues") == 7


def test_a_change_by_a_request_stays(tmp_path: Path) -> None:
    """It is in the file, too; going back in the file goes back."""
    server = Server("broker", tmp_path / "file.toml", "default_queues = 3")
    assert server.settings.update({"default_queues": "5"}, {"default_queues": "3"}) == {"default_queues"}
    assert server.settings.reload() == NOTHING
    server.write("default_queues = 3")
    assert server.settings.reload() == Reloaded(("default_queues",), ())
    assert server.value("default_queues") == 3


def test_options_of_the_store_change_in_it(tmp_path: Path) -> None:
    """One that is removed from the file takes its default at the next start."""
    server = Server("broker", tmp_path / "file.toml", 'retention_age = "72h"')
    server.write('retention_age = "48h"')
    assert server.settings.reload() == Reloaded(("retention_age",), ())
    assert server.stored["retention_age"].total_seconds() == 48 * 3600
    server.stored.clear()
    server.write("")
    assert server.settings.reload() == Reloaded((), ("retention_age",))
    assert server.stored == {}


def test_rocketmqs_format_is_read_again(tmp_path: Path) -> None:
    """By its keys."""
    server = Server("broker", tmp_path / "broker.conf", "defaultTopicQueueNums=3")
    server.write("defaultTopicQueueNums=4\nbrokerName=other")
    assert server.settings.reload() == Reloaded(("default_queues",), ("name",))


@CHANGES
def test_a_watched_file_is_read_when_it_has_settled(
    tmp_path: Path, kind: str, before: str, after: str, changed: str
) -> None:
    """One look after its last change, once; an unwatched one never."""
    watched = Server(kind, tmp_path / "watched.toml", f"{before}\nwatch_config = true")
    other = Server(kind, tmp_path / "other.toml", before)
    for server in (watched, other):
        server.settings.look()
        server.write(f"{after}\nwatch_config = true")
        server.settings.look()
        assert server.heard == []
        server.settings.look()
        server.settings.look()
    assert (len(watched.heard), len(other.heard)) == (1, 0)
    assert watched.value(changed) in {4, True}


def test_a_watched_file_that_goes_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The options stay."""
    server = Server("broker", tmp_path / "file.toml", "watch_config = true")
    server.file.unlink()
    for _ in range(5):
        server.settings.look()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "nothing changed" in caplog.text


def test_a_change_that_cannot_be_applied_ends_no_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the cause; SIGHUP is handled on the main thread."""
    server = Server("broker", tmp_path / "file.toml", "default_queues = 3")

    def fail(*_arguments: object) -> None:
        raise OSError("the disk is gone")

    server.settings.add_listener(fail)
    server.write("default_queues = 4")
    reload_logged(server.settings.reload)
    assert "the disk is gone" in caplog.text


def test_a_server_without_a_file_says_so(tmp_path: Path) -> None:
    """With the way out."""
    for settings in (BrokerSettings(BrokerConfig(), None, lambda: 0), NameServerSettings(NameServerConfig())):
        with pytest.raises(ConfigError, match="without a configuration file"):
            settings.reload()


def test_a_file_that_is_not_there_cannot_be_watched() -> None:
    """The option is refused at the start, and while the server runs."""
    broker = BrokerSettings(BrokerConfig(), None, lambda: 0)
    name_server = NameServerSettings(NameServerConfig())
    for settings in (broker, name_server):
        settings.read_from(None)
    refused: tuple[Callable[[], object], ...] = (
        lambda: broker.update({"watch_config": "true"}, {}),
        lambda: NameServerSettings(NameServerConfig(watch_config=True)).read_from(None),
        lambda: BrokerController(BrokerConfig.from_options({"watch_config": True})),
        lambda: NamesrvController(NameServerConfig(watch_config=True)),
    )
    for call in refused:
        with pytest.raises(ConfigError, match="watch_config is on, and this server has no configuration file"):
            call()
    assert not broker.config.membership.watch_config


SETS = pytest.mark.parametrize(
    ("kind", "key", "value", "edit", "edited"),
    [
        ("broker", "default_queues", "5", "mixed_topics = true", "mixed_topics"),
        ("name server", "orderMessageEnable", "true", "acting_master = true", "acting_master"),
    ],
)


def _set(server: Server, kind: str, key: str, value: str) -> None:
    server.settings.update(*(({key: value}, {}) if kind == "broker" else (f"{key}={value}",)))


@SETS
@pytest.mark.parametrize("is_watched", [False, True])
def test_a_change_by_a_request_hides_no_edit(
    tmp_path: Path, *, kind: str, key: str, value: str, edit: str, edited: str, is_watched: bool
) -> None:
    """What was edited in the file and not read yet still counts at the next reload, or the next look."""
    watch = f"watch_config = {str(is_watched).lower()}\n"
    server = Server(kind, tmp_path / "file.toml", watch)
    server.write(f"{watch}{edit}\n")
    _set(server, kind, key, value)
    assert server.value(edited) is False
    if is_watched:
        for _ in range(3):
            server.settings.look()
    else:
        assert server.settings.reload().changed == (edited,)
    assert server.value(edited) is True
    assert len(server.heard) == 2


@SETS
def test_a_change_by_a_request_alone_is_not_read_again(
    tmp_path: Path, *, kind: str, key: str, value: str, edit: str, edited: str
) -> None:
    """The server wrote it itself; a later edit is seen."""
    server = Server(kind, tmp_path / "file.toml", "watch_config = true\n")
    _set(server, kind, key, value)
    read = list[str]()
    server.settings.reload, reload = lambda: (read.append("read"), reload())[1], server.settings.reload
    for _ in range(3):
        server.settings.look()
    assert read == []
    server.write(f"{server.file.read_text()}{edit}\n")
    for _ in range(3):
        server.settings.look()
    assert (read, server.value(edited)) == (["read"], True)


@pytest.mark.parametrize("suffix", ["toml", "conf"])
@pytest.mark.parametrize(
    ("kind", "key", "value"), [("broker", "defaultTopicQueueNums", "5"), ("name server", "orderMessageEnable", "true")]
)
def test_a_change_by_a_request_keeps_the_mode_of_the_file(
    tmp_path: Path, kind: str, key: str, value: str, suffix: str
) -> None:
    """It may have secrets."""
    server = Server(kind, tmp_path / f"file.{suffix}", "")
    server.file.chmod(0o600)
    _set(server, kind, key, value)
    assert server.file.read_text() != ""
    assert server.file.stat().st_mode & 0o777 == 0o600
