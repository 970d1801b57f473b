"""The parts of access control: options, the table of users, signatures, and the list of what requests need."""

import json
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq._ferromq import Clock, Server
from ferromq.access.opening import FILE, open_users
from ferromq.access.users import (
    BadAccess,
    PolicyEntry,
    PushedUser,
    UserTable,
    canonical_resource,
    policies_from_json,
)
from ferromq.config.access import AccessConfig
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.core.credentials import Credentials, credentials_of
from ferromq.errors import ConfigError, CorruptStore
from ferromq.namesrv import server

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
RESOURCES = st.one_of(
    st.just("*"),
    st.tuples(
        st.sampled_from(["Topic", "group", "CLUSTER"]), st.from_regex(r"[a-z%_|-]{1,5}\*?|\*", fullmatch=True)
    ).map(":".join),
)
ENTRIES = st.fixed_dictionaries(
    {
        "resource": RESOURCES,
        "actions": st.lists(st.sampled_from(["Pub", "sub", "ALL", "Get", "List"]), min_size=1, max_size=3),
        "sourceIps": st.lists(st.sampled_from(["10.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"]), max_size=2),
        "decision": st.sampled_from(["Allow", "deny"]),
    }
)


def make_server() -> Server:
    """Return a server that listens nowhere."""
    return Server(Clock.manual(0))


@given(st.lists(ENTRIES, min_size=1, max_size=5))
def test_accepted_policies_are_read_again_and_taken_by_the_core(entries: list[dict[str, Any]]) -> None:
    """What the table accepts, Rust accepts; what it writes, it reads."""
    policies = policies_from_json({"policies": [{"entries": entries}]})
    again = [entry.to_json() for entry in policies["Custom"].values()]
    assert policies_from_json({"policies": [{"policyType": "Custom", "entries": again}]}) == policies
    pushed: list[Any] = [
        (entry.resource, list(entry.actions), list(entry.sources), entry.decision == "Allow")
        for entry in policies["Custom"].values()
    ]
    make_server().set_access(
        [("ada", "key", False, True, pushed, [])], cluster="c", authorizes=True, unsigned=[], unrestricted=[]
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.delete("ada"),
        lambda table: table.update("ada", None, "Normal", None),
        lambda table: table.update("ada", None, None, "disable"),
    ],
)
@pytest.mark.parametrize("inner", ["", "machine:key", "ada:key"])
def test_the_last_administrator_stays(tmp_path: Path, change: Callable[[UserTable], None], inner: str) -> None:
    """The user as which servers sign is no other administrator."""
    access = AccessConfig(authentication_enabled=True, initial_user="ada:key", inner_credentials=inner)
    table = open_users(access, make_server(), tmp_path / FILE, cluster="")
    assert table is not None
    with pytest.raises(BadAccess, match="would be left to undo this; make another one first"):
        change(table)
    table.create("grace", "key", "Super", None)
    change(table)


def test_the_user_of_a_server_stays_where_no_other_administers(tmp_path: Path) -> None:
    """Then it is the administrator."""
    access = AccessConfig(authentication_enabled=True, inner_credentials="machine:key")
    table = open_users(access, make_server(), tmp_path / FILE, cluster="")
    assert table is not None
    with pytest.raises(BadAccess, match="no enabled super user would be left"):
        table.delete("machine")


def test_a_name_server_pushes_a_telling_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals show it in place of a cluster."""
    opened = dict[str, Any]()
    monkeypatch.setattr(server, "open_users", lambda *_given, **more: opened.update(more))
    config = NameServerConfig(listen="127.0.0.1:0", access_directory=str(tmp_path))
    server.NamesrvController(config).close()
    assert opened == {"cluster": "(name server)"}


@given(JSON)
def test_any_json_is_a_policy_or_refused(content: Any) -> None:
    """No other exception leaves the parser."""
    for value in ({"policies": content}, {"policies": [{"entries": [content]}]}, {"policies": [{"entries": content}]}):
        with suppress(BadAccess):
            policies_from_json(value)


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_a_source_and_a_resource_or_refused(source: str, resource: str) -> None:
    """What is accepted, the core accepts, too."""
    try:
        entry = PolicyEntry.from_json(
            {"resource": f"Topic:{resource}", "actions": ["Pub"], "sourceIps": [source], "decision": "Allow"}
        )
    except BadAccess:
        return
    pushed = [(entry.resource, list(entry.actions), list(entry.sources), True)]
    make_server().set_access(
        [("ada", "key", False, True, pushed, [])], cluster="c", authorizes=True, unsigned=[], unrestricted=[]
    )


@pytest.mark.parametrize("resource", ["", "orders", "Topic:", "Any:x", "Topic:a*b", "Namespace:x", None, 3])
def test_a_resource_that_names_nothing_is_refused(resource: object) -> None:
    """The error says what a resource looks like."""
    with pytest.raises(BadAccess, match="Topic:"):
        canonical_resource(resource)


def test_a_table_keeps_its_users_and_pushes_each_change(tmp_path: Path) -> None:
    """All of it is on disk before it is pushed; a change that fails pushes nothing."""
    pushes: list[list[PushedUser]] = []
    table = UserTable(tmp_path / "ferromq" / "access.json", pushes.append)
    table.create("ada", "key", None, None)
    table.put_policies("ada", policies_from_json({"policies": [{"entries": [ENTRY]}]}))
    with pytest.raises(BadAccess, match="exists"):
        table.create("ada", "other", None, None)
    with pytest.raises(BadAccess, match="no user bob"):
        table.update("bob", "x", None, None)
    table.update("ada", " ", "super", "disable")
    assert len(pushes) == 3
    again = UserTable(tmp_path / "ferromq" / "access.json", pushes.append)
    assert again.get("ada") == table.get("ada")
    again.push_all()
    assert pushes[-1] == [("ada", "key", True, False, [("Topic:a", ["Pub"], [], True)], [])]
    assert "key" not in repr(again.get("ada"))
    again.delete("ada")
    again.delete("ada")
    assert UserTable(tmp_path / "ferromq" / "access.json", pushes.append).all() == []


ENTRY = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}


@given(JSON)
def test_any_file_is_a_table_or_damaged(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    """A damaged table names its file."""
    directory = tmp_path_factory.mktemp("access")
    (directory / "ferromq").mkdir()
    path = directory / "ferromq" / "access.json"
    path.write_text(json.dumps({"users": [content]}))
    with suppress(CorruptStore):
        UserTable(path, lambda _users: None)
    path.write_text('{"users": [{"username": "ada"}]}')
    with pytest.raises(CorruptStore, match=str(path)):
        UserTable(path, lambda _users: None)


def test_a_damaged_table_is_not_replaced_by_its_backup(tmp_path: Path) -> None:
    """The backup lacks the last change, so a revoked right would be back; a missing table is not replaced, either."""
    table = UserTable(tmp_path / "ferromq" / "access.json", lambda _users: None)
    for name in ("ada", "eve"):
        table.create(name, "key", None, None)
    table.delete("eve")
    path = tmp_path / "ferromq" / "access.json"
    backup = path.with_name("access.json.bak")
    assert "eve" in backup.read_text()
    content = path.read_text()
    for damage in (lambda: path.write_text(content[:-9]), path.unlink):
        damage()
        with pytest.raises(CorruptStore, match=r"access\.json is no table.*access\.json\.bak lacks the last change"):
            UserTable(tmp_path / "ferromq" / "access.json", lambda _users: None)
        assert sorted(each.name for each in path.parent.iterdir()) in (
            ["access.json", "access.json.bak"],
            ["access.json.bak"],
        )
    path.write_text(content)
    assert [user.name for user in UserTable(tmp_path / "ferromq" / "access.json", lambda _users: None).all()] == ["ada"]


def test_a_restored_table_and_its_backup_become_their_owners_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy of an administrator may have other permissions, and both have secret keys."""
    table = UserTable(tmp_path / "ferromq" / "access.json", lambda _users: None)
    for name in ("ada", "eve"):
        table.create(name, "key", None, None)
    path = tmp_path / "ferromq" / "access.json"
    files = [path, path.with_name("access.json.bak")]
    for file in files:
        file.chmod(0o644)
    UserTable(tmp_path / "ferromq" / "access.json", lambda _users: None)
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 2
    assert caplog.text.count("was readable by others") == 1 + (files[0].stat().st_ino != files[1].stat().st_ino)


def test_rocketmqs_keys_are_options(tmp_path: Path) -> None:
    """As in a broker's file of RocketMQ 5.3."""
    path = tmp_path / "broker.conf"
    path.write_text(
        "authenticationEnabled=true\nauthorizationEnabled=true\n"
        "authorizationWhitelist=\nmigrateAuthFromV1Enabled=false\n"
        "authenticationStrategy=org.apache.rocketmq.auth.authentication.strategy.StatefulAuthenticationStrategy\n"
        "authorizationStrategy=org.apache.rocketmq.auth.authorization.strategy.StatelessAuthorizationStrategy\n"
        "authenticationMetadataProvider="
        "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider\n"
        "authorizationProvider=org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider\n"
        "authorizationMetadataProvider="
        "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider\n"
        "authenticationProvider=org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider\n"
        'initAuthenticationUser={"username":"root","password":"a:b"}\n'
        'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"s"}\n'
        "authenticationWhitelist=10, apache.rocketmq.v2.HeartbeatRequest\n"
    )
    access = BrokerConfig.from_properties(path).access
    assert access == AccessConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        initial_user="root:a:b",
        inner_credentials="inner:s",
        authentication_whitelist=("10", "apache.rocketmq.v2.HeartbeatRequest"),
    )
    assert "a:b" not in repr(access)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("authorizationEnabled=true", "needs authenticationEnabled"),
        ("authenticationProvider=com.example.Mine", "com.example.Mine is not supported"),
        ("initAuthenticationUser=topsecret", "it is not JSON"),
        ('innerClientAuthenticationCredentials={"accessKey":"topsecret"}', "it is not JSON"),
    ],
)
def test_keys_that_ask_for_more_are_refused(tmp_path: Path, line: str, words: str) -> None:
    """With what to do instead."""
    path = tmp_path / "broker.conf"
    path.write_text(line)
    with pytest.raises(ConfigError, match=words):
        BrokerConfig.from_properties(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"initial_user": "topsecret"}, "NAME:SECRET"),
        ({"inner_credentials": "a b:topsecret"}, "NAME:SECRET"),
        ({"authentication_whitelist": ("Heartbeat",)}, "apache.rocketmq.v2"),
        ({"authentication_whitelist": ("105", "3005")}, "users and policies"),
        ({"authorization_whitelist": ("3001",)}, "users and policies"),
    ],
)
def test_wrong_options_are_refused_without_showing_secrets(options: dict[str, Any], words: str) -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match=words) as raised:
        AccessConfig(**options)
    assert "topsecret" not in str(raised.value)


def test_keys_come_together_and_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without the other is an error, and so is one that a header cannot carry."""
    monkeypatch.delenv("FERROMQ_ACCESS_KEY", raising=False)
    monkeypatch.delenv("FERROMQ_SECRET_KEY", raising=False)
    assert credentials_of(None, None) is None
    with pytest.raises(ConfigError, match="secret_key is missing"):
        credentials_of("ada", None)
    with pytest.raises(ConfigError, match="blanks"):
        credentials_of("a,b", "key")
    assert "topsecret" not in repr(credentials_of("ada", "topsecret"))


def test_signatures_are_those_of_rocketmqs_classes() -> None:
    """Made by AclUtils of RocketMQ 5.5.0, as the vectors of `ferromq-protocol` are."""
    ada = Credentials("ada", "ada's key")
    assert ada.authorization("20260102T030405Z").endswith("Signature=4C4E89973D8EC9AD122E3A43D5602DDE7B7DA5E8")
    signed = ada.signed({"b": "orders", "a": "group", "i": "KEYS\x01é"}, b"two teas")
    assert signed["Signature"] == "vVj6BUzhrtFfOO2gk+LT7MyScds="
