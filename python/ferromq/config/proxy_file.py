"""
RocketMQ's `rmq-proxy.json`: which of its keys are options of a broker.

A broker of ferromq answers gRPC clients itself, as RocketMQ's proxy does in local mode.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ferromq.config.access import AccessConfig
from ferromq.config.broker import BrokerConfig
from ferromq.config.compat import CompatConfig
from ferromq.config.grpc import GrpcConfig
from ferromq.config.keys import LIST, JoinedKeys, Key, Keys
from ferromq.config.properties_file import Place
from ferromq.config.rocketmq_keys import ACCESS, WITHOUT_EFFECT, by_key, fixed, flag
from ferromq.config.values import boolean, whole
from ferromq.errors import ConfigError

_NO_LITE = "lite topics and queues are not supported"
_METRICS = "the broker exports the metrics"
_SENDS = "the limits of a message are fixed"
_SETTINGS = "the settings of clients for retries and long polls are fixed"
_WITHOUT_EFFECT = by_key(
    {
        "the broker's own threads answer gRPC clients": """
            consumerProcessorThreadPoolNums consumerProcessorThreadPoolQueueCapacity enablePrintJstack grpcBossLoopNum
            grpcClientManagerThreadPoolNums grpcClientManagerThreadQueueCapacity grpcConsumerThreadPoolNums
            grpcConsumerThreadQueueCapacity grpcProducerThreadPoolNums grpcProducerThreadQueueCapacity
            grpcRouteThreadPoolNums grpcRouteThreadQueueCapacity grpcThreadPoolNums grpcThreadPoolQueueCapacity
            grpcTransactionThreadPoolNums grpcTransactionThreadQueueCapacity grpcWorkerLoopNum enableGrpcEpoll
            grpcShutdownTimeSeconds printJstackInMillis printThreadPoolStatusInMillis producerProcessorThreadPoolNums
            producerProcessorThreadPoolQueueCapacity
        """,
        "network_memory and max_connections bound connections": """
            grpcMaxConcurrentCallsPerConnection grpcClientIdleTimeMills
        """,
        "there is no process between the broker and its clients": """
            brokerConfigPath channelExpiredInSeconds channelExpiredTimeout contextExpiredInSeconds detectInterval
            detectTimeout enableAclRpcHookForClusterMode enableBatchAck grpcProxyRelayRequestTimeoutInSeconds
            heartbeatSyncerThreadPoolNums heartbeatSyncerThreadPoolQueueCapacity heartbeatSyncerTopicClusterName
            heartbeatSyncerTopicName localProxyConnectTimeoutMs lockTimeoutMsInHandleGroup
            longPollingReserveTimeInMillis metadataThreadPoolNums metadataThreadPoolQueueCapacity proxyClusterName
            proxyName rocketMQClusterName rocketmqMQClientNum sendLatencyEnable startDetectorEnable
            subscriptionGroupConfigCacheExpiredSeconds subscriptionGroupConfigCacheMaxNum
            subscriptionGroupConfigCacheRefreshSeconds topicConfigCacheExpiredSeconds topicConfigCacheMaxNum
            topicConfigCacheRefreshSeconds topicRouteServiceCacheExpiredSeconds topicRouteServiceCacheMaxNum
            topicRouteServiceCacheRefreshSeconds topicRouteServiceThreadPoolNums
            topicRouteServiceThreadPoolQueueCapacity
        """,
        "remoting clients reach the broker at listenPort of its own file": """
            enableRemotingLocalProxyGrpc regionId remotingAccessAddr remotingDefaultThreadPoolNums
            remotingDefaultThreadPoolQueueCapacity remotingHeartbeatThreadPoolNums
            remotingHeartbeatThreadPoolQueueCapacity remotingListenPort remotingPullMessageThreadPoolNums
            remotingPullThreadPoolQueueCapacity remotingSendMessageThreadPoolNums remotingSendThreadPoolQueueCapacity
            remotingTopicRouteThreadPoolNums remotingTopicRouteThreadPoolQueueCapacity
            remotingUpdateOffsetThreadPoolNums remotingUpdateOffsetThreadPoolQueueCapacity
            remotingWaitTimeMillsInDefaultQueue remotingWaitTimeMillsInHeartbeatQueue remotingWaitTimeMillsInPullQueue
            remotingWaitTimeMillsInSendQueue remotingWaitTimeMillsInTopicRouteQueue
            remotingWaitTimeMillsInUpdateOffsetQueue traceOn
        """,
        "clients get the address in grpc_advertise or advertise": "localServeAddr useEndpointPortFromRequest",
        "the store keeps and renews leases": """
            defaultInvisibleTimeMills invisibleTimeMillisWhenClear maxRenewRetryTimes renewAheadTimeMillis
            renewMaxThreadPoolNums renewMaxTimeMillis renewSchedulePeriodMillis renewThreadPoolNums
            renewThreadPoolQueueCapacity returnHandleGroupThreadPoolNums
        """,
        "the store keeps transactions": """
            transactionDataExpireMillis transactionDataExpireScanPeriodMillis transactionDataMaxNum
            transactionDataMaxWaitClearMillis transactionHeartbeatBatchNum transactionHeartbeatPeriodSecond
            transactionHeartbeatThreadPoolNums transactionHeartbeatThreadPoolQueueCapacity
        """,
        "the broker's messageDelayLevel is used": "messageDelayLevel",
        "changed certificate files are reloaded within a second": "tlsCertWatchIntervalMs",
        _METRICS: """
            metricCollectorAddress metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
            metricLoggingExporterIntervalInMills metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta
            metricsLabel metricsPromExporterHost metricsPromExporterPort
        """,
        ACCESS: """
            aclCacheExpiredSeconds aclCacheMaxNum aclCacheRefreshSeconds userCacheExpiredSeconds userCacheMaxNum
            userCacheRefreshSeconds
        """,
        _NO_LITE: "maxLiteRenewNumPerChannel maxLiteTopicSize maxSyncLiteSubscriptionRate",
    }
)


def _mode(text: str) -> dict[str, Any]:
    if text.upper() != "LOCAL":
        raise ValueError(
            f"{text} is not supported: a broker of ferromq is no proxy for other brokers; use LOCAL, or run RocketMQ's "
            "proxy, which works with brokers of ferromq"
        )
    return {}


def _metrics(text: str) -> dict[str, Any]:
    if text not in {"DISABLE", "0"}:
        raise ValueError(
            f"{text} is not supported: the broker exports the metrics; use DISABLE, and set metricsExporterType in the "
            "broker's file"
        )
    return {}


def _message_size(text: str) -> dict[str, Any]:
    if whole(text) != 4 << 20:
        raise ValueError("maxMessageSize of the broker's file also limits gRPC; set it there and omit it here")
    return {}


def _too(*options: str) -> Callable[[str], dict[str, Any]]:
    """Return the function that turns options on: the proxy of a broker cannot turn off what the broker's file has."""
    return lambda text: dict.fromkeys(options, True) if boolean(text) else {}


REFUSED_OF_PROXY: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "metricsExporterType": _metrics,
    "proxyMode": _mode,
    "maxMessageSize": _message_size,
    **dict.fromkeys(("namesrvDomain", "namesrvDomainSubgroup"), fixed("", "name servers are not looked up")),
    "metricCollectorMode": fixed("off", _METRICS),
    "tlsKeyPassword": fixed("", "encrypted keys are not supported"),
    "enableMessageBodyEmptyCheck": flag("true", "messages without a body are refused"),
    "enableProxyAutoRenew": flag("true", "a lease is renewed if its receive asks for it"),
    "useDelayLevel": flag("false", "a message is delivered at its time, not at that of a delay level"),
    "maxMessageGroupSize": fixed("64", _SENDS),
    "maxUserPropertySize": fixed("16384", _SENDS),
    "userPropertyMaxNum": fixed("128", _SENDS),
    "maxTransactionRecoverySecond": fixed("3600", _SENDS),
    "grpcClientProducerMaxAttempts": fixed("3", _SETTINGS),
    "grpcClientProducerBackoffInitialMillis": fixed("10", _SETTINGS),
    "grpcClientProducerBackoffMaxMillis": fixed("1000", _SETTINGS),
    "grpcClientProducerBackoffMultiplier": fixed("2", _SETTINGS),
    "grpcClientConsumerLongPollingBatchSize": fixed("32", _SETTINGS),
    "grpcClientConsumerMinLongPollingTimeoutMillis": fixed("5000", _SETTINGS),
    "grpcClientConsumerMaxLongPollingTimeoutMillis": fixed("20000", _SETTINGS),
}
"""Keys of a proxy that only one value is accepted for: the one that describes ferromq."""


class ProxyKeys(BrokerConfig):
    """The keys of RocketMQ's proxy, and the broker's options that they set."""

    properties: ClassVar[Keys] = {
        "grpcServerPort": lambda text: {"grpc_listen": f"0.0.0.0:{whole(text)}"},
        "namesrvAddr": Key("namesrv", LIST),
        "enableTopicMessageTypeCheck": lambda text: {"check_types": "grpc" if boolean(text) else "none"},
        **{
            key: CompatConfig.properties[key]
            for key in ("minInvisibleTimeMillsForRecv", "maxInvisibleTimeMills", "maxDelayTimeMills")
        },
        **GrpcConfig.properties,
        **AccessConfig.properties,
        "authenticationEnabled": _too("authentication_enabled"),
        "authorizationEnabled": _too("authentication_enabled", "authorization_enabled"),
        **REFUSED_OF_PROXY,
    }
    joined: ClassVar[JoinedKeys] = GrpcConfig.joined
    without_effect: ClassVar[Mapping[str, str]] = {
        **_WITHOUT_EFFECT,
        # A proxy's file has the keys of access control, too.
        **{key: why for key, why in WITHOUT_EFFECT.items() if why == ACCESS},
    }


def options_of(path: str | Path, *, has_mode: bool = False) -> dict[str, Any]:
    """
    Return the options that the proxy's file *path* sets.

    With *has_mode* a flag gives the proxy's mode, and the file's is ignored. Raises `ConfigError` with all errors.
    """
    try:
        keys = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the proxy's file {path} cannot be read: {error}") from error
    if not isinstance(keys, dict):
        raise ConfigError(f"the proxy's file {path} is not a JSON object")
    if has_mode:
        keys.pop("proxyMode", None)
    place = Place(str(path))
    return ProxyKeys.translate({key: (_text(key, value, path), place) for key, value in keys.items()})


def _text(key: str, value: Any, path: str | Path) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise ConfigError(f"{key} in {path} is {json.dumps(value)}; expected a string, a number, true or false")
    return str(value).strip()
