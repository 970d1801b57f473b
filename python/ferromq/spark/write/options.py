"""
The options of `df.write.format("ferromq")` and of `df.writeStream`, parsed and checked. Pure: no Spark, no sockets.

endpoint    where the brokers are: `host:port` of a broker's gRPC endpoint; the others are found there
topic       the topic to write to, where there is no column `topic`, or where that is null
delivery    `at-least-once` (default): a task that is run again sends its rows again; or `exactly-once`: the brokers
            store each row once, see `docs/spark.md`
writerId    who writes, for a batch that is to be written exactly once: the same for every try of the same write, and
            for no other write; letters, digits and _ . : - . A stream has none: it is known by the id of its query,
            which its checkpoint keeps
timeout     seconds a request has, and for how long a broker that restarts is waited for; default 30
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ferromq.errors import ConfigError, IllegalName
from ferromq.protocol import naming
from ferromq.protocol.endpoints import parse_endpoints
from ferromq.spark.options import OptionReader

OPTIONS = ("endpoint", "topic", "delivery", "writerId", "timeout")
AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
MAX_WRITER = 128
_SPARKS = {
    *("checkpointlocation", "queryname"),
    *("asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms"),
}
"""What Spark reads itself and passes on, in small letters."""
_WRITER = re.compile(r"[A-Za-z0-9_.:-]+\Z")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a user asked for."""

    endpoint: str
    topic: str | None = None
    is_once: bool = False
    """Whether each row is to be stored once."""
    writer: str | None = None
    timeout: int = 30

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> "WriteOptions":
        """Read Spark's *options*; ConfigError names the option, what was given and what is allowed."""
        own = {name: value for name, value in options.items() if name.lower() not in _SPARKS}
        given = OptionReader(own, (*OPTIONS, "path"), elsewhere={"namesrv": "reading; writing needs 'endpoint'"})
        path = given.get("path")
        if path is not None:
            raise ConfigError(f"option 'path' is {path!r}, but topics have none; write .option('topic', 'orders')")
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
                "the same for every try of this write, and for no other write"
            )
        if writer is not None and not is_once:
            raise ConfigError(f"option 'writerId' is {writer!r}, but is of no use without 'delivery' 'exactly-once'")
        if writer is not None and is_stream:
            # With a new checkpoint epochs begin at 0 again, and brokers would take its rows for those they know.
            raise ConfigError(
                f"option 'writerId' is {writer!r}, but a stream is known by the id of its query, which its checkpoint "
                "keeps; allowed: for batches, also those of foreachBatch. Leave it out"
            )
        return cls(endpoint, topic, is_once, writer, given.positive("timeout", 30))
