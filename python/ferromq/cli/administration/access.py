"""The commands `ferromq user` and `ferromq acl`. Secret keys come from a prompt, a file or stdin, never from a word."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import click

from ferromq.admin import PolicyEntry, User
from ferromq.admin.access import ACTIONS, POLICIES
from ferromq.cli.administration.target import (
    Target,
    cluster_option,
    complete_brokers,
    confirm,
    connected,
    yes_option,
)
from ferromq.cli.parsing import Group, with_options
from ferromq.errors import ConfigError

_LONGEST_SECRET = 4096
"""Bytes."""

_broker = click.option(
    "--broker",
    metavar="NAME",
    help="Only this broker, by name or address, or the name server at this address; else all brokers of a cluster.",
    shell_complete=complete_brokers,
)
_type = click.option(
    "--type", "kind", type=click.Choice(("normal", "super"), case_sensitive=False), help="A super user may do all."
)
secret_file_option = click.option(
    "--secret-file", type=click.File("rb"), metavar="FILE", help="Read the secret key from a file; - is stdin."
)
_places: tuple[Callable[[Any], Any], ...] = (_broker, cluster_option, connected)
_located = with_options(*_places)
"""Adds the options that say which brokers are meant."""


@click.group("user", cls=Group)
def user() -> None:
    """List, create, update and delete users of access control."""


@user.command("list")
@_located
def list_users(target: Target, **place: Any) -> None:
    """Print all users; one whose settings differ between brokers has several rows."""
    with target.admin() as admin:
        _show_users(target, admin.users(**place))


@user.command("show")
@click.argument("name")
@_located
def show_user(target: Target, name: str, **place: Any) -> None:
    """Print a user and its policies."""
    with target.admin() as admin:
        found, entries = admin.users(name, **place), admin.acls(name, **place)
    if target.output.is_json:
        target.output.document({"users": found, "policies": entries})
        return
    _show_users(target, found)
    if entries:
        target.output.text("")
        _show_entries(target, entries)


def _show_users(target: Target, found: Sequence[User]) -> None:
    if target.output.is_json:
        target.output.document(found)
        return
    rows = [(each.name, each.kind, each.enabled, " ".join(each.brokers)) for each in found]
    target.output.table(("user", "type", "enabled", "brokers"), rows, "<<<<")


@user.command("create")
@click.argument("name")
@_type
@secret_file_option
@_located
def create_user(target: Target, name: str, *, kind: str | None, secret_file: BinaryIO | None, **place: Any) -> None:
    """Create a user; asks for the secret key, unless --secret-file has it."""
    secret = read_secret(name, secret_file)
    with target.admin() as admin:
        admin.create_user(name, secret, super_user=kind == "super", **place)
    target.output.done(f"created user {name}", {"created": name})


@user.command("update")
@click.argument("name")
@_type
@click.option("--enable/--disable", "enabled", default=None, help="Whether it may do anything.")
@click.option("--secret", "asks", is_flag=True, help="Ask for another secret key.")
@secret_file_option
@_located
def update_user(
    target: Target, name: str, *, kind: str | None, asks: bool, secret_file: BinaryIO | None, **settings: Any
) -> None:
    """Change the given settings of a user."""
    if kind is None and settings["enabled"] is None and not asks and secret_file is None:
        raise click.UsageError("give what to change: --type, --enable, --disable, --secret or --secret-file")
    secret = read_secret(name, secret_file) if asks or secret_file is not None else None
    is_super = None if kind is None else kind == "super"
    with target.admin() as admin:
        admin.update_user(name, secret_key=secret, super_user=is_super, **settings)
    target.output.done(f"updated user {name}", {"updated": name})


@user.command("delete")
@click.argument("name")
@yes_option
@_located
def delete_user(target: Target, name: str, *, yes: bool, **place: Any) -> None:
    """Delete a user with its policies."""
    confirm(f"Delete the user {name} with its policies from {target.context.address}?", yes=yes)
    with target.admin() as admin:
        admin.delete_user(name, **place)
    target.output.done(f"deleted user {name}", {"deleted": name})


def read_secret(name: str, file: BinaryIO | None) -> str:
    """Return the secret key: the content of *file* without the end of its line, or what is typed at the terminal."""
    if file is None:
        if not sys.stdin.isatty():
            raise ConfigError(
                "there is no terminal to ask for the secret key at; give --secret-file FILE, or - for stdin"
            )
        return str(click.prompt(f"Secret key of {name}", hide_input=True, confirmation_prompt=True, err=True))
    content = file.read(_LONGEST_SECRET + 1)
    if len(content) > _LONGEST_SECRET:
        raise ConfigError(f"the secret key is longer than {_LONGEST_SECRET} bytes")
    try:
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ConfigError("the secret key is no text in UTF-8") from None
    if "\n" in secret or "\r" in secret:
        raise ConfigError("the secret key has a line break; give --secret-file a file with one line, the secret key")
    return secret


_entry = with_options(
    click.argument("user"),
    click.option(
        *("--resource", "resources"),
        multiple=True,
        required=True,
        metavar="RESOURCE",
        help="Topic:NAME, Group:NAME, Cluster:NAME, a prefix with *, or *; may be repeated.",
    ),
    click.option(
        *("--action", "actions"),
        multiple=True,
        required=True,
        type=click.Choice(ACTIONS, case_sensitive=False),
        help="May be repeated.",
    ),
    click.option("--deny", is_flag=True, help="Deny the actions; else they are allowed."),
    click.option(
        *("--source", "sources"),
        multiple=True,
        metavar="ADDRESS",
        help="Only for clients at this address or range, such as 10.0.0.0/8; may be repeated.",
    ),
    click.option("--policy", type=click.Choice(POLICIES, case_sensitive=False), default="Custom", help="Which policy."),
    *_places,
)


@click.group("acl", cls=Group)
def acl() -> None:
    """List, create, update and delete what users may do."""


@acl.command("list")
@click.option("--resource", metavar="TEXT", help="Only entries whose resource contains this.")
@_located
def list_acls(target: Target, *, resource: str | None, **place: Any) -> None:
    """Print the entries of all policies."""
    with target.admin() as admin:
        found = admin.acls(**place)
    _show_entries(target, [each for each in found if resource is None or resource in each.resource])


@acl.command("show")
@click.argument("user")
@_located
def show_acl(target: Target, user: str, **place: Any) -> None:
    """Print the entries of a user's policies."""
    with target.admin() as admin:
        _show_entries(target, admin.acls(user, **place))


def _show_entries(target: Target, found: Sequence[PolicyEntry]) -> None:
    if target.output.is_json:
        target.output.document(found)
        return
    rows = [
        (
            *(each.user, each.policy, each.resource, ",".join(each.actions), "allow" if each.allow else "deny"),
            *(",".join(each.sources) or "all", " ".join(each.brokers)),
        )
        for each in found
    ]
    target.output.table(("user", "policy", "resource", "actions", "decision", "sources", "brokers"), rows, "<<<<<<<")


@acl.command("create")
@_entry
def create_acl(target: Target, user: str, *, resources: Sequence[str], deny: bool, **options: Any) -> None:
    """Allow a user to do something, or deny it."""
    with target.admin() as admin:
        admin.create_acl(user, resources, allow=not deny, **options)
    target.output.done(f"created entries of {user} for {', '.join(resources)}", {"created": resources, "user": user})


@acl.command("update")
@_entry
def update_acl(target: Target, user: str, *, resources: Sequence[str], deny: bool, **options: Any) -> None:
    """Replace the entries for the given resources."""
    with target.admin() as admin:
        admin.update_acl(user, resources, allow=not deny, **options)
    target.output.done(f"updated entries of {user} for {', '.join(resources)}", {"updated": resources, "user": user})


@acl.command("delete")
@click.argument("user")
@click.option("--resource", metavar="RESOURCE", help="Only the entry for this resource; else all of both policies.")
@click.option("--policy", type=click.Choice(POLICIES, case_sensitive=False), help="Of --resource (Custom).")
@yes_option
@_located
def delete_acl(target: Target, user: str, *, resource: str | None, yes: bool, **options: Any) -> None:
    """Delete entries of a user's policies."""
    if resource is None and options["policy"] is not None:
        raise click.UsageError("--policy belongs to --resource; leave out both to delete all entries of both policies")
    what = "all policies" if resource is None else f"the entry for {resource}"
    confirm(f"Delete {what} of {user} from {target.context.address}?", yes=yes)
    with target.admin() as admin:
        admin.delete_acl(user, resource=resource, **options)
    target.output.done(f"deleted {what} of {user}", {"deleted": resource, "user": user})
