"""
Users and policies of RocketMQ's access control before 5.3: `conf/plain_acl.yml` and the files in `conf/acl`.

What becomes of an account is as in RocketMQ's `AuthMigrator`, except for a permission that ACL 1.0 does not know: ACL
1.0 denies it, `AuthMigrator` allows everything.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ferromq.access.users import (
    ALLOW,
    CUSTOM,
    DEFAULT,
    DENY,
    NORMAL,
    SUPER,
    BadAccess,
    PolicyEntry,
    User,
    canonical_resource,
    check_name,
)
from ferromq.errors import ConfigError

PIP_LINE = "pip install 'ferromq[acl]'"
_ACTIONS: Mapping[str, tuple[str, ...]] = {
    "PUB": ("Pub",),
    "SUB": ("Sub",),
    "PUB|SUB": ("Pub", "Sub"),
    "SUB|PUB": ("Pub", "Sub"),
}
_TRUE = ("true", "yes", "on")
_FIELDS = frozenset(
    {
        *("accessKey", "secretKey", "whiteRemoteAddress", "admin"),
        *("defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms"),
    }
)
_GLOBAL = "globalWhiteRemoteAddresses"


class PlainAcl:
    """The users in a file or a directory of ACL 1.0, and what they lose. Raises `ConfigError` for other content."""

    def __init__(self, place: Path) -> None:
        self.users: dict[str, User] = {}
        """By name; of several accounts with one name, the first counts, as in RocketMQ."""
        self.left_out: list[str] = []
        """What cannot be carried over, without secret keys."""
        for file in _files(place):
            self._add_file(str(file), _load(file))

    def _add_file(self, file: str, content: Mapping[str, Any]) -> None:
        if content.get(_GLOBAL):
            self._lose(file, f"{_GLOBAL}: requests from these addresses need signatures now")
        for name in sorted(content.keys() - {_GLOBAL, "accounts"}):
            self._lose(file, f"{name}: its meaning is not known")
        for number, account in enumerate(_list(file, content, "accounts"), 1):
            where = f"{file}, account {number}"
            if not isinstance(account, dict):
                raise ConfigError(f"{where} is no object; it has accessKey and secretKey")
            self._add(where, account)

    def _add(self, where: str, account: Mapping[str, Any]) -> None:
        name, secret = (_text(where, account, field) for field in ("accessKey", "secretKey"))
        try:
            check_name(name)
        except BadAccess as error:
            self._lose(where, f"the account: {error}")
            return
        if not secret.strip():
            self._lose(where, f"the account {name}: its secretKey is missing or blank")
            return
        if name in self.users:
            self._lose(where, f"the account {name}: an account before it has this accessKey")
            return
        if _text(where, account, "whiteRemoteAddress"):
            self._lose(where, f"whiteRemoteAddress of {name}: requests from these addresses need signatures now")
        for field in sorted(account.keys() - _FIELDS):
            self._lose(where, f"{field} of {name}: its meaning is not known")
        kind = SUPER if _text(where, account, "admin").lower() in _TRUE else NORMAL
        policies = {CUSTOM: dict(self._custom(where, name, account)), DEFAULT: dict(self._default(where, account))}
        found = {key: entries for key, entries in policies.items() if entries}
        self.users[name] = User(name, secret, kind, policies=found)

    def _custom(self, where: str, name: str, account: Mapping[str, Any]) -> Iterator[tuple[str, PolicyEntry]]:
        for field, kind in (("topicPerms", "Topic"), ("groupPerms", "Group")):
            for text in _list(where, account, field):
                target, separator, permission = text.partition("=") if isinstance(text, str) else ("", "", "")
                try:
                    resource = canonical_resource(f"{kind}:{target.strip()}")
                except BadAccess:
                    resource = ""
                # Of a name with `*`, ACL 1.0 meant just that name.
                if not separator or not permission.strip() or not resource or "*" in resource:
                    self._lose(where, f"{text!r} in {field} of {name}: it is not NAME=PERMISSION")
                    continue
                yield resource, self._entry(where, resource, permission)

    def _default(self, where: str, account: Mapping[str, Any]) -> Iterator[tuple[str, PolicyEntry]]:
        for field, resource in (("defaultTopicPerm", "Topic:*"), ("defaultGroupPerm", "Group:*")):
            permission = _text(where, account, field)
            if permission.strip():
                yield resource, self._entry(where, resource, permission)

    def _entry(self, where: str, resource: str, permission: str) -> PolicyEntry:
        actions = _ACTIONS.get(permission.strip())
        if actions is None and permission.strip() != "DENY":
            self._lose(where, f"the permission {permission!r} for {resource}: it is not known, and so denied")
        return PolicyEntry(resource, actions or ("All",), decision=ALLOW if actions else DENY)

    def _lose(self, where: str, what: str) -> None:
        self.left_out.append(f"{where}: {what}")


def _files(place: Path) -> list[Path]:
    """Return the file, or those of a directory `conf`, in RocketMQ's order: `acl` first."""
    if not place.is_dir():
        return [place]
    found = sorted(file for file in (place / "acl").rglob("*") if file.suffix in {".yml", ".yaml"} and file.is_file())
    plain = place / "plain_acl.yml"
    if plain.exists():
        found.append(plain)
    if not found:
        raise ConfigError(f"plain_acl: {place} has neither plain_acl.yml nor files in acl; name the file, or unset it")
    return found


def _load(file: Path) -> dict[str, Any]:
    """Return the content of a file, whose scalars are all texts, as RocketMQ reads them."""
    try:
        import yaml  # noqa: PLC0415 (an extra, for one start)
    except ImportError as error:
        raise ConfigError(f"plain_acl: to read {file}, install PyYAML: {PIP_LINE}") from error
    try:
        # It makes texts, lists and objects alone, so a secret key of digits keeps its zeros.
        content = yaml.load(file.read_text(encoding="utf-8"), yaml.BaseLoader)  # noqa: S506 (see above)
    except yaml.MarkedYAMLError as error:
        # The text of the error would show the line, which may have a secret key.
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ConfigError(f"plain_acl: {file}{line} is no YAML") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise ConfigError(f"plain_acl: {file} cannot be read: {why}") from None
    if content in (None, ""):
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ConfigError(f"plain_acl: {file} has no object with accounts")
    return content


def _list(where: str, content: Mapping[str, Any], name: str) -> list[Any]:
    value = content.get(name) or []
    if not isinstance(value, list):
        raise ConfigError(f"plain_acl: {where}: {name} is no list")
    return value


def _text(where: str, content: Mapping[str, Any], name: str) -> str:
    value = content.get(name) or ""
    if not isinstance(value, str):
        raise ConfigError(f"plain_acl: {where}: {name} is no text")
    return value
