"""The options of a server's metrics: the HTTP endpoint, also for health checks, pushes, and RocketMQ's keys."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import urlsplit

from ferromq.config.keys import LIST, MILLISECONDS, WHOLE, JoinedKeys, Key, Keys
from ferromq.config.reader import Config
from ferromq.config.values import check_address, check_positive, whole
from ferromq.errors import ConfigError

OFF, AUTO = "off", "auto"
BROKER_PORT, NAME_SERVER_PORT = 5557, 5558
"""The ports of `auto`; the first is RocketMQ's."""
SECRETS = frozenset({"push_headers"})
"""Options that may have tokens: never shown."""
_EXPORTER = {
    "metricsExporterType": "DISABLE",
    "metricsPromExporterHost": "",
    "metricsPromExporterPort": "5557",
    "metricsGrpcExporterTarget": "",
}
# What gRPC takes as metadata; a name that ends in `-bin` has bytes.
_HEADER = re.compile(r"([0-9a-z_.-]+):([ -~]+)\Z", re.IGNORECASE)


def _exporter(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the addresses of RocketMQ's keys. Without a host, Java listens on the address of the broker."""
    kind, host, port, target = (given.get(key, default).strip() for key, default in _EXPORTER.items())
    whole(port)
    if kind in {"DISABLE", "0"}:
        return {"metrics_listen": OFF} if "metricsExporterType" in given else {}
    if kind in {"OTLP_GRPC", "1"}:
        if not target:
            raise ValueError("OTLP_GRPC needs metricsGrpcExporterTarget, such as http://127.0.0.1:4317")
        return {"metrics_push": target if target.startswith("http") else f"https://{target}"}
    if kind not in {"PROM", "2"}:
        is_log = kind in {"LOG", "3"}
        why = "ferromq writes no metrics to its log, so LOG is refused" if is_log else f"{kind} is no type of exporter"
        raise ValueError(f"{why}; use PROM, OTLP_GRPC or DISABLE")
    return {"metrics_listen": f"{host or '0.0.0.0'}:{port}"}  # noqa: S104 (the file asks for it)


@dataclass(frozen=True, kw_only=True)
class MonitoringConfig(Config):
    """The options of a server's HTTP endpoint for metrics and health checks, and of where it pushes metrics."""

    metrics_listen: str = OFF
    """`host:port` for `/metrics`, `/healthz` and `/readyz`; port 0 takes a free one. `off`: none. `auto`: 127.0.0.1."""
    metrics_push: str = ""
    """`http://host:port`, or `https://…`, of a collector that gets the metrics by OTLP over gRPC. Empty: none."""
    push_headers: tuple[str, ...] = field(default=(), repr=False)
    """`name:value` of headers for the collectors, such as a token."""
    push_interval: timedelta = timedelta(minutes=1)
    """How often they get metrics and spans."""
    push_timeout: timedelta = timedelta(seconds=3)
    """How long one may take to answer."""

    secrets: ClassVar[frozenset[str]] = SECRETS

    def __post_init__(self) -> None:
        if self.metrics_listen not in {OFF, AUTO}:
            check_address("metrics_listen", self.metrics_listen)
        for name in ("push_interval", "push_timeout"):
            check_positive(name, getattr(self, name), timedelta())
        _check_target("metrics_push", self.metrics_push)
        for header in self.push_headers:
            match = _HEADER.match(header)
            if match is None or match[1].lower().endswith("-bin"):
                # The header itself may be a secret.
                raise ConfigError(
                    "push_headers has one that is not NAME:VALUE; a name has letters, digits and any of _.-, "
                    "and does not end in -bin; a value is of ASCII"
                )

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return names and values of the headers, as gRPC takes them."""
        pairs = (header.partition(":") for header in self.push_headers)
        return tuple((name.lower(), value.strip()) for name, _, value in pairs)


@dataclass(frozen=True, kw_only=True)
class BrokerMonitoringConfig(MonitoringConfig):
    """The same of a broker, with the limit of its metrics, and where it pushes spans."""

    metrics_limit: int = 2_000
    """Most topics, and most pairs of a topic and a group, that metrics name; further ones are summed as `other`."""
    spans_push: str = ""
    """What `metrics_push` is for metrics, for spans of the requests that clients trace."""

    properties: ClassVar[Keys] = {
        "metricsOtelCardinalityLimit": Key("metrics_limit", WHOLE),
        "metricsGrpcExporterHeader": Key("push_headers", LIST),
        "metricGrpcExporterIntervalInMills": Key("push_interval", MILLISECONDS),
        "metricGrpcExporterTimeOutInMills": Key("push_timeout", MILLISECONDS),
    }
    joined: ClassVar[JoinedKeys] = {
        tuple(_EXPORTER): _exporter,
    }

    def __post_init__(self) -> None:
        MonitoringConfig.__post_init__(self)
        check_positive("metrics_limit", self.metrics_limit, 0)
        _check_target("spans_push", self.spans_push)


def _check_target(name: str, target: str) -> None:
    if not target:
        return
    try:
        parts = urlsplit(target)
        is_right = parts.scheme in {"http", "https"} and parts.path in {"", "/"} and bool(parts.hostname and parts.port)
    except ValueError:
        is_right = False
    if not is_right or parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(f"{name} is {target!r}; expected http://HOST:PORT or https://HOST:PORT")
