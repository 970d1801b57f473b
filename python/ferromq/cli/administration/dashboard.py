"""The command `ferromq dashboard`."""

import contextlib
import errno
import importlib.util
from collections.abc import Iterator, Sequence

import click

from ferromq.cli.administration.target import Target, connected
from ferromq.cli.parsing import Command
from ferromq.errors import ConfigError
from ferromq.process.stop_signals import StopSignals
from ferromq.protocol.endpoints import DASHBOARD, is_loopback

_NEEDED = ("jinja2", "starlette", "uvicorn")
INSTALL = "pip install 'ferromq[dashboard]'"
"""What installs the packages that the dashboard needs."""
_TIMEOUT = 10.0


def is_installed() -> bool:
    """Whether the packages of the extra are there."""
    return all(importlib.util.find_spec(name) is not None for name in _NEEDED)


@click.command("dashboard", cls=Command)
@click.option("--listen", metavar="HOST:PORT", default=DASHBOARD, help=f"Its address ({DASHBOARD}).")
@click.option("--allow-changes", is_flag=True, help="Take changes of visitors who did not sign in.")
@click.option("--sign-in", is_flag=True, help="Each page needs a user of the cluster's access control.")
@click.option("--name", "names", multiple=True, metavar="HOST", help="A host name of its address; may be repeated.")
@click.option("--certificate", metavar="FILE", help="Speak HTTPS with this certificate (PEM).")
@click.option("--key", metavar="FILE", help="Its key (PEM).")
@click.option("--insecure", is_flag=True, help="Let other machines reach it without sign-in or without HTTPS.")
@connected
def dashboard(
    target: Target,
    *,
    listen: str,
    allow_changes: bool,
    sign_in: bool,
    names: Sequence[str],
    certificate: str | None,
    key: str | None,
    insecure: bool,
) -> None:
    """
    Serve pages about the cluster for a browser, until Ctrl-C.

    They are read-only without --allow-changes, unless a visitor signs in with a user of the cluster.
    """
    if not is_installed():
        raise ConfigError(f"the dashboard needs packages that are not installed; run {INSTALL}")
    from ferromq.aio import Admin  # noqa: PLC0415 (other commands need neither)
    from ferromq.dashboard import Dashboard, Settings  # noqa: PLC0415

    settings = Settings(listen, allow_changes, sign_in, insecure, tuple(names), certificate, key)
    context, timeout = target.context, target.timeout

    def connect(keys: tuple[str, str]) -> Admin:
        return Admin(timeout=timeout, **{**context.client_options(), "access_key": keys[0], "secret_key": keys[1]})

    with StopSignals() as stop, contextlib.closing(Dashboard(settings, connect, timeout=timeout)) as served:
        target.output.done(f"dashboard of {context.address} at {served.url}; stop with Ctrl-C", {"url": served.url})
        stop.wait()


def check_beside(listen: str | None) -> None:
    """Raise `ConfigError` unless only this machine reaches the address of a dashboard of `beside`."""
    if listen is None or not is_installed():
        return
    from ferromq.dashboard.settings import split  # noqa: PLC0415 (as in `beside`)

    if not is_loopback(split(listen)[0]):
        raise ConfigError(
            f"other machines reach {listen}, and the dashboard of dev knows no users: choose a port of 127.0.0.1, or "
            "give --no-dashboard and run ferromq dashboard"
        )


@contextlib.contextmanager
def beside(namesrv: str, listen: str | None, *, is_tls_needed: bool) -> Iterator[str]:
    """
    Serve a read-only dashboard of the cluster of this process meanwhile; yield its address, or what it needs.

    *listen*: None is the usual address, which may be taken. Raises `OSError` if another one cannot be bound.
    """
    if not is_installed():
        yield f"needs {INSTALL}"
        return
    if is_tls_needed:
        yield "is not served: these servers take TLS alone; run ferromq dashboard with --tls"
        return
    from ferromq.aio import Admin  # noqa: PLC0415 (servers without a dashboard need neither)
    from ferromq.dashboard import Dashboard, Settings  # noqa: PLC0415

    def connect(keys: tuple[str, str]) -> Admin:
        return Admin(namesrv, access_key=keys[0], secret_key=keys[1])

    try:
        served = Dashboard(Settings(listen=listen or DASHBOARD), connect, timeout=_TIMEOUT)
    except OSError as error:
        if listen is not None or error.errno != errno.EADDRINUSE:
            raise
        yield f"is not served: {DASHBOARD} is taken; choose another address with --dashboard-listen"
        return
    with contextlib.closing(served):
        yield served.url
