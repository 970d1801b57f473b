"""Opens the users of a server at its start, and creates those that its options name."""

import logging
from pathlib import Path

from ferromq._ferromq import Server
from ferromq.access.plain_acl import PlainAcl
from ferromq.access.users import ENABLED, SUPER, PushedUser, UserTable, has_super
from ferromq.config.access import AccessConfig, credentials
from ferromq.errors import ConfigError

_log = logging.getLogger("ferromq.access")

FILE = "access.json"
"""The name of the file of users."""


def open_users(access: AccessConfig, server: Server, path: Path, *, cluster: str) -> UserTable | None:
    """
    Open the table in the file *path*, create the users of the options, and have *server* check requests.

    Returns None if access control is off.

    Raises `CorruptStore`, `ConfigError` for options that do not fit together and for unknown requests, and `OSError`.
    """
    if access.authorization_enabled and not access.authentication_enabled:
        raise ConfigError(
            "authorization_enabled needs authentication_enabled: without signatures a request can name any user; set "
            "both"
        )
    if not access.authentication_enabled:
        if access.plain_acl:
            raise ConfigError("plain_acl (migrateAuthFromV1Enabled) needs authentication_enabled; set both")
        return None

    def push(users: list[PushedUser]) -> None:
        server.set_access(
            users,
            cluster=cluster,
            authorizes=access.authorization_enabled,
            unsigned=list(access.authentication_whitelist),
            unrestricted=list(access.authorization_whitelist),
        )

    initial = credentials("initial_user", access.initial_user)
    inner = access.inner()
    # An administrator may be both.
    machine = inner[0] if inner is not None and (initial is None or initial[0] != inner[0]) else ""
    table = UserTable(path, push, machine)
    try:
        table.push_all()
    except ValueError as error:
        raise ConfigError(f"authentication_whitelist, authorization_whitelist: {error}") from error
    for wanted in (initial, inner):
        if wanted is not None and table.get(wanted[0]) is None:
            table.create(*wanted, SUPER, ENABLED)
    if access.plain_acl:
        _migrate(table, Path(access.plain_acl))
    if not has_super(table.all()):
        raise ConfigError(
            "authentication_enabled is on, but no enabled super user is there to administer the server; set "
            "initial_user (initAuthenticationUser) to one with a new name"
        )
    return table


def _migrate(table: UserTable, place: Path) -> None:
    """Add the users of ACL 1.0 that are not known yet, and log what cannot be carried over."""
    found = PlainAcl(place)
    added = table.add_new(found.users)
    _log.info("users of plain_acl added added=%d known=%d", len(added), len(found.users) - len(added))
    for lost in found.left_out:
        _log.warning("not carried over from plain_acl: %s", lost)
