"""
The options of `df.write.format("ferromq")` and of `df.writeStream`, parsed and checked.

endpoint    `host:port` of a broker's gRPC endpoint, which knows the other brokers
topic       the topic of rows without a column `topic`, or with a null in it
delivery    `at-least-once` (default): a repeated task sends its rows again; or `exactly-once`: the brokers store each
            row once, see `docs/spark.md`
writerId    names a batch for exactly-once: the same for every attempt at this write, and for no other write; letters,
            digits and _ . : - . A stream needs none: the id of its query, which its checkpoint keeps, names it
timeout     seconds for a request, and for retries while a broker restarts; default 30
tls, tlsTrust, tlsCertificate, tlsKey, tlsServerName
            as for reading, see `ferromq.spark.options`
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ferromq.client.tls import Tls
from ferromq.errors import ConfigError, IllegalName
from ferromq.protocol import naming
from ferromq.protocol.endpoints import parse_endpoints
from ferromq.spark.options import TLS, OptionReader, parse_tls

OPTIONS = ("endpoint", "topic", "delivery", "writerId", "timeout", *TLS)
AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
MAX_WRITER = 128
_SPARKS = {
    *("checkpointlocation", "queryname"),
    *("asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms"),
}
"""Spark's own options, in lower case, which it passes on."""
_WRITER = re.compile(r"[A-Za-z0-9_.:-]+\Z")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The parsed options of a write."""

    endpoint: str
    topic: str | None = None
    is_once: bool = False
    """Whether delivery is exactly-once."""
    writer: str | None = None
    timeout: int = 30
    tls: Tls | None = None
    """None: without TLS."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> "WriteOptions":
        """Parse Spark's *options*. ConfigError names the option, its value and the allowed values."""
        own = {name: value for name, value in options.items() if name.lower() not in _SPARKS}
        given = OptionReader(own, (*OPTIONS, "path"), elsewhere={"namesrv": "reading; writing needs 'endpoint'"})
        path = given.get("path")
        if path is not None:
            raise ConfigError(f"option 'path' is {path!r}, but topics have no path; write .option('topic', 'orders')")
        endpoint = given.get("endpoint")
        if endpoint is None:
            raise ConfigError("option 'endpoint' is missing; write .option('endpoint', '127.0.0.1:8081')")
        try:
            parse_endpoints(endpoint)
        except ConfigError as error:
            raise ConfigError(f"option 'endpoint' is {endpoint!r}; allowed: host:port") from error
        topic = given.get("topic")
        if topic is not None:
            try:
                naming.check_topic(topic)
            except IllegalName as error:
                raise ConfigError(f"option 'topic' is {topic!r}; allowed: the name of a topic ({error})") from error
        is_once = given.choice("delivery", AT_LEAST_ONCE, (AT_LEAST_ONCE, EXACTLY_ONCE)) == EXACTLY_ONCE
        writer = given.get("writerId")
        if writer is not None and (len(writer) > MAX_WRITER or not _WRITER.match(writer)):
            raise ConfigError(
                f"option 'writerId' is {writer!r}; allowed: at most {MAX_WRITER} letters, digits and _ . : -"
            )
        if is_once and writer is None and not is_stream:
            raise ConfigError(
                "option 'writerId' is missing; with 'delivery' 'exactly-once' a batch needs one: "
                "the same for every attempt at this write, and for no other write"
            )
        if writer is not None and not is_once:
            raise ConfigError(f"option 'writerId' is {writer!r}, but needs 'delivery' 'exactly-once'")
        if writer is not None and is_stream:
            # With a new checkpoint epochs restart at 0, and brokers would drop the rows as duplicates.
            raise ConfigError(
                f"option 'writerId' is {writer!r}, but the id of its query, which the checkpoint keeps, names a "
                "stream; remove the option. It is for batches, also those of foreachBatch"
            )
        return cls(endpoint, topic, is_once, writer, given.positive("timeout", 30), parse_tls(given))
