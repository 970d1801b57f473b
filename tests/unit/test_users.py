"""The parts of access control: options, the table of users, signatures, and the list of what requests need."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq._ferromq import Clock, Server
from ferromq.broker.metadata.users import (
    BadAccess,
    PolicyEntry,
    PushedUser,
    UserTable,
    canonical_resource,
    policies_from_json,
)
from ferromq.config.access import AccessConfig
from ferromq.config.broker import BrokerConfig
from ferromq.core.credentials import Credentials, credentials_of
from ferromq.errors import ConfigError, CorruptStore

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
    table = UserTable(tmp_path, pushes.append)
    table.create("ada", "key", None, None)
    table.put_policies("ada", policies_from_json({"policies": [{"entries": [ENTRY]}]}))
    with pytest.raises(BadAccess, match="exists"):
        table.create("ada", "other", None, None)
    with pytest.raises(BadAccess, match="no user bob"):
        table.update("bob", "x", None, None)
    table.update("ada", " ", "super", "disable")
    assert len(pushes) == 3
    again = UserTable(tmp_path, pushes.append)
    assert again.get("ada") == table.get("ada")
    again.push_all()
    assert pushes[-1] == [("ada", "key", True, False, [("Topic:a", ["Pub"], [], True)], [])]
    assert "key" not in repr(again.get("ada"))
    again.delete("ada")
    again.delete("ada")
    assert UserTable(tmp_path, pushes.append).all() == []


ENTRY = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}


@given(JSON)
def test_any_file_is_a_table_or_damaged(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    """A damaged table names its file."""
    directory = tmp_path_factory.mktemp("access")
    (directory / "ferromq").mkdir()
    path = directory / "ferromq" / "access.json"
    path.write_text(json.dumps({"users": [content]}))
    with suppress(CorruptStore):
        UserTable(directory, lambda _users: None)
    path.write_text('{"users": [{"username": "ada"}]}')
    with pytest.raises(CorruptStore, match=str(path)):
        UserTable(directory, lambda _users: None)


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
        ("migrateAuthFromV1Enabled=true", "createUser"),
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
