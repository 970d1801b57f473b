"""Users and policies of ACL 1.0, and what of them is named as lost."""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ferromq._ferromq import Clock, Server
from ferromq.access.opening import FILE, open_users
from ferromq.access.plain_acl import PlainAcl
from ferromq.config.access import AccessConfig
from ferromq.config.broker import BrokerConfig
from ferromq.errors import ConfigError

# As in RocketMQ's distribution, with more of what its classes read.
WHOLE = """
globalWhiteRemoteAddresses:
- 10.10.103.*

accounts:
- accessKey: RocketMQ
  secretKey: 012345678
  whiteRemoteAddress: 192.168.1.*
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC= SUB
  - topicD=ALL
  - topicE
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB

- accessKey: rocketmq2
  secretKey: "12345678"
  admin: true
  colour: red

- accessKey: RocketMQ
  secretKey: another
- accessKey: a:b
  secretKey: secret of it
"""


def test_accounts_become_users_and_policies(tmp_path: Path) -> None:
    """As RocketMQ's migration makes them, and every loss is named, without a key."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(WHOLE)
    found = PlainAcl(path)
    assert [(user.name, user.secret_key, user.kind) for user in found.users.values()] == [
        ("RocketMQ", "012345678", "Normal"),
        ("rocketmq2", "12345678", "Super"),
    ]
    policies = found.users["RocketMQ"].policies_to_json()
    assert policies is not None
    custom, default = policies["policies"]
    assert custom["policyType"] == "Custom"
    assert [(entry["resource"], entry["actions"], entry["decision"]) for entry in custom["entries"]] == [
        ("Topic:topicA", ["All"], "Deny"),
        ("Topic:topicB", ["Pub", "Sub"], "Allow"),
        ("Topic:topicC", ["Sub"], "Allow"),
        ("Topic:topicD", ["All"], "Deny"),
        ("Group:groupA", ["All"], "Deny"),
        ("Group:groupB", ["Pub", "Sub"], "Allow"),
    ]
    assert [(entry["resource"], entry["actions"], entry["decision"]) for entry in default["entries"]] == [
        ("Topic:*", ["All"], "Deny"),
        ("Group:*", ["Sub"], "Allow"),
    ]
    assert found.users["rocketmq2"].policies == {}
    for part, lost in zip(
        (
            "globalWhiteRemoteAddresses",
            "whiteRemoteAddress of RocketMQ",
            "'ALL' for Topic:topicD",
            "'topicE' in topicPerms",
            "colour of rocketmq2",
            "an account before it",
            "'a:b'",
        ),
        found.left_out,
        strict=True,
    ):
        assert part in lost
        assert str(path) in lost
    assert not any(key in " ".join(found.left_out) for key in ("012345678", "another", "secret of it"))


def test_a_directory_has_the_files_that_rocketmq_reads(tmp_path: Path) -> None:
    """Those in `acl` come first; other files are none of them."""
    (tmp_path / "acl" / "more").mkdir(parents=True)
    (tmp_path / "acl" / "more" / "b.yaml").write_text("accounts: [{accessKey: ada, secretKey: first}]")
    (tmp_path / "plain_acl.yml").write_text(
        "accounts:\n- {accessKey: ada, secretKey: last}\n- {accessKey: bob, secretKey: b}"
    )
    (tmp_path / "tools.yml").write_text("accessKey: x")
    assert {user.name: user.secret_key for user in PlainAcl(tmp_path).users.values()} == {"ada": "first", "bob": "b"}
    with pytest.raises(ConfigError, match="neither"):
        PlainAcl(tmp_path / "acl" / "more")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("accounts: {a: b}", "accounts is no list"),
        ("accounts: [x]", "account 1 is no object"),
        ("- x", "no object with accounts"),
        ("accounts: [{accessKey: ada, secretKey: [very secret]}]", "secretKey is no text"),
        ("accounts:\n- accessKey: ada\n secretKey: very secret", "line 3 is no YAML"),
        ("accounts: *very secret", "line 1 is no YAML"),
        ("accounts: *very-secret", "line 1 is no YAML"),
        (b"\xff", "cannot be read"),
        ("[" * 3000, "cannot be read|no YAML"),
    ],
)
def test_other_content_is_refused_by_file_and_place(tmp_path: Path, text: str | bytes, why: str) -> None:
    """Without what is there, which may be a key."""
    path = tmp_path / "plain_acl.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=why) as refused:
        PlainAcl(path)
    assert str(path) in str(refused.value)
    assert "secret" not in str(refused.value).replace("secretKey", "")


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
)
ACCOUNTS = st.fixed_dictionaries(
    {"accessKey": TEXTS, "secretKey": TEXTS},
    optional={
        "admin": st.sampled_from(["true", "false", "x"]) | VALUES,
        "topicPerms": st.lists(st.sampled_from(["a=PUB", "b=DENY", "c=SUB|PUB", "d*=PUB", "="]) | VALUES, max_size=4),
        "defaultGroupPerm": st.sampled_from(["DENY", "SUB", "x"]) | VALUES,
    },
)


@given(st.one_of(VALUES, st.fixed_dictionaries({"accounts": st.lists(ACCOUNTS | VALUES, max_size=3)})))
def test_any_file_is_read_or_refused_and_the_core_takes_its_users(
    tmp_path_factory: pytest.TempPathFactory, content: Any
) -> None:
    """No other exception leaves the parser."""
    path = tmp_path_factory.mktemp("acl") / "plain_acl.yml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True))
    with suppress(ConfigError):
        users = [user.pushed() for user in PlainAcl(path).users.values()]
        Server(Clock.manual(0)).set_access(users, cluster="c", authorizes=True, unsigned=[], unrestricted=[])


def test_the_users_are_added_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Later changes stay; what is lost is in the log of each start."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "plain_acl.yml"
    path.write_text(WHOLE)
    access = AccessConfig(authentication_enabled=True, plain_acl=str(path))
    table = open_users(access, Server(Clock.manual(0)), tmp_path / FILE, cluster="c")
    assert table is not None
    assert [user.name for user in table.all()] == ["RocketMQ", "rocketmq2"]
    table.update("RocketMQ", "a new key", None, None)
    again = open_users(access, Server(Clock.manual(0)), tmp_path / FILE, cluster="c")
    assert again is not None
    known = again.get("RocketMQ")
    assert known is not None
    assert known.secret_key == "a new key"
    assert caplog.text.count("not carried over from plain_acl") == 14
    assert "added=2 known=0" in caplog.text
    assert "added=0 known=2" in caplog.text
    with pytest.raises(ConfigError, match="needs authentication_enabled"):
        open_users(AccessConfig(plain_acl=str(path)), Server(Clock.manual(0)), tmp_path / FILE, cluster="c")


def test_without_the_extra_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line for pip."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(WHOLE)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError, match=r"pip install 'ferromq\[acl\]'"):
        PlainAcl(path)


def test_rocketmqs_key_looks_in_its_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `migrateAuthFromV1Enabled` does there; without a home it says what to set."""
    path = tmp_path / "broker.conf"
    path.write_text("authenticationEnabled=true\nmigrateAuthFromV1Enabled=true\n")
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    assert BrokerConfig.from_properties(path).access.plain_acl == str(tmp_path / "conf")
    monkeypatch.delenv("ROCKETMQ_HOME")
    with pytest.raises(ConfigError, match=r"migrateAuthFromV1Enabled.*plain_acl"):
        BrokerConfig.from_properties(path)
