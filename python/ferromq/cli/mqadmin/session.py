"""What the commands share: the servers that they ask, and how they print."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from ferromq.admin.calls import Calls
from ferromq.admin.inventory import version_text
from ferromq.admin.lone_brokers import LoneBrokers
from ferromq.admin.name_servers import NameServers
from ferromq.admin.results import BrokerStatus
from ferromq.admin.settings import java_text
from ferromq.cli.administration.output import DONE, fail, visible
from ferromq.cli.administration.target import TLS_VARIABLES, NoAddress, chosen, tls_of_environment
from ferromq.cli.mqadmin.options import Given
from ferromq.client.tls import Tls
from ferromq.core.credentials import credentials_of
from ferromq.errors import ConfigError, GroupNotFound, OutcomeUnknown, ServerError, TopicNotFound
from ferromq.protocol import java_json, naming
from ferromq.protocol.codes import RequestCode
from ferromq.protocol.endpoints import parse_endpoints, parse_name_servers
from ferromq.protocol.message_queue import load_nested
from ferromq.protocol.route import MASTER, TopicRoute

if TYPE_CHECKING:
    from ferromq.cli.administration.contexts import Context

P = ParamSpec("P")
T = TypeVar("T")
TIMEOUT = 10.0
"""Seconds for each request."""
_LINES = "\n\t"
_NO_PART_OF_A_NAME = re.compile(r"[^\w.@#-]|^\.+")
"""Characters of a client's id that the name of a file must not have."""
_WHEEL_TOPIC, _LITE_PREFIX = "rmq_sys_wheel_timer", "%LMQ%"


class Session:
    """Asks the servers of a cluster for one command, and prints."""

    def __init__(self, calls: Calls, find: Callable[[], NameServers]) -> None:
        self.calls = calls
        self._find = find
        self.code = DONE
        """The exit code of a command that ends without an error."""

    @functools.cached_property
    def names(self) -> NameServers:
        """The name servers. A command for one broker does without. Raises `ConfigError` if no address is given."""
        return self._find()

    def ask(
        self,
        address: str,
        code: RequestCode,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        also: int = 0,
    ) -> bytes:
        """
        Ask a server and return the body of its answer. A field that is None is left out.

        The code *also* counts as success without a body.
        """
        given = {name: java_text(value) for name, value in (fields or {}).items() if value is not None}
        return self.calls.ask(address, code, given, also, body=body)

    def table(
        self, address: str, code: RequestCode, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> dict[str, Any]:
        """Ask a server and return the object in its answer; an empty one if it has none."""
        return self.decoded(address, code, java_json.loads_object, self.ask(address, code, fields, body) or b"{}")

    def nested(self, address: str, code: RequestCode, fields: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Ask a server and return the object in its answer, which may have queues as keys."""
        return self.decoded(address, code, load_nested, self.ask(address, code, fields) or b"{}")

    def decoded(
        self, address: str, code: RequestCode, read: Callable[P, T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Return what *read* makes of an answer. Raises `ServerError` for one in another form."""
        try:
            return read(*arguments, **options)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ServerError(f"{address} answered {code.name} with something else: {error!r:.200}") from error

    def part(self, question: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T | None:
        """Return the answer of one of several servers; without one tell the error, and go on: None."""
        try:
            return question(*arguments, **options)
        except OutcomeUnknown as error:
            self.code = fail(error)
            return None

    def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic. Raises `TopicNotFound`."""
        return self.names.route(topic)

    def brokers_of(self, topic: str, option: str | None = None) -> list[str]:
        """
        Return the address of each broker of a topic's route, of its master, or else of a slave.

        *option* is the value of `-c`: the cluster whose brokers count; or, for a lite topic and for that of delayed
        messages, the topic that has the route. Raises `ConfigError` for a cluster without a broker of the topic.
        """
        if option is not None and is_routed_elsewhere(topic):
            topic, option = option, None
        brokers = [broker for broker in self.route(topic).brokers if option in {None, broker.cluster}]
        if option is not None and not brokers:
            raise ConfigError(f"no broker of the cluster {option} has the topic {topic}")
        return [broker.master_or_slave for broker in brokers if broker.addresses]

    def of_group(self, group: str, cluster: str | None = None) -> list[str]:
        """Return the brokers of a group, of all clusters or of one: those of its retries. Raises `GroupNotFound`."""
        try:
            return self.brokers_of(naming.RETRY_PREFIX + group, cluster)
        except TopicNotFound as error:
            raise GroupNotFound(
                f"no broker has retries of the consumer group {group}, which its first consumer makes: the group "
                "has had no consumer so far, or does not exist",
                error.code,
                error.remark,
            ) from error

    def targets(self, given: Given, *, with_slaves: bool = False) -> list[str]:
        """
        Return the broker `-b`, or the brokers of the cluster `-c`.

        Raises `ConfigError` without both, and the failure of a broker without a master if only masters are meant.
        """
        address, cluster = given.get("b"), given.get("c")
        if address is not None:
            return [address]
        if cluster is None:
            raise ConfigError("give a broker (-b HOST:PORT) or a cluster (-c NAME)")
        if with_slaves:
            return [broker.address for broker in self.names.brokers(cluster)]
        masters, lost = self.names.masters_and_lost(cluster)
        for broker in lost:
            raise broker.error
        return masters

    def name_of(self, address: str) -> BrokerStatus:
        """Return the registered broker at an address. Raises `ConfigError`."""
        for broker in self.names.brokers(None):
            if broker.address == address:
                return broker
        raise ConfigError(f"no broker at {address} is registered with {self.names}")

    def address_of(self, name: str) -> str:
        """Return the address of the master with a name. Raises `ConfigError`."""
        for broker in self.names.brokers(None):
            if (broker.name, broker.broker_id) == (name, MASTER):
                return broker.address
        raise ConfigError(f"no master of the broker {name} is registered with {self.names}")

    def say(self, text: str = "") -> None:
        """Print a line, or several."""
        click.echo(visible(text, _LINES))

    def note(self, text: str) -> None:
        """Print a line about the command itself."""
        click.echo(visible(f"ferromq: {text}"), err=True)


@contextmanager
def opened(given: str | None, timeout: float = TIMEOUT) -> Iterator[Session]:
    """
    Yield a session with the cluster of the *given* name servers, or else of the environment or the current context.

    Raises `ConfigError` for a text that is not an address. Without any address a session can ask single brokers.
    """
    missing: ConfigError | None = None
    context: Context | None = None
    try:
        context = chosen(None, {} if given is None else {"namesrv": given})
    except NoAddress as error:
        missing = error
    files = tls_of_environment()
    tls: bool | Tls = Tls(*map(files.get, TLS_VARIABLES)) if files else False
    keys: tuple[str | None, str | None] = (None, None)
    if context is not None:
        tls, keys = context.tls_options, (context.access_key, context.secret_key)
    calls = Calls(timeout, tls=tls, credentials=credentials_of(*keys))

    def find() -> NameServers:
        if missing is not None:
            raise missing
        assert context is not None
        if context.namesrv is not None:
            return NameServers(parse_name_servers(context.namesrv), calls)
        from ferromq.admin.discovery import discover  # noqa: PLC0415 (it imports gRPC, which others do without)

        assert context.endpoint is not None
        names = discover(parse_endpoints(context.endpoint), calls, tls)
        if isinstance(names, LoneBrokers):
            raise ConfigError(f"the broker at {names} registers with no name server, which this command needs; give -n")
        return names

    try:
        yield Session(calls, find)
    finally:
        calls.close(0)


def is_routed_elsewhere(topic: str) -> bool:
    """Return whether name servers know no route of a topic: a lite one, and that of delayed messages."""
    return topic.startswith(_LITE_PREFIX) or topic == _WHEEL_TOPIC


def file_name(text: str) -> str:
    """Return the name of a file for a text of a server, which leads to no other directory."""
    return _NO_PART_OF_A_NAME.sub("_", text)


def version(number: Any) -> str:
    """Return RocketMQ's name of a version: `V5_5_0`."""
    return "V" + version_text(int(number)).replace(".", "_").replace("-", "_")


def java(value: object) -> str:
    """Return a value as Java prints it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{java(key)}={java(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(java, value)) + "]"
    return str(value)
