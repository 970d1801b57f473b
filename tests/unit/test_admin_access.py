"""What an administrator makes of answers about users and policies, and of its own arguments."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.admin.access import checked_resource, entries_of, parse_acls, parse_users
from ferromq.admin.results import PolicyEntry, User

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["username", "userType", "subject", "policies", "entries", "actions", "resource"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_users_and_policies_or_an_error(body: bytes) -> None:
    """The error is always `ValueError`."""
    with contextlib.suppress(ValueError):
        assert all(isinstance(user, User) for user in parse_users(body))
    with contextlib.suppress(ValueError):
        assert all(isinstance(entry, PolicyEntry) for entry in parse_acls(body))


def test_no_password_of_an_answer_is_kept() -> None:
    """Also with a broker that answers it, as RocketMQ's do."""
    body = b'[{"username":"bob","password":"secret","userType":"Normal","userStatus":"disable"}]'
    found = parse_users(body)
    assert found == [User("bob", "Normal", enabled=False)]
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("*", "*"), ("topic:orders", "Topic:orders"), ("GROUP:b*", "Group:b*"), ("Cluster:*", "Cluster:*")],
)
def test_a_resource_is_read_in_any_case(text: str, expected: str) -> None:
    """And written as RocketMQ does."""
    assert checked_resource(text) == expected


@pytest.mark.parametrize("text", ["", "orders", "Topic:", "Topic:a*b", "Queue:a", "**"])
def test_another_resource_is_an_error(text: str) -> None:
    """The text shows what is possible."""
    with pytest.raises(ValueError, match="use \\*, or Topic:, Group: or Cluster:"):
        checked_resource(text)


def test_entries_are_checked_before_they_are_sent() -> None:
    """A single text is a list of one; the user may be written as RocketMQ's subject."""
    options = {"allow": False, "sources": "10.0.0.0/8", "policy": "Custom"}
    found = entries_of("User:bob", ("topic:a", "group:b"), "pub", **options)  # type: ignore[arg-type]
    assert found == [
        PolicyEntry("bob", "Custom", resource, ("Pub",), ("10.0.0.0/8",), allow=False)
        for resource in ("Topic:a", "Group:b")
    ]
    with pytest.raises(ValueError, match="the action is 'send'; it may be All, Pub"):
        entries_of("bob", "*", "send", **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="policy is 'Mine'; it may be Custom or Default"):
        entries_of("bob", "*", "Pub", allow=True, sources=(), policy="Mine")
    with pytest.raises(ValueError, match="needs an action"):
        entries_of("bob", "*", (), **options)  # type: ignore[arg-type]
