"""The options of a server for access control: who must sign requests, and whose policies are checked."""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ferromq.config.keys import LIST, Form, JoinedKeys, Key, Keys
from ferromq.config.limits import parse_limits
from ferromq.config.reader import Config
from ferromq.config.values import boolean, split_list
from ferromq.errors import ConfigError

SECRETS = frozenset({"initial_user", "inner_credentials"})
"""Options with secret keys: never shown."""
USER_NAME = re.compile(r"[^\s:,/=\x00-\x1f\x7f]{1,255}\Z")
"""The names of users. A signature's header separates them with the characters left out."""
USER_NAME_RULE = "1 to 255 characters without blanks and without : , / ="
_PACKAGE = "apache.rocketmq.v2."
_AUTH = "org.apache.rocketmq.auth"
# RocketMQ has no users without naming its classes.
_CLASSES: Mapping[str, tuple[str, ...]] = {
    "authenticationProvider": (f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",),
    "authenticationMetadataProvider": (f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",),
    "authenticationStrategy": tuple(
        f"{_AUTH}.authentication.strategy.{kind}AuthenticationStrategy" for kind in ("Stateless", "Stateful")
    ),
    "authorizationProvider": (f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",),
    "authorizationMetadataProvider": (f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",),
    "authorizationStrategy": tuple(
        f"{_AUTH}.authorization.strategy.{kind}AuthorizationStrategy" for kind in ("Stateless", "Stateful")
    ),
}


def _enabled(given: Mapping[str, str]) -> dict[str, Any]:
    """Return what is checked; the second needs the first."""
    checked = {
        "authentication_enabled": boolean(given.get("authenticationEnabled", "false")),
        "authorization_enabled": boolean(given.get("authorizationEnabled", "false")),
    }
    if checked["authorization_enabled"] and not checked["authentication_enabled"]:
        raise ValueError(
            "authorizationEnabled needs authenticationEnabled: without signatures a request can name any user; set both"
        )
    return checked


def _class(key: str) -> Callable[[str], dict[str, Any]]:
    """Return the function that accepts RocketMQ's own classes alone."""
    known = _CLASSES[key]

    def read(text: str) -> dict[str, Any]:
        if text and text not in known:
            raise ValueError(f"{text} is not supported; use {' or '.join(known)}, or leave {key} out")
        return {}

    return read


def _migrated(text: str) -> dict[str, Any]:
    """Return the place of ACL 1.0's files: RocketMQ looks in its home."""
    if not boolean(text):
        return {}
    home = os.environ.get("ROCKETMQ_HOME", "")
    if not home:
        raise ValueError(
            "RocketMQ's files are in the directory conf of ROCKETMQ_HOME, which is not set; set it, or use plain_acl"
        )
    return {"plain_acl": str(Path(home) / "conf")}


def _pair(name: str, secret: str) -> Form:
    """Return the form of RocketMQ's JSON object with these two members."""

    def read(text: str) -> str:
        try:
            content = json.loads(text) if text else {}
            values = [content.get(name, ""), content.get(secret, "")]
        except (ValueError, AttributeError):
            values = [None]
        if text and not all(isinstance(value, str) and value for value in values):
            # The value itself is a secret.
            raise ValueError(f'it is not JSON such as {{"{name}":"…","{secret}":"…"}}')
        return ":".join(map(str, values)) if text else ""

    def write(value: str) -> str:
        user, _, password = value.partition(":")
        return json.dumps({name: user, secret: password}) if value else ""

    return Form(read, write)


_COMMAS = Form(lambda text: split_list(text.replace(",", ";")), ",".join)


@dataclass(frozen=True, kw_only=True)
class AccessConfig(Config):
    """The options of a server for access control."""

    authentication_enabled: bool = False
    """Whether each request needs the signature of a user."""
    authorization_enabled: bool = False
    """Whether a policy must allow what a request does; needs `authentication_enabled`."""
    initial_user: str = field(default="", repr=False)
    """`name:secret key` of a super user that is created at the start, if there is no user of that name."""
    inner_credentials: str = field(default="", repr=False)
    """`name:secret key` with which the server signs its own requests; a super user, created as `initial_user` is."""
    authentication_whitelist: tuple[str, ...] = ()
    """Requests without signatures: codes, and names of gRPC requests such as apache.rocketmq.v2.HeartbeatRequest."""
    authorization_whitelist: tuple[str, ...] = ()
    """Requests without policies, as in `authentication_whitelist`."""
    plain_acl: str = ""
    """plain_acl.yml of RocketMQ's access control before 5.3, or the directory `conf` with it: its users are added."""
    show_passwords: bool = False
    """Whether super users get the secret keys of users, as in RocketMQ."""
    limits: tuple[str, ...] = ()
    """Messages and bytes a second of users and topics, such as `topic=orders send=1000 send_bytes=4MiB`."""

    properties: ClassVar[Keys] = {
        "initAuthenticationUser": Key("initial_user", _pair("username", "password")),
        "innerClientAuthenticationCredentials": Key("inner_credentials", _pair("accessKey", "secretKey")),
        "authenticationWhitelist": Key("authentication_whitelist", _COMMAS),
        "authorizationWhitelist": Key("authorization_whitelist", _COMMAS),
        "limits": Key("limits", LIST),
        "migrateAuthFromV1Enabled": _migrated,
        **{key: _class(key) for key in _CLASSES},
    }

    secrets: ClassVar[frozenset[str]] = SECRETS
    joined: ClassVar[JoinedKeys] = {("authenticationEnabled", "authorizationEnabled"): _enabled}

    def inner(self) -> tuple[str, str] | None:
        """Return name and secret key with which the server signs its own requests."""
        return credentials("inner_credentials", self.inner_credentials)

    def needs_policy(self, route: int | str) -> bool:
        """Return whether a policy must allow a request: a code, or the name of a gRPC method."""
        return self.authorization_enabled and not _has(self.authorization_whitelist, route)

    def needs_nothing(self, route: int | str) -> bool:
        """Return whether a request, as for `needs_policy`, needs neither a signature nor a policy."""
        is_unsigned = not self.authentication_enabled or _has(self.authentication_whitelist, route)
        return is_unsigned and not self.needs_policy(route)

    def __post_init__(self) -> None:
        parse_limits(self.limits)
        for name in sorted(SECRETS):
            credentials(name, getattr(self, name))
        for name in ("authentication_whitelist", "authorization_whitelist"):
            for request in getattr(self, name):
                if not (request.isascii() and request.isdecimal()) and not request.startswith(_PACKAGE):
                    raise ConfigError(
                        f"{name} has {request!r}; use the code of a request, such as 105, or the name of a gRPC "
                        f"request, such as {_PACKAGE}QueryRouteRequest"
                    )
                if request.isdecimal() and int(request) in _OF_USERS:
                    raise ConfigError(f"{name} has {request}, which changes or tells users and policies; leave it out")


def _has(names: tuple[str, ...], route: int | str) -> bool:
    if isinstance(route, int):
        # A code may have leading zeros.
        return any(name.isdecimal() and int(name) == route for name in names)
    return _PACKAGE + ("TelemetryCommand" if route == "Telemetry" else f"{route}Request") in names


_OF_USERS = range(3001, 3011)
"""The requests of users and policies: who sends them must be known."""


def credentials(what: str, text: str) -> tuple[str, str] | None:
    """Return name and secret key in *text*; None if it is empty. Raises `ConfigError` naming *what*, not the text."""
    if not text:
        return None
    name, _, secret = text.partition(":")
    if not USER_NAME.match(name) or not secret.strip():
        raise ConfigError(f"{what} is not NAME:SECRET; a name has {USER_NAME_RULE}, a secret key is not blank")
    return name, secret
