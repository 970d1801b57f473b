"""
The options of a broker as types, for functions that take them as keyword arguments.

A value may also be the text that a configuration file has for it: `"64MiB"`, `"72h"`, `"orders,clicks"`. A bare number
is bytes or seconds. The classes of the options have the documentation and the defaults; a test compares them with these
types.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TypedDict


class StoreChanges(TypedDict, total=False):
    """The options of the store that can change while the broker runs."""

    flush: str | None
    flush_every: Mapping[str, int] | str | None
    retention_age: timedelta | str | None
    retention_age_by_topic: Mapping[str, timedelta | str] | str | None
    retention_hours: Sequence[int] | int | str | None
    retention_total_bytes: int | str | None
    retention_disk_usage: Sequence[float] | str | None
    retention_on_expiry: str | None


class StoreOptions(StoreChanges, total=False):
    """The options of `StoreConfig`."""

    max_message_size: int | str | None
    commit_log_file_size: int | str | None
    commit_log_paths: Sequence[str] | str | None
    read_only_commit_log_paths: Sequence[str] | str | None
    consume_queue_file_entries: int | str | None
    index_enabled: bool | None
    index_slots: int | str | None
    index_entries: int | str | None
    property_crc: bool | None
    mapped_bytes: int | str | None
    open_files: int | str | None
    disk_reserve: int | str | None
    delay_levels: str | None
    dedup_window: timedelta | float | str | None
    dedup_writers: int | str | None
    progress_interval: timedelta | float | str | None
    fast_boot: bool | None


class BrokerOptions(StoreOptions, total=False):
    """The options of `BrokerConfig` without `store` and `archive`, which `embedded` takes as arguments of its own."""

    name: str
    cluster: str
    namesrv: Sequence[str] | str
    listen: str
    fast_listen: str
    grpc_listen: str
    advertise: str
    grpc_advertise: str
    auto_create_topics: bool
    auto_create_groups: bool
    default_queues: int | str
    handler_threads: int | str
    # MembershipConfig
    broker_id: int | str
    permission: int | str
    register_interval: timedelta | float | str
    register_timeout: timedelta | float | str
    force_register: bool
    compress_registration: bool
    sync_interval: timedelta | float | str
    drain: timedelta | float | str
    drain_quiet: timedelta | float | str
    remote_stop: bool
    watch_config: bool
    protected_keys: Sequence[str] | str
    # ListenerConfig
    network_memory: int | str
    max_connections: int | str | None
    max_connections_by_address: int | str | None
    accept_backlog: int | str
    send_buffer: int | str
    receive_buffer: int | str
    frame_limit: int | str
    idle_time: timedelta | float | str
    one_way_limit: int | str
    call_limit: int | str
    tls_mode: str
    tls_certificate: str | os.PathLike[str]
    tls_key: str | os.PathLike[str]
    tls_client_auth: str
    tls_trust: str | os.PathLike[str]
    tls_outgoing: bool
    tls_outgoing_trust: str | os.PathLike[str]
    tls_outgoing_check: str
    tls_outgoing_certificate: str | os.PathLike[str]
    tls_outgoing_key: str | os.PathLike[str]
    # MonitoringConfig
    metrics_listen: str
    metrics_limit: int | str
    metrics_push: str
    spans_push: str
    push_headers: Sequence[str] | str
    push_interval: timedelta | float | str
    push_timeout: timedelta | float | str
    # AccessConfig
    authentication_enabled: bool
    authorization_enabled: bool
    initial_user: str
    inner_credentials: str
    authentication_whitelist: Sequence[str] | str
    authorization_whitelist: Sequence[str] | str
    plain_acl: str
    show_passwords: bool
    limits: Sequence[str] | str
    # SendConfig
    check_types: str
    mixed_topics: bool
    recall: bool
    region: str
    sql_filters: bool
    store_replies: bool
    trace: bool
    trace_topic: str
    # ConsumeConfig
    transfer_count: int | str
    transfer_bytes: int | str
    far_transfer_count: int | str
    far_transfer_bytes: int | str
    near_memory_ratio: int | str
    filter_scan_entries: int | str
    notify_consumers: bool
    client_lease: timedelta | float | str
    client_memory: int | str | None
    client_memory_by_connection: int | str
    lock_memory: int | str
    # GrpcConfig
    grpc_tls_mode: str
    grpc_tls_certificate: str | os.PathLike[str]
    grpc_tls_key: str | os.PathLike[str]
    grpc_tls_client_auth: str
    grpc_tls_trust: str | os.PathLike[str]
    grpc_message_limit: int | str
    # CompatConfig
    compat: str
    min_invisible_time: timedelta | float | str | None
    max_invisible_time: timedelta | float | str | None
    max_delay_time: timedelta | float | str | None
    grpc_creates_topics: bool | None
    ordered_redelivery: str | None
    # TimerConfig
    timer_enabled: bool | None
    timer_max_delay: timedelta | float | str | None
    timer_precision: timedelta | float | str | None
    timer_roll_window: int | str | None
    timer_wheel_slots: int | str | None
    timer_log_file_size: int | str | None
    # TransactionConfig
    transaction_timeout: timedelta | float | str
    transaction_check_interval: timedelta | float | str
    transaction_check_max: int | str
    reject_transactions: bool
