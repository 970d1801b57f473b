"""
Users and their policies: the table behind access control, in `access.json`, which its owner alone can read.

Rust checks requests against what this table pushes. `requests` decides who may change it.
"""

import ipaddress
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from ferromq.config.access import USER_NAME, USER_NAME_RULE
from ferromq.errors import CorruptStore
from ferromq.files import atomic, json_file
from ferromq.protocol import java_json

_log = logging.getLogger("ferromq.access")
_OWNER_ALONE, _OF_OTHERS = 0o600, 0o077
SUPER, NORMAL = "Super", "Normal"
ENABLED, DISABLED = "enable", "disable"
CUSTOM, DEFAULT = "Custom", "Default"
ALLOW, DENY = "Allow", "Deny"
_ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
_KINDS = ("Topic", "Group", "Cluster")
_SUBJECT = "User"
_SOURCE = re.compile(r"[0-9A-Fa-f:.]+(/[0-9]{1,3})?\Z")
PushedEntry: TypeAlias = tuple[str, list[str], list[str], bool]
"""Resource, actions, source addresses, and whether they are allowed."""
PushedUser: TypeAlias = tuple[str, str, bool, bool, list[PushedEntry], list[PushedEntry]]
"""Name, secret key, whether it is super and enabled, and the entries of both policies."""


class BadAccess(Exception):  # noqa: N818 (an answer, not a failure of ours)
    """A user or a policy is wrong, unknown, or exists already. The text says which, and what to do."""


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """What a user may or must not do with some resources; the texts are RocketMQ's."""

    resource: str
    actions: tuple[str, ...]
    sources: tuple[str, ...] = ()
    """Addresses and ranges of addresses of clients; empty for all."""
    decision: str = ALLOW

    def to_json(self) -> dict[str, Any]:
        """Return RocketMQ's form."""
        sources = {"sourceIps": list(self.sources)} if self.sources else {}
        return {"actions": list(self.actions), "decision": self.decision, "resource": self.resource, **sources}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "PolicyEntry":
        """Read RocketMQ's form. Raises `BadAccess`."""
        actions = tuple(_one_of("an action", action, _ACTIONS) for action in _list(value, "actions"))
        if not actions:
            raise BadAccess(f"a policy entry has no actions; use {', '.join(_ACTIONS)}")
        sources = tuple(_source(text) for text in _list(value, "sourceIps"))
        decision = _one_of("the decision", value.get("decision"), (ALLOW, DENY))
        return cls(canonical_resource(value.get("resource")), actions, sources, decision)


Policies: TypeAlias = Mapping[str, Mapping[str, PolicyEntry]]
"""`Custom` and `Default` → resource → entry."""


@dataclass(frozen=True, slots=True)
class User:
    """A user."""

    name: str
    secret_key: str = field(repr=False)
    kind: str = NORMAL
    status: str = ENABLED
    policies: Policies = field(default_factory=dict)

    @property
    def is_super(self) -> bool:
        """Whether it may do everything."""
        return self.kind == SUPER

    def to_json(self, *, with_secret: bool) -> dict[str, Any]:
        """Return RocketMQ's form."""
        secret = {"password": self.secret_key} if with_secret else {}
        return {**secret, "userStatus": self.status, "userType": self.kind, "username": self.name}

    def policies_to_json(self, holds: str = "") -> dict[str, Any] | None:
        """Return its policies in RocketMQ's form, with entries whose resource contains *holds*; None without any."""
        policies = [
            {"entries": [entry.to_json() for entry in found], "policyType": kind}
            for kind, entries in self.policies.items()
            if (found := [entry for resource, entry in entries.items() if holds in resource])
        ]
        return {"policies": policies, "subject": f"{_SUBJECT}:{self.name}"} if policies else None

    def pushed(self) -> PushedUser:
        """Return what Rust needs."""
        custom, default = (
            [
                (entry.resource, list(entry.actions), list(entry.sources), entry.decision == ALLOW)
                for entry in self.policies.get(kind, {}).values()
            ]
            for kind in (CUSTOM, DEFAULT)
        )
        return self.name, self.secret_key, self.is_super, self.status == ENABLED, custom, default


class UserTable:
    """
    The users of a server by name, in the file *path*; thread-safe.

    A change is on disk before *push* gets all users, and before the call returns. Raises `CorruptStore` if the file
    exists and cannot be read, and `OSError` if a change cannot be written, which changes nothing.
    """

    def __init__(self, path: Path, push: Callable[[list[PushedUser]], None], machine: str = "") -> None:
        """*machine* is the user as which servers sign: no administrator, so it is no other super user to leave."""
        self._path = path
        self._push = push
        self._machine = machine
        self._lock = threading.Lock()
        try:
            self._users = _parse(_read(self._path))
        except (BadAccess, ValueError, TypeError, AttributeError, KeyError) as error:
            backup = atomic.backup_of(self._path)
            way_out = (
                f"Its backup {backup} lacks the last change, which may have revoked a right: look at it, copy it over "
                "the file, and make that change again"
                if backup.exists()
                else "Restore it, or move it away to begin with the users of the options alone"
            )
            raise CorruptStore(f"{self._path} is no table of users: {error}. {way_out}") from error

    def push_all(self) -> None:
        """Push the users as they are."""
        with self._lock:
            self._push([user.pushed() for user in self._users.values()])

    def get(self, name: str) -> User | None:
        """Return a user."""
        return self._users.get(name)

    def all(self) -> Sequence[User]:
        """Return all users by name."""
        users = self._users
        return [users[name] for name in sorted(users)]

    def create(self, name: str, secret_key: str, kind: str | None, status: str | None) -> None:
        """Add a user. Raises `BadAccess`."""
        user = User(
            check_name(name),
            _secret(secret_key),
            _one_of("the type of a user", kind or NORMAL, (SUPER, NORMAL)),
            _one_of("the status of a user", status or ENABLED, (ENABLED, DISABLED)),
        )

        def change(users: dict[str, User]) -> None:
            if name in users:
                raise BadAccess(f"the user {name} exists; update it instead")
            users[name] = user

        self._change(change)

    def add_new(self, users: Mapping[str, User]) -> list[str]:
        """Add users with their policies, all in one step; known ones stay as they are. Returns the names of the new."""
        new = list[str]()

        def change(known: dict[str, User]) -> None:
            new.extend(users.keys() - known.keys())
            known.update({name: users[name] for name in new})

        self._change(change)
        return new

    def update(self, name: str, secret_key: str | None, kind: str | None, status: str | None) -> None:
        """Change a user; None, or a blank text, leaves a field as it is. Raises `BadAccess`."""

        def change(users: dict[str, User]) -> None:
            user = _known(users, name)
            users[name] = replace(
                user,
                secret_key=_secret(secret_key) if secret_key and secret_key.strip() else user.secret_key,
                kind=_one_of("the type of a user", kind or user.kind, (SUPER, NORMAL)),
                status=_one_of("the status of a user", status or user.status, (ENABLED, DISABLED)),
            )

        self._change(change)

    def delete(self, name: str) -> None:
        """Remove a user with its policies; an unknown one is ignored, as in RocketMQ."""
        self._change(lambda users: users.pop(name, None))

    def put_policies(self, name: str, policies: Policies) -> None:
        """Add entries, in place of those for the same resources. Raises `BadAccess`."""

        def change(users: dict[str, User]) -> None:
            user = _known(users, name)
            kept = {kind: {**user.policies.get(kind, {}), **entries} for kind, entries in policies.items()}
            users[name] = replace(user, policies={**user.policies, **kept})

        self._change(change)

    def delete_policies(self, name: str, kind: str | None, resource: str | None) -> None:
        """Remove the entry of a policy for a resource, or all entries of a user. Raises `BadAccess`."""
        found = _one_of("the type of a policy", kind or CUSTOM, (CUSTOM, DEFAULT))
        unwanted = canonical_resource(resource) if resource and resource.strip() else None

        def change(users: dict[str, User]) -> None:
            user = _known(users, name)
            if not user.policies:
                raise BadAccess(f"the user {name} has no policies")
            left: dict[str, Mapping[str, PolicyEntry]] = {}
            if unwanted is not None:
                left = dict(user.policies)
                left[found] = {key: entry for key, entry in left.get(found, {}).items() if key != unwanted}
            users[name] = replace(user, policies={kind: entries for kind, entries in left.items() if entries})

        self._change(change)

    def _change(self, change: Callable[[dict[str, User]], object]) -> None:
        with self._lock:
            users = dict(self._users)
            change(users)
            if users == self._users:
                return
            for machine in ("", self._machine):
                if has_super(self._users.values(), machine) and not has_super(users.values(), machine):
                    besides = f" besides {machine}, as which servers sign" if machine else ""
                    raise BadAccess(
                        f"no enabled super user{besides} would be left to undo this; make another one first"
                    )
            json_file.write(self._path, _table(users.values()), _OWNER_ALONE)
            self._users = users
            self._push([user.pushed() for user in users.values()])


def has_super(users: Iterable[User], besides: str = "") -> bool:
    """Return whether an enabled super user is among them, *besides* the one of this name."""
    return any(user.is_super and user.status == ENABLED and user.name != besides for user in users)


def subject_name(subject: str) -> str:
    """Return the name of the user in `User:NAME`. Raises `BadAccess`."""
    kind, separator, name = subject.partition(":")
    if kind.lower() != _SUBJECT.lower() or not separator or not name:
        raise BadAccess(f"the subject is {subject!r}; use User: and the name of a user")
    return name


def policies_from_json(content: Mapping[str, Any]) -> Policies:
    """Read the policies of RocketMQ's `AclInfo`. Raises `BadAccess`."""
    policies: dict[str, dict[str, PolicyEntry]] = {}
    for policy in _list(content, "policies"):
        if not isinstance(policy, Mapping):
            raise BadAccess("a policy is no object")
        kind = _one_of("the type of a policy", policy.get("policyType") or CUSTOM, (CUSTOM, DEFAULT))
        for value in _list(policy, "entries"):
            if not isinstance(value, Mapping):
                raise BadAccess("a policy entry is no object")
            entry = PolicyEntry.from_json(value)
            policies.setdefault(kind, {})[entry.resource] = entry
    if not policies:
        raise BadAccess("the request has no policy entries")
    return policies


def canonical_resource(text: object) -> str:
    """Return a resource as the table has it: `*`, `Topic:*`, `Topic:prefix*`, `Topic:name`. Raises `BadAccess`."""
    if text == "*":
        return "*"
    kind, _, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    known = next((each for each in _KINDS if each.lower() == kind.lower()), None)
    if known is None or not name or "*" in name[:-1]:
        raise BadAccess(
            f"the resource is {text!r}; use *, or Topic:, Group: or Cluster: and a name, a prefix with * behind it, "
            "or *"
        )
    return f"{known}:{name}"


def check_name(name: str) -> str:
    """Return a valid user name. Raises `BadAccess` for another text."""
    if not USER_NAME.match(name):
        raise BadAccess(f"the name of the user is {name!r}; it may have {USER_NAME_RULE}")
    return name


def _secret(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise BadAccess("the password is missing or blank; give the user one")
    return text


def _known(users: Mapping[str, User], name: str) -> User:
    user = users.get(name)
    if user is None:
        raise BadAccess(f"there is no user {name}; create it first")
    return user


def _list(value: Mapping[str, Any], name: str) -> list[Any]:
    found = value.get(name) or []
    if not isinstance(found, list):
        raise BadAccess(f"{name} is no list")
    return found


def _one_of(what: str, text: object, known: Sequence[str]) -> str:
    found = next((each for each in known if isinstance(text, str) and each.lower() == text.lower()), None)
    if found is None:
        raise BadAccess(f"{what} is {text!r}; use {' or '.join(known)}")
    return found


def _source(text: object) -> str:
    # Python takes masks such as 255.0.0.0 and zones, too, which the core does not.
    if isinstance(text, str) and _SOURCE.match(text):
        with suppress(ValueError):
            ipaddress.ip_network(text, strict=False)
            return text
    raise BadAccess(f"the source address {text!r} is no address and no range such as 10.0.0.0/8")


def _read(path: Path) -> dict[str, Any]:
    """
    Return the object in *path*; an empty one if it was never written. The backup is never read.

    Raises `ValueError` for other content, and if only the backup is there, and `OSError`.
    """
    for name in (path, atomic.backup_of(path)):
        if name.exists() and name.stat().st_mode & _OF_OTHERS:
            _log.warning("file with secret keys was readable by others, and is now its owner's alone file=%s", name)
            name.chmod(_OWNER_ALONE)
    try:
        return java_json.loads_object(path.read_bytes())
    except FileNotFoundError:
        if atomic.backup_of(path).exists():
            raise ValueError("the file is missing") from None
        return {}


def _table(users: Iterable[User]) -> dict[str, Any]:
    return {
        "users": [
            {**user.to_json(with_secret=True), "policies": (user.policies_to_json() or {}).get("policies", [])}
            for user in users
        ]
    }


def _parse(content: Mapping[str, Any]) -> dict[str, User]:
    users = {}
    for value in content.get("users") or []:
        user = User(
            check_name(value["username"]),
            _secret(value["password"]),
            _one_of("the type of a user", value["userType"], (SUPER, NORMAL)),
            _one_of("the status of a user", value["userStatus"], (ENABLED, DISABLED)),
            policies_from_json(value) if value.get("policies") else {},
        )
        users[user.name] = user
    return users
