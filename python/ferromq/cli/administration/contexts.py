"""
Named addresses of clusters, with TLS options and keys, in a file that its owner alone can read.

The file is JSON: `{"current": NAME, "contexts": {NAME: {FIELD: TEXT, …}, …}}`.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ferromq.client.tls import Tls
from ferromq.core.credentials import credentials_of
from ferromq.errors import ConfigError
from ferromq.files.atomic import followed, put_file
from ferromq.protocol.endpoints import parse_endpoints, parse_name_servers
from ferromq.protocol.naming import check_namespace

FILE_VARIABLE = "FERROMQ_CONTEXTS"
"""The environment variable with another path of the file."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where a cluster is, and how to speak with it."""

    namesrv: str | None = None
    endpoint: str | None = None
    namespace: str = ""
    tls: bool = False
    tls_trust: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_server_name: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """
        Raise `ConfigError` unless it has one address, which is `host:port`, and both keys or none.

        Raises `IllegalName` for a namespace.
        """
        if (self.namesrv is None) == (self.endpoint is None):
            raise ConfigError(
                "give one address: --namesrv HOST:9876 of name servers, or --endpoint HOST:8081 of a broker"
            )
        if self.namesrv is not None:
            parse_name_servers(self.namesrv)
        else:
            parse_endpoints(self.endpoint or "")
        check_namespace(self.namespace)
        if self.access_key is not None or self.secret_key is not None:
            credentials_of(self.access_key, self.secret_key)

    @property
    def tls_options(self) -> bool | Tls:
        """What clients take as `tls`."""
        given = (self.tls_trust, self.tls_certificate, self.tls_key, self.tls_server_name)
        return Tls(*given) if any(given) else self.tls

    def client_options(self) -> dict[str, Any]:
        """Return what `ferromq.Admin` and `ferromq.connect` take, without the timeout: with the secret key."""
        return {
            **{name: getattr(self, name) for name in ("namesrv", "endpoint", "namespace", "access_key", "secret_key")},
            "tls": self.tls_options,
        }

    @property
    def address(self) -> str:
        """The address, for people."""
        return f"namesrv {self.namesrv}" if self.namesrv is not None else f"endpoint {self.endpoint}"


class Contexts:
    """The file of contexts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.current: str | None = None
        self.known: dict[str, Context] = {}

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ) -> "Contexts":
        """
        Read the file; without one there are no contexts.

        Raises `ConfigError` for a file in another form, or that others can read or write.
        """
        contexts = cls(_path(environment))
        try:
            mode = contexts.path.stat().st_mode
            content = contexts.path.read_bytes()
        except FileNotFoundError:
            return contexts
        except IsADirectoryError as error:
            raise ConfigError(f"{contexts.path} is a directory; {FILE_VARIABLE} names the file of contexts") from error
        if mode & 0o077:
            raise ConfigError(f"{contexts.path} is open to others than its owner; run chmod 600 {contexts.path}")
        try:
            contexts.current, contexts.known = parse(content)
        except ValueError as error:
            raise ConfigError(f"{contexts.path} is no file of contexts: {error}; correct or remove it") from error
        return contexts

    @classmethod
    @contextmanager
    def changing(cls, environment: Mapping[str, str] = os.environ) -> Iterator["Contexts"]:
        """
        Read the file and, at the end, replace it; commands that change it meanwhile wait.

        Raises as `load`, and `OSError` if the file, or the lock beside it, cannot be written.
        """
        # Commands that reach the file by other links have the same lock.
        path = followed(_path(environment))
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The file itself is replaced, so it cannot be locked.
        descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            contexts = cls.load(environment)
            yield contexts
            contexts.save()
        finally:
            os.close(descriptor)

    def save(self) -> None:
        """Replace the file, whose lock the caller holds; its owner alone can read it."""
        known = {
            name: {key: value for key, value in asdict(each).items() if value} for name, each in self.known.items()
        }
        text = json.dumps({"current": self.current, "contexts": known}, indent=2)
        put_file(self.path, f"{text}\n".encode(), 0o600)

    def find(self, name: str) -> Context:
        """Return a context. Raises `ConfigError` with the known names."""
        if name not in self.known:
            names = ", ".join(sorted(self.known)) or "none"
            raise ConfigError(f"there is no context {name!r}; known are: {names}; ferromq context add adds one")
        return self.known[name]


def parse(content: bytes) -> tuple[str | None, dict[str, Context]]:
    """Return the current context and all contexts in the bytes of a file. Raises `ValueError` for anything else."""
    value = _object(_json(content), "the file")
    types = {each.name: bool if each.name == "tls" else str for each in fields(Context)}
    known = {}
    for name, entry in _object(value.get("contexts"), "contexts").items():
        for key, given in _object(entry, f"context {name}").items():
            if key not in types:
                raise ValueError(f"context {name} has the unknown field {key}")
            if type(given) is not types[key]:
                raise ValueError(f"{key} of context {name} is no {types[key].__name__}")
        known[name] = Context(**entry)
    current = value.get("current")
    if current is not None and current not in known:
        raise ValueError(f"current is {current!r:.40}, which is no context of it")
    return current, known


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no JSON object")  # noqa: TRY004 (one error for bad bytes)
    return value


def _path(environment: Mapping[str, str]) -> Path:
    if environment.get(FILE_VARIABLE):
        return Path(environment[FILE_VARIABLE])
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "ferromq" / "contexts.json"
