"""Requests about users and their policies, RocketMQ's access control; secret keys are sent, never returned."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ferromq.admin.calls import Calls
from ferromq.admin.results import PolicyEntry, User
from ferromq.errors import AlreadyExists, IllegalName, PolicyNotFound, ServerError, UserNotFound
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode

ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
KINDS = ("Topic", "Group", "Cluster")
POLICIES = ("Custom", "Default")
_SUBJECT = "User:"
_Found = TypeVar("_Found", User, PolicyEntry)


# --- users -------------------------------------------------------------------------------------------------------


def users(calls: Calls, brokers: Sequence[str], name: str | None) -> list[User]:
    """Return all users, or one; once for each of its settings. Raises `UserNotFound`."""
    if name is None:
        return _merged(
            each for address in brokers for each in _read(calls, address, RequestCode.AUTH_LIST_USER, {}, parse_users)
        )
    found = _merged(each for address in brokers for each in _user(calls, address, name))
    if not found:
        raise UserNotFound(f"there is no user {name}; create_user({name!r}, SECRET) creates it")
    return found


def create_user(calls: Calls, brokers: Sequence[str], name: str, secret_key: str, kind: str) -> None:
    """
    Create a user on brokers.

    Those that have it from a creation that failed halfway get the same secret key. Raises `AlreadyExists` if all have
    it, or one has it with another kind or disabled.
    """
    name, secret = _name(name), _secret(secret_key)
    found = {address: _user(calls, address, name) for address in brokers}
    for address, present in found.items():
        if all(found.values()) or (present and (present[0].kind != kind or not present[0].enabled)):
            raise AlreadyExists(f"{address} has a user {name}; update_user({name!r}) changes it")
    for address, present in found.items():
        code = RequestCode.AUTH_UPDATE_USER if present else RequestCode.AUTH_CREATE_USER
        body = {"username": name, "password": secret, "userType": kind}
        calls.ask(address, code, {"username": name}, body=java_json.dumps(body))


def update_user(
    calls: Calls, brokers: Sequence[str], name: str, *, secret_key: str | None, kind: str | None, enabled: bool | None
) -> None:
    """Change a user on the brokers that have it. Raises `UserNotFound`, and `ValueError` without a change."""
    if secret_key is None and kind is None and enabled is None:
        raise ValueError("nothing to update; give secret_key, super_user or enabled")
    name = _name(name)
    body: dict[str, str] = {"username": name}
    if secret_key is not None:
        body["password"] = _secret(secret_key)
    if kind is not None:
        body["userType"] = kind
    if enabled is not None:
        body["userStatus"] = "enable" if enabled else "disable"
    for found in users(calls, brokers, name):
        for address in found.brokers:
            calls.ask(address, RequestCode.AUTH_UPDATE_USER, {"username": name}, body=java_json.dumps(body))


def delete_user(calls: Calls, brokers: Sequence[str], name: str) -> None:
    """Delete a user with its policies from the brokers that have it. Raises `UserNotFound`."""
    name = _name(name)
    for found in users(calls, brokers, name):
        for address in found.brokers:
            calls.ask(address, RequestCode.AUTH_DELETE_USER, {"username": name})


def _user(calls: Calls, address: str, name: str) -> list[User]:
    def parse(body: bytes) -> list[User]:
        # A broker answers without a body for an unknown user.
        return [_parse_user(java_json.loads_object(body))] if body.strip() else []

    return _read(calls, address, RequestCode.AUTH_GET_USER, {"username": _name(name)}, parse)


# --- policies ----------------------------------------------------------------------------------------------------


def acls(calls: Calls, brokers: Sequence[str], user: str | None) -> list[PolicyEntry]:
    """Return the entries of all users, or of one. Raises `UserNotFound`."""
    if user is None:
        return _merged(
            each for address in brokers for each in _read(calls, address, RequestCode.AUTH_LIST_ACL, {}, parse_acls)
        )
    having = [address for found in users(calls, brokers, user) for address in found.brokers]
    return _merged(each for address in having for each in _acl(calls, address, _name(user)))


def create_acl(calls: Calls, brokers: Sequence[str], entries: Sequence[PolicyEntry]) -> None:
    """
    Add entries of one user's policies on brokers. Entries that are there already stay as they are.

    Raises `AlreadyExists` if a broker has an entry for the resource with other settings, and `UserNotFound` if one has
    no such user.
    """
    for address in brokers:
        for present in _acl_of_known(calls, address, entries[0].user):
            for entry in entries:
                if _place(present) == _place(entry) and _settings(present) != _settings(entry):
                    raise AlreadyExists(
                        f"{address} has an entry of {entry.user} for {entry.resource} with other settings; "
                        "update_acl replaces it"
                    )
    _put(calls, brokers, RequestCode.AUTH_CREATE_ACL, entries)


def update_acl(calls: Calls, brokers: Sequence[str], entries: Sequence[PolicyEntry]) -> None:
    """Add entries on brokers, in place of those for the same resources. Raises `UserNotFound`."""
    for address in brokers:
        _acl_of_known(calls, address, entries[0].user)
    _put(calls, brokers, RequestCode.AUTH_UPDATE_ACL, entries)


def delete_acl(calls: Calls, brokers: Sequence[str], name: str, *, resource: str | None, policy: str) -> None:
    """
    Delete the entry for *resource*, or all policies of a user, from the brokers that have it.

    Raises `UserNotFound` and `PolicyNotFound`.
    """
    wanted = None if resource is None else checked_resource(resource)
    fields = {"subject": f"{_SUBJECT}{_name(name)}"}
    fields |= {} if wanted is None else {"resource": wanted, "policyType": policy}
    having = [
        address
        for entry in acls(calls, brokers, name)
        for address in entry.brokers
        if wanted is None or _place(entry) == (policy, wanted)
    ]
    if not having:
        raise PolicyNotFound(f"the user {name} has no entry{'' if wanted is None else f' for {wanted} in {policy}'}")
    for address in dict.fromkeys(having):
        calls.ask(address, RequestCode.AUTH_DELETE_ACL, fields)


def entries_of(
    user: str,
    resources: str | Iterable[str],
    actions: str | Iterable[str],
    *,
    allow: bool,
    sources: str | Iterable[str],
    policy: str,
) -> list[PolicyEntry]:
    """Return the entry for each resource. Raises `ValueError` for an unknown resource, action or policy."""
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; it may be {' or '.join(POLICIES)}")
    chosen = tuple(dict.fromkeys(map(_action, _several(actions))))
    found = [
        PolicyEntry(_name(user), policy, checked_resource(each), chosen, tuple(_several(sources)), allow)
        for each in _several(resources)
    ]
    if not found or not chosen:
        raise ValueError(f"an entry needs {'an action' if found else 'a resource'}")
    return found


def checked_resource(text: str) -> str:
    """Return a resource in RocketMQ's form. Raises `ValueError` for another text."""
    if text == "*":
        return text
    kind, _, name = text.partition(":")
    known = next((each for each in KINDS if each.lower() == kind.lower()), None)
    if known is None or not name or "*" in name[:-1]:
        raise ValueError(
            f"the resource is {text!r}; use *, or Topic:, Group: or Cluster: with a name, a prefix and *, or *"
        )
    return f"{known}:{name}"


def _several(given: str | Iterable[str]) -> Iterable[str]:
    return (given,) if isinstance(given, str) else given


def _action(text: str) -> str:
    known = next((each for each in ACTIONS if each.lower() == text.lower()), None)
    if known is None:
        raise ValueError(f"the action is {text!r}; it may be {', '.join(ACTIONS)}")
    return known


def _place(entry: PolicyEntry) -> tuple[str, str]:
    return entry.policy, entry.resource


def _settings(entry: PolicyEntry) -> tuple[frozenset[str], frozenset[str], bool]:
    """Return what an entry says; brokers keep actions and sources in the order in which they were given."""
    return frozenset(entry.actions), frozenset(entry.sources), entry.allow


def _put(calls: Calls, brokers: Sequence[str], code: RequestCode, entries: Sequence[PolicyEntry]) -> None:
    subject = f"{_SUBJECT}{entries[0].user}"
    listed: list[dict[str, Any]] = [
        {
            "resource": entry.resource,
            "actions": list(entry.actions),
            "decision": "Allow" if entry.allow else "Deny",
            **({"sourceIps": list(entry.sources)} if entry.sources else {}),
        }
        for entry in entries
    ]
    body = java_json.dumps({"subject": subject, "policies": [{"policyType": entries[0].policy, "entries": listed}]})
    for address in brokers:
        calls.ask(address, code, {"subject": subject}, body=body)


def _acl_of_known(calls: Calls, address: str, name: str) -> list[PolicyEntry]:
    if not _user(calls, address, name):
        raise UserNotFound(f"{address} has no user {name}; create_user({name!r}, SECRET) creates it")
    return _acl(calls, address, name)


def _acl(calls: Calls, address: str, name: str) -> list[PolicyEntry]:
    def parse(body: bytes) -> list[PolicyEntry]:
        return _parse_acl(java_json.loads_object(body)) if body.strip() else []

    return _read(calls, address, RequestCode.AUTH_GET_ACL, {"subject": f"{_SUBJECT}{name}"}, parse)


# --- answers -----------------------------------------------------------------------------------------------------


def _read(
    calls: Calls, address: str, code: RequestCode, fields: dict[str, str], parse: Callable[[bytes], list[_Found]]
) -> list[_Found]:
    body = calls.ask(address, code, fields)
    try:
        return [replace(each, brokers=(address,)) for each in parse(body)]
    except ValueError as error:
        # The answer may have passwords.
        raise ServerError(f"{address} answered {code.name} in another form than RocketMQ's") from error


def _merged(found: Iterable[_Found]) -> list[_Found]:
    """Return equal ones of several brokers as one, sorted."""
    brokers: dict[_Found, list[str]] = {}
    for each in found:
        brokers.setdefault(replace(each, brokers=()), []).extend(each.brokers)
    return [replace(each, brokers=tuple(addresses)) for each, addresses in sorted(brokers.items(), key=_order)]


def _order(item: tuple[User | PolicyEntry, list[str]]) -> tuple[str, ...]:
    each = item[0]
    return (each.name, *item[1]) if isinstance(each, User) else (each.user, *_place(each), *item[1])


def parse_users(body: bytes) -> list[User]:
    """Read the answer with all users. Raises `ValueError` for anything else."""
    return [_parse_user(value) for value in _objects(java_json.loads(body) if body.strip() else None)]


def _parse_user(value: dict[str, Any]) -> User:
    return User(
        _text(value, "username"), _text(value, "userType", "Normal"), _text(value, "userStatus", "enable") != "disable"
    )


def parse_acls(body: bytes) -> list[PolicyEntry]:
    """Read the answer with the policies of all users. Raises `ValueError` for anything else."""
    values = _objects(java_json.loads(body) if body.strip() else None)
    return [entry for value in values for entry in _parse_acl(value)]


def _parse_acl(value: dict[str, Any]) -> list[PolicyEntry]:
    name = _text(value, "subject").removeprefix(_SUBJECT)
    return [
        PolicyEntry(
            name,
            _text(policy, "policyType", "Custom"),
            _text(entry, "resource"),
            tuple(_texts(entry.get("actions"))),
            tuple(_texts(entry.get("sourceIps"))),
            _text(entry, "decision") == "Allow",
        )
        for policy in _objects(value.get("policies"))
        for entry in _objects(policy.get("entries"))
    ]


def _objects(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value or [], list) or not all(isinstance(each, dict) for each in value or []):
        raise ValueError("no list of objects")
    return value or []


def _texts(value: Any) -> list[str]:
    found = value or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("no list of texts")
    return found


def _text(value: dict[str, Any], field: str, missing: str | None = None) -> str:
    found = value.get(field)
    if found is None and missing is not None:
        return missing
    if not isinstance(found, str):
        raise ValueError(f"{field} is no text")  # noqa: TRY004 (one error for bad bytes)
    return found


def _name(text: str) -> str:
    name = text.removeprefix(_SUBJECT)
    if not name.strip():
        raise IllegalName("the name of the user is blank")
    return name


def _secret(text: str) -> str:
    if not text.strip():
        raise ValueError("the secret key is blank")
    return text
