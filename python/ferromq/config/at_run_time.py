"""Which options of a broker, and which keys of a name server, can change while it runs."""

from ferromq.config.broker import BrokerConfig
from ferromq.config.compat import CompatConfig
from ferromq.config.consume import ConsumeConfig
from ferromq.config.keys import Key
from ferromq.config.store import StoreConfig

_OF_CLIENTS = {"client_memory", "client_memory_by_connection", "lock_memory"}

BROKER_OPTIONS = frozenset(
    {"watch_config", "auto_create_topics", "auto_create_groups", "default_queues", "mixed_topics", "check_types"}
    | {"flush", "flush_every"}
    | {"permission", "force_register", "sync_interval", "register_interval", "drain", "drain_quiet"}
    | {"region", "trace", "transaction_timeout", "transaction_check_interval", "transaction_check_max"}
    | {"recall", "reject_transactions", "sql_filters", "limits", "grpc_message_limit"}
    | (frozenset(CompatConfig.names()) - {"compat"})
    | (frozenset(ConsumeConfig.names()) - {"notify_consumers", "client_lease"} - _OF_CLIENTS)
    | {name for name in StoreConfig.names() if name.startswith("retention_")}
)
"""The options of a broker."""
BROKER_KEYS = {
    name: key.option
    for name, key in BrokerConfig.properties.items()
    if isinstance(key, Key) and key.option in BROKER_OPTIONS
}
"""RocketMQ's keys that set one of them, and which."""
NAME_SERVER_KEYS = frozenset(
    {
        *("deleteTopicWithBrokerRegistration", "enableAllTopicList", "enableTopicList", "lease", "needWaitForService"),
        *("notifyMinBrokerIdChanged", "orderMessageEnable", "returnOrderTopicConfigToBroker"),
        *("scanNotActiveBrokerInterval", "supportActingMaster", "waitSecondsForService"),
    }
)
"""RocketMQ's keys of a name server."""
