"""The options of a server's HTTP endpoint for metrics and health checks, and RocketMQ's keys for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ferromq.config.keys import WHOLE, JoinedKeys, Key, Keys
from ferromq.config.reader import Config
from ferromq.config.values import check_address, check_positive, whole

OFF, AUTO = "off", "auto"
BROKER_PORT, NAME_SERVER_PORT = 5557, 5558
"""The ports of `auto`; the first is RocketMQ's."""
_PROMETHEUS = {"metricsExporterType": "DISABLE", "metricsPromExporterHost": "", "metricsPromExporterPort": "5557"}
_OTHER_TYPES = {"OTLP_GRPC", "1", "LOG", "3"}


def _exporter(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the address of RocketMQ's keys. Without a host, Java listens on the address of the broker."""
    kind, host, port = (given.get(key, default) for key, default in _PROMETHEUS.items())
    whole(port)
    if kind in {"DISABLE", "0"}:
        return {"metrics_listen": OFF} if "metricsExporterType" in given else {}
    if kind not in {"PROM", "2"}:
        what = "is not supported" if kind in _OTHER_TYPES else "is no type of exporter"
        raise ValueError(f"{kind} {what}: metrics are exported for Prometheus alone; use PROM or DISABLE")
    return {"metrics_listen": f"{host.strip() or '0.0.0.0'}:{port}"}  # noqa: S104 (the file asks for it)


@dataclass(frozen=True, kw_only=True)
class MonitoringConfig(Config):
    """The options of a server's HTTP endpoint for metrics and health checks."""

    metrics_listen: str = OFF
    """`host:port` for `/metrics`, `/healthz` and `/readyz`; port 0 takes a free one. `off`: none. `auto`: 127.0.0.1."""

    def __post_init__(self) -> None:
        if self.metrics_listen not in {OFF, AUTO}:
            check_address("metrics_listen", self.metrics_listen)


@dataclass(frozen=True, kw_only=True)
class BrokerMonitoringConfig(MonitoringConfig):
    """The same of a broker, with the limit of its metrics."""

    metrics_limit: int = 2_000
    """Most topics, and most pairs of a topic and a group, that metrics name; further ones are summed as `other`."""

    properties: ClassVar[Keys] = {
        "metricsOtelCardinalityLimit": Key("metrics_limit", WHOLE),
    }
    joined: ClassVar[JoinedKeys] = {
        tuple(_PROMETHEUS): _exporter,
    }

    def __post_init__(self) -> None:
        MonitoringConfig.__post_init__(self)
        check_positive("metrics_limit", self.metrics_limit, 0)
