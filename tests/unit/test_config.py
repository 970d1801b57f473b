"""Configuration: sources of values, their order, and errors."""

import logging
import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ferromq._ferromq import Clock, Store
from ferromq.broker.cluster.addresses import fast_address
from ferromq.config.broker import LIMIT_FOR_QUEUES, BrokerConfig
from ferromq.config.compat import CompatConfig
from ferromq.config.membership import MembershipConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.config.rocketmq_keys import REFUSED, WITHOUT_EFFECT
from ferromq.config.send import SendConfig
from ferromq.config.store import StoreConfig
from ferromq.config.timer import TimerConfig
from ferromq.config.transactions import TransactionConfig
from ferromq.errors import ConfigError


def write(path: Path, text: str) -> Path:
    """Write a configuration file."""
    path.write_text(text)
    return path


def test_later_sources_win(tmp_path: Path) -> None:
    """Defaults < file < environment < flags."""
    file = write(tmp_path / "b.toml", 'name = "file"\ncluster = "file"\ndefault_queues = 3\n')
    config = BrokerConfig.load(
        file,
        defaults={"store": "given", "name": "given"},
        environment={"FERROMQ_BROKER_CLUSTER": "environment", "FERROMQ_BROKER_NAME": "environment", "PATH": "/bin"},
        flags={"name": "flag", "flush": None},
    )
    assert (config.name, config.cluster, config.default_queues) == ("flag", "environment", 3)
    assert (config.store, config.storage.flush) == ("given", None)


def test_toml_values_have_units(tmp_path: Path) -> None:
    """Durations and sizes have readable units."""
    file = write(
        tmp_path / "b.toml",
        'register_interval = "500ms"\ncommit_log_file_size = "64MiB"\n'
        'progress_interval = 2\nnamesrv = ["a:1", "b:2"]\n',
    )
    config = BrokerConfig.from_file(file)
    assert config.membership.register_interval == timedelta(milliseconds=500)
    assert config.storage.commit_log_file_size == 64 << 20
    assert config.storage.progress_interval == timedelta(seconds=2)
    assert config.namesrv == ("a:1", "b:2")


def test_rocketmqs_file_is_read(tmp_path: Path) -> None:
    """Its keys have RocketMQ's meaning; keys without a meaning here are ignored."""
    file = write(
        tmp_path / "broker.conf",
        "# comment\nbrokerClusterName = C\nbrokerName=b\nbrokerId=0\ndeleteWhen=04\nfileReservedTime=48\n"
        "brokerRole=ASYNC_MASTER\nflushDiskType=SYNC_FLUSH\nnamesrvAddr=h:9876;i:9876\nlistenPort=10921\n"
        "brokerIP1=10.0.0.7\nautoCreateTopicEnable=false\nmappedFileSizeCommitLog=1048576\nregisterNameServerPeriod=10000\n",
    )
    config = BrokerConfig.load(file, environment={})
    assert (config.cluster, config.name, config.storage.flush) == ("C", "b", "group")
    assert config.namesrv == ("h:9876", "i:9876")
    assert (config.listen, config.advertise) == ("0.0.0.0:10921", "10.0.0.7")
    assert config.auto_create_topics is False
    assert config.storage.commit_log_file_size == 1048576
    assert config.membership.register_interval == timedelta(seconds=10)


@pytest.mark.parametrize(
    ("lines", "flush"),
    [
        ("flushDiskType=SYNC_FLUSH\nflushIntervalCommitLog=200", "group"),
        ("flushDiskType=ASYNC_FLUSH", "interval"),
        ("flushIntervalCommitLog=200", "interval 200ms"),
        ("flushCommitLogLeastPages=4", "interval 500ms pages 4"),
        ("flushCommitLogLeastPages=4\nflushCommitLogThoroughInterval=5000", "interval 500ms pages 4 thorough 5s"),
    ],
)
def test_rocketmqs_keys_of_flush_make_one_policy(tmp_path: Path, lines: str, flush: str) -> None:
    """The store shows it by our name."""
    config = BrokerConfig.from_properties(write(tmp_path / "b.conf", lines))
    store = Store(str(tmp_path / "store"), Clock.system(), commit_log_file_size=1 << 20, **config.storage.overrides())
    assert store.options()["flush"] == flush
    store.close()


@pytest.mark.parametrize(
    ("line", "option", "value"),
    [
        ("maxMessageSize=1000", "max_message_size", 1000),
        ("mappedFileSizeCommitLog=1048576", "commit_log_file_size", 1 << 20),
        ("mappedFileSizeConsumeQueue=6000000", "consume_queue_file_entries", 300_000),
        ("mappedFileSizeConsumeQueue=300001", "consume_queue_file_entries", 15_001),
        ("timerPrecisionMs=500", "timer_precision", timedelta(milliseconds=500)),
        ("maxHashSlotNum=500", "index_slots", 500),
        ("messageIndexEnable=false", "index_enabled", False),
        ("maxIndexNum=2000", "index_entries", 2000),
        ("flushConsumerOffsetInterval=5000", "progress_interval", timedelta(seconds=5)),
        ("messageDelayLevel=1s 5s 2h", "delay_levels", "1s 5s 2h"),
        ("enabledAppendPropCRC=true", "property_crc", True),
        ("storePathCommitLog=/a,/b", "commit_log_paths", ("/a", "/b")),
        ("readOnlyCommitLogStorePaths=/old", "read_only_commit_log_paths", ("/old",)),
        ("fileReservedTime=48", "retention_age", timedelta(days=2)),
        ("deleteWhen=04;16", "retention_hours", (4, 16)),
        ("diskMaxUsedSpaceRatio=60", "retention_disk_usage", (60, 85, 90)),
        ("diskMaxUsedSpaceRatio=88", "retention_disk_usage", (88, 88, 90)),
        ("diskMaxUsedSpaceRatio=95", "retention_disk_usage", (95, 95, 95)),
        ("cleanFileForciblyEnable=true", "retention_disk_usage", (75, 85, 90)),
        ("diskSpaceWarningLevelRatio=88\ncleanFileForciblyEnable=false", "retention_disk_usage", (75, 100, 88)),
    ],
)
def test_a_key_of_rocketmqs_store_is_an_option(tmp_path: Path, line: str, option: str, value: object) -> None:
    """By the name it has here."""
    config = BrokerConfig.from_properties(write(tmp_path / "b.conf", line))
    assert {**config.storage.overrides(), **config.timers.overrides()} == {option: value}


@pytest.mark.parametrize(
    ("line", "option", "value"),
    [
        ("storeReplyMessageEnable=false", "store_replies", False),
        ("timerRollWindowSlot=90000", "timer_roll_window", 90_000),
        ("registerNameServerPeriod=20000", "register_interval", timedelta(seconds=20)),
        ("registerBrokerTimeoutMills=4000", "register_timeout", timedelta(seconds=4)),
        ("forceRegister=false", "force_register", False),
        ("compressedRegister=true", "compress_registration", True),
        ("serverAsyncSemaphoreValue=32", "call_limit", 32),
        ("tls.server.keyPath=/k.pem", "tls_key", "/k.pem"),
        ("tls.server.trustCertPath=/t.pem", "tls_trust", "/t.pem"),
        ("tls.enable=true", "tls_outgoing", True),
        ("tls.client.trustCertPath=/t.pem", "tls_outgoing_trust", "/t.pem"),
        ("tls.client.authServer=true", "tls_outgoing_check", "authority"),
        ("tls.client.authServer=false", "tls_outgoing_check", "none"),
        ("tls.client.certPath=/c.pem", "tls_outgoing_certificate", "/c.pem"),
        ("tls.client.keyPath=/k.pem", "tls_outgoing_key", "/k.pem"),
        ("tls.server.authClient=true\ntls.server.need.client.auth=require", "tls_client_auth", "require"),
    ],
)
def test_a_key_of_rocketmq_sets_an_option(tmp_path: Path, line: str, option: str, value: object) -> None:
    """And no other one."""
    given = BrokerConfig.from_properties(write(tmp_path / "b.conf", line)).given()
    assert {name: found for name, found in given.items() if found != BrokerConfig().given()[name]} == {option: value}


def test_a_certificate_of_a_client_is_always_checked(tmp_path: Path) -> None:
    """RocketMQ may ask for one and take any."""
    lines = "tls.server.authClient=false\ntls.server.need.client.auth=require"
    with pytest.raises(ConfigError, match=r"set tls\.server.authClient=true or omit it"):
        BrokerConfig.from_properties(write(tmp_path / "b.conf", lines))


def test_every_key_with_an_effect_is_in_a_test() -> None:
    """By its name: a key that no test names may set anything."""
    texts = "".join(path.read_text() for path in Path(__file__).parents[1].glob("*/test_*.py"))
    keys = {*BrokerConfig.properties, *(key for group in BrokerConfig.joined for key in group)}
    assert {key for key in keys if not re.search(rf"(\\n|(?<![\w.])){re.escape(key)}(?![\w.])", texts)} == set()


def test_retention_is_written_as_people_say_it(tmp_path: Path) -> None:
    """In a file, and in the environment, in which a table is one line."""
    file = write(
        tmp_path / "b.toml",
        'retention_age = "forever"\nretention_age_by_topic = {clicks = "6h", audit = "30d"}\nretention_hours = [4]\n',
    )
    config = BrokerConfig.load(
        file,
        environment={
            "FERROMQ_BROKER_RETENTION_HOURS": "4,16",
            "FERROMQ_BROKER_RETENTION_TOTAL_BYTES": "100GiB",
            "FERROMQ_BROKER_RETENTION_DISK_USAGE": "75,85,90",
        },
    )
    ages = {"clicks": timedelta(hours=6), "audit": timedelta(days=30)}
    assert config.storage.overrides() == {
        "retention_age": timedelta.max,
        "retention_age_by_topic": ages,
        "retention_hours": (4, 16),
        "retention_total_bytes": 100 << 30,
        "retention_disk_usage": (75.0, 85.0, 90.0),
    }
    environment = {"FERROMQ_BROKER_RETENTION_AGE_BY_TOPIC": "clicks=6h, audit=30d"}
    assert BrokerConfig.load(environment=environment).storage.retention_age_by_topic == ages


def test_a_name_servers_file_is_read(tmp_path: Path) -> None:
    """RocketMQ's keys of a name server."""
    file = write(
        tmp_path / "n.properties", "listenPort=1234\nkvConfigPath=/x/kv.json\nscanNotActiveBrokerInterval=700\n"
    )
    config = NameServerConfig.from_properties(file)
    assert config.listen == "0.0.0.0:1234"
    assert config.kv_config_path == "/x/kv.json"
    assert config.scan_interval == timedelta(milliseconds=700)


def test_keys_without_effect_are_named_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each once, with the reason."""
    text = "brokerName=b\nslaveReadEnable=true\nslaveTimeout=3000\nhaMasterAddress=h:1\nslaveReadEnable=false\n"
    file = write(tmp_path / "broker.conf", text)
    BrokerConfig.from_properties(file)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1
    assert lines[0] == (
        "keys have no effect here, slaveReadEnable: slaves have no messages of their master yet; "
        f"slaveTimeout, haMasterAddress: logs are not replicated yet source={file}"
    )


def test_no_key_with_an_effect_is_warned_of() -> None:
    """Nor does a key mean two things."""
    joined = {key for keys in BrokerConfig.joined for key in keys}
    assert not WITHOUT_EFFECT.keys() & (BrokerConfig.properties.keys() | joined)
    assert not joined & BrokerConfig.properties.keys()


@pytest.mark.parametrize(
    ("text", "suffix", "nearest"),
    [
        ("defualt_queues = 3", ".toml", "did you mean default_queues"),
        ("brokerNmae=a", ".conf", "did you mean brokerName"),
        ("zzzzzz=1", ".conf", "zzzzzz; mqbroker --help lists those of a broker"),
        ("zzzzzz = 1", ".toml", "known are .*auto_create_topics"),
    ],
)
def test_an_unknown_key_is_an_error_with_the_nearest_name(tmp_path: Path, text: str, suffix: str, nearest: str) -> None:
    """A typing error never falls silently back to a default."""
    with pytest.raises(ConfigError, match=nearest):
        BrokerConfig.load(write(tmp_path / f"x{suffix}", text), environment={})


# Each refused key with a value that is refused, and the one that says how it works here.
REFUSALS = {
    **dict.fromkeys(
        (
            *("aclEnable", "useTLS"),
            *("allAckInSyncStateSet", "enableAutoInSyncReplicas", "duplicationEnable", "lockInStrictMode"),
            *("enableSlaveActingMaster", "enableRemoteEscape", "enableDLegerCommitLog", "enableControllerMode"),
            *("inBrokerContainer", "fetchNamesrvAddrByAddressServer", "fetchNameSrvAddrByDnsLookup"),
            *("timerRocksDBEnable", "transRocksDBEnable", "indexRocksDBEnable", "rocksdbCQDoubleWriteEnable"),
            *("transientStorePoolEnable", "enableConsumeQueueExt", "forceVerifyPropCRC"),
            *("enableLmq", "enableMultiDispatch", "rejectPullConsumerEnable", "disableConsumeIfConsumerReadSlowly"),
            *("enablePopMessageThreshold", "timerStopEnqueue"),
        ),
        ("true", "false"),
    ),
    **dict.fromkeys(
        (
            *("transWriteOriginTransHalfEnable", "clearRetryTopicWhenDeleteTopic", "litePullMessageEnable"),
            *("serverLoadBalancerEnable", "priorityOrderAsc", "allowRecallWhenBrokerNotWriteable"),
            *("enableRegisterProducer", "validateSystemTopicWhenUpdateTopic"),
        ),
        ("false", "true"),
    ),
    **dict.fromkeys(("inSyncReplicas", "minInSyncReplicas", "totalReplicas", "replicasPerDiskPartition"), ("2", "1")),
    "storeType": ("defaultRocksDB", "default"),
    "configManagerVersion": ("v2", "v1"),
    "messageStorePlugIn": ("org.apache.rocketmq.tieredstore.TieredMessageStore", ""),
    "defaultMessageRequestMode": ("POP", "PULL"),
    "timerCongestNumEachSlot": ("1000", "2147483647"),
    "startAcceptSendRequestTimeStamp": ("1", "0"),
}


@pytest.mark.parametrize("key", sorted(REFUSALS))
def test_a_key_that_demands_more_than_ferromq_promises_is_refused(tmp_path: Path, key: str) -> None:
    """With the value that describes ferromq, which starts."""
    asked, works = REFUSALS[key]
    file = write(tmp_path / "b.conf", f"brokerName=b\n{key}={asked}\n")
    with pytest.raises(
        ConfigError, match=rf"^{key}={asked} in line 2 of .*b\.conf: .* is not supported: .*; use {works}"
    ):
        BrokerConfig.from_properties(file)
    assert BrokerConfig.from_properties(write(tmp_path / "b.conf", f"{key}={works}")) == BrokerConfig()


def test_every_refusal_is_shown() -> None:
    """A container's keys have no value that works."""
    containers = {"brokerConfigPaths", "brokerContainerIP"}
    assert REFUSED.keys() - containers == REFUSALS.keys()
    for key in containers:
        with pytest.raises(ValueError, match="start a broker for each file"):
            REFUSED[key]("/a:/b")


def test_all_errors_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    """Unknown keys, refused ones and wrong values, each with its line."""
    text = "brokerNmae=b\nenableDLegerCommitLog=true\ndLegerGroup=g\nbrokerRole=SYNC_MASTER\n"
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.from_properties(write(tmp_path / "b.conf", text))
    wrong = str(raised.value).splitlines()
    assert [line.partition(":")[0] for line in wrong] == [
        f"unknown key in line 1 of {tmp_path / 'b.conf'}",
        f"enableDLegerCommitLog=true in line 2 of {tmp_path / 'b.conf'}",
        f"brokerRole=SYNC_MASTER in {tmp_path / 'b.conf'}",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("autoCreateTopicEnable=yes", "RocketMQ reads yes as false"),
        ("traceOn=1", "RocketMQ reads 1 as false"),
        ("enableLmq=", "RocketMQ reads an empty value as false"),
        ("defaultTopicQueueNums=1_000", "expected a whole number"),
        ("maxMessageSize=4M", "expected a whole number without a unit"),
        ("transactionCheckMax=99999999999999999999", "expected a whole number of -9223372036854775807 to 92233720368"),
        ("brokerName=a\\u0062", "backslash"),
        ("namesrvAddr=a:1;\\\nb:2", "line 1 of .*backslash"),
        ("timerPrecisionMs=300", "RocketMQ replaces 300 by 200; use one of 100, 200, 500, 1000"),
        ("timerPrecisionMs=50", "RocketMQ replaces 50 by 100"),
        ("diskMaxUsedSpaceRatio=much", "much is not a number"),
        ("flushCommitLogTimed=false\nwakeFlushWhenPutMessage=true", "use flushDiskType=SYNC_FLUSH, or a smaller"),
        ("fileReservedTime=0", "an age must be more than 0"),
        ("deleteWhen=24", "retention_hours"),
        ("deleteWhen=4 pm", "hours of the day"),
        ("flushIntervalCommitLog=0", "flushIntervalCommitLog=0"),
        ("timerMaxDelaySec=-1", "timerMaxDelaySec=-1 .*: expected a whole number of 0 or more"),
        ("fileReservedTime=-1", "fileReservedTime=-1 .*: expected a whole number of 0 or more"),
        ("fileReservedTime=99999999999999", "fileReservedTime=99999999999999 .*: the number is too large"),
        ("namesrvAddr=http://mq:9876", "namesrvAddr=http://mq:9876 .*expected HOST:PORT"),
        ("serverChannelMaxIdleTimeSeconds=0", "it must be more than 0"),
    ],
)
def test_a_value_that_means_something_else_in_rocketmq_is_refused(tmp_path: Path, text: str, told: str) -> None:
    """RocketMQ silently replaces it, or ignores it."""
    with pytest.raises(ConfigError, match=told):
        BrokerConfig.from_properties(write(tmp_path / "b.conf", text))


@pytest.mark.parametrize(
    ("line", "limit", "steps"),
    [
        ("diskMaxUsedSpaceRatio=98", 95, (95, 95, 95)),
        ("diskMaxUsedSpaceRatio=0.75", 10, (10, 85, 90)),
        ("diskSpaceCleanForciblyRatio=90", 85, (75, 85, 90)),
        ("diskSpaceWarningLevelRatio=95", 90, (75, 85, 90)),
    ],
)
def test_a_percentage_outside_rocketmqs_limits_is_taken_for_the_limit(
    tmp_path: Path, line: str, limit: int, steps: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """As RocketMQ does; with a log line."""
    config = BrokerConfig.from_properties(write(tmp_path / "b.conf", line))
    assert config.storage.retention_disk_usage == steps
    assert f"using {limit} as RocketMQ does" in caplog.text


@pytest.mark.parametrize(
    ("text", "keys", "expected"),
    [
        ("flushDiskType=SYNC_FLUSH", {"flushIntervalCommitLog": "100"}, {"flush": "group"}),
        (
            "flushIntervalCommitLog=100",
            {"flushCommitLogLeastPages": "4"},
            {"flush": "interval 100ms pages 4 thorough 10000ms"},
        ),
        ("bindAddress=127.0.0.1", {"listenPort": "1"}, {"listen": "127.0.0.1:1"}),
        ("brokerRole=SLAVE\nbrokerId=1", {"brokerId": "2"}, {"broker_id": 2}),
        ("diskMaxUsedSpaceRatio=60", {"cleanFileForciblyEnable": "false"}, {"retention_disk_usage": (60, 100, 90)}),
        ("listenPort=1", {"listenPort": "2"}, {"listen": "0.0.0.0:2"}),
        ("listenPort=1", {"listenPort": "2", "bindAddress": "127.0.0.1"}, {"listen": "127.0.0.1:2"}),
    ],
)
def test_keys_of_one_group_are_taken_together_from_file_and_flags(
    tmp_path: Path, text: str, keys: dict[str, str], expected: dict[str, Any]
) -> None:
    """A flag changes its own key and keeps the rest of the file."""
    config = BrokerConfig.load(write(tmp_path / "b.conf", text), environment={}, keys=keys)
    assert {name: config.given()[name] for name in expected} == expected


def test_a_key_that_would_lose_an_option_is_refused(tmp_path: Path) -> None:
    """Of a TOML file or a variable; a whole group of keys, or the option as a flag, is accepted."""
    file = write(tmp_path / "b.toml", 'flush = "group"\n')
    with pytest.raises(
        ConfigError, match=r"^flushIntervalCommitLog=100 in the flags: flush is given.*; use only --flush"
    ):
        BrokerConfig.load(file, environment={}, keys={"flushIntervalCommitLog": "100"})
    with pytest.raises(ConfigError, match=r"listenPort=1 .* bindAddress would be lost"):
        BrokerConfig.load(environment={"FERROMQ_BROKER_LISTEN": "127.0.0.1:5"}, keys={"listenPort": "1"})
    both = {"listenPort": "1", "bindAddress": "127.0.0.1"}
    config = BrokerConfig.load(environment={"FERROMQ_BROKER_LISTEN": "127.0.0.1:5"}, keys=both)
    assert config.listen == "127.0.0.1:1"


def test_a_flush_that_is_woken_is_as_promised() -> None:
    """Alone, RocketMQ's keys of it change nothing; a synchronous flush needs neither."""
    read = {key: read for keys, read in StoreConfig.joined.items() for key in keys}["wakeFlushWhenPutMessage"]
    assert read({"wakeFlushWhenPutMessage": "true"}) == read({"flushCommitLogTimed": "false"}) == read({})
    woken = {"flushCommitLogTimed": "false", "wakeFlushWhenPutMessage": "true", "flushDiskType": "SYNC_FLUSH"}
    assert read(woken) == {"flush": "group"}


def test_a_name_server_refuses_to_be_asked_for_tls_it_does_not_speak(tmp_path: Path) -> None:
    """Its calls to brokers are plaintext."""
    with pytest.raises(ConfigError, match="not encrypted; use false"):
        NameServerConfig.from_properties(write(tmp_path / "n.conf", "useTLS=true"))
    assert NameServerConfig.from_properties(write(tmp_path / "n.conf", "useTLS=false")) == NameServerConfig()


def test_an_unknown_variable_is_an_error() -> None:
    """It is named, and so is the nearest one."""
    with pytest.raises(
        ConfigError, match="unknown environment variable FERROMQ_BROKER_FLSH; did you mean FERROMQ_BROKER_FLUSH"
    ):
        BrokerConfig.load(environment={"FERROMQ_BROKER_FLSH": "group"})


@pytest.mark.parametrize(
    ("kind", "prefix"), [(BrokerConfig, "FERROMQ_BROKER_"), (NameServerConfig, "FERROMQ_NAMESRV_")]
)
def test_variables_that_kubernetes_sets_for_a_service_are_no_options(kind: type[Any], prefix: str) -> None:
    """A service called ferromq-broker sets these in every container; similar ones are an error."""
    names = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT", "PORT_8081_TCP"]
    names += [f"PORT_8081_TCP_{end}" for end in ("ADDR", "PORT", "PROTO")]
    for service in ("", "0_", "A_HEADLESS_"):
        assert kind.load(environment={f"{prefix}{service}{name}": "tcp://10.0.0.1:8081" for name in names}) == kind()
    for name in ("A_PORT", "PORTS", "SERVICE", "PORT_8081", "PORT_8081_TCP_X", "HOST"):
        with pytest.raises(ConfigError, match=f"unknown environment variable {prefix}{name};"):
            kind.load(environment={f"{prefix}SERVICE_HOST": "10.0.0.1", f"{prefix}{name}": "1"})


@pytest.mark.parametrize(
    ("kind", "prefix"), [(BrokerConfig, "FERROMQ_BROKER_"), (NameServerConfig, "FERROMQ_NAMESRV_")]
)
def test_a_port_that_kubernetes_did_not_set_is_an_error(kind: type[Any], prefix: str) -> None:
    """It was meant as an option: of each service Kubernetes sets the host, too."""
    for name in ("PORT", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT_8081_TCP", "0_PORT"):
        for host in ({}, {f"{prefix}A_SERVICE_HOST": "10.0.0.1"}):
            with pytest.raises(ConfigError, match=f"unknown environment variable {prefix}{name}"):
                kind.load(environment={f"{prefix}{name}": "10912", **host})


def test_variables_of_kubernetes_are_passed_over_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """One line names them."""
    caplog.set_level(logging.INFO, "ferromq")
    BrokerConfig.load(environment={f"FERROMQ_BROKER_{name}": "1" for name in ("SERVICE_HOST", "PORT", "SERVICE_PORT")})
    (line,) = [record.getMessage() for record in caplog.records if "Kubernetes" in record.getMessage()]
    assert "FERROMQ_BROKER_PORT,FERROMQ_BROKER_SERVICE_HOST,FERROMQ_BROKER_SERVICE_PORT" in line


@pytest.mark.parametrize(
    "options",
    [
        {"listen": "nowhere"},
        {"listen": "host:99999"},
        {"grpc_listen": ":1"},
        {"advertise": "host:"},
        {"advertise": "[::1]:99999"},
        {"grpc_advertise": "a b"},
        {"namesrv": "a:1;b"},
        {"flush": "later"},
        {"flush": "sync"},
        {"flush": "every 0"},
        {"commit_log_file_size": 100},
        {"retention_age": "old"},
        {"retention_age": "0h"},
        {"retention_age": timedelta()},
        {"retention_age_by_topic": {"orders": timedelta()}},
        {"retention_age_by_topic": {"no topic": "1h"}},
        {"flush_every": {"no topic": 5}},
        {"max_message_size": 0},
        {"progress_interval": 0},
        {"retention_age_by_topic": "orders"},
        {"retention_hours": [24]},
        {"retention_disk_usage": (90, 80, 70)},
        {"retention_disk_usage": "75,85"},
        {"retention_on_expiry": "burn"},
        {"fast_boot": "maybe"},
        {"index_slots": 1 << 40},
        {"default_queues": 0},
        {"default_queues": LIMIT_FOR_QUEUES + 1},
        {"default_queues": "many"},
        {"register_interval": "0s"},
        {"register_interval": "soon"},
        {"auto_create_topics": "maybe"},
        {"commit_log_file_size": "64 apples"},
        {"handler_threads": 0},
        {"broker_id": -1},
        {"broker_id": 1 << 31},
        {"permission": 1},
        {"sync_interval": "0s"},
        {"fast_listen": "maybe"},
        {"trace_topic": "no topic"},
        {"name": ""},
        {"name": "a" * 256},
        {"cluster": "c\n"},
        {"store": 5},
    ],
)
def test_an_invalid_value_is_named(options: dict[str, Any]) -> None:
    """The error names the option."""
    BrokerConfig(default_queues=LIMIT_FOR_QUEUES)
    with pytest.raises(ConfigError, match=next(iter(options))):
        BrokerConfig.from_options(options)


NAMES, ILLEGAL = ("name", "cluster"), ("a:8;b", "a:b", "a;b", "a/b", " ")


@pytest.mark.parametrize("option", NAMES)
@pytest.mark.parametrize("text", ["broker-a.b_1", "rack%1|2", "a" * 100])
def test_a_name_of_a_broker_may_be_that_of_a_host(option: str, text: str) -> None:
    """And whatever a topic may be called."""
    assert getattr(BrokerConfig.from_options({option: text}), option) == text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"retention_age": 72}, "use 72h or 72s"),
        ({"retention_age": "72"}, "use 72h or 72s"),
        ({"retention_age_by_topic": "orders=6"}, "use 6h or 6s"),
        ({"retention_disk_usage": (0.75, 0.85, 0.9)}, "not fractions"),
        ({"retention_disk_usage": (75, 85, 900)}, "from 1 to 100"),
        ({"retention_disk_usage": (0, 0, 0)}, "from 1 to 100"),
        ({"retention_disk_usage": (80, 70, 90)}, "no step may be lower than the first"),
        ({"retention_hours": "4-6"}, "'4-6'.*hours of the day"),
        ({"commit_log_file_size": 100}, "is 100; it must be 4 KiB"),
        ({"trace_topic": "rmq_sys_x"}, "use RMQ_SYS_TRACE_TOPIC, a name that begins with rmq_sys_TRACE_DATA_"),
        ({"retention_age": "99999999999999d"}, "retention_age is '99999999999999d'"),
        *(({name: text}, f"{name} is {text!r}; it may have 1 to 255 characters") for name in NAMES for text in ILLEGAL),
    ],
)
def test_an_error_names_the_way_out(options: dict[str, Any], told: str) -> None:
    """With the value that was given."""
    with pytest.raises(ConfigError, match=told):
        BrokerConfig.from_options(options)


@pytest.mark.parametrize(
    "line",
    [
        "fileReservedTime=72h",
        "fileReservedTime=-1",
        "flushIntervalCommitLog=0",
        "diskMaxUsedSpaceRatio=much",
        "deleteWhen=4-6",
        "mappedFileSizeCommitLog=1",
    ],
)
def test_an_error_in_rocketmqs_file_names_key_value_and_file(tmp_path: Path, line: str) -> None:
    """And never Python's `int`."""
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.from_properties(write(tmp_path / "b.conf", line))
    assert line in str(raised.value)
    assert "b.conf" in str(raised.value)
    assert "invalid literal" not in str(raised.value)


def test_an_error_in_a_file_of_ours_names_it(tmp_path: Path) -> None:
    """As one in a variable does."""
    with pytest.raises(ConfigError, match=r"b\.toml.*retention_age is 72"):
        BrokerConfig.from_file(write(tmp_path / "b.toml", "retention_age = 72"))
    with pytest.raises(ConfigError, match=r"FERROMQ_BROKER_RETENTION_AGE.*use 72h"):
        BrokerConfig.load(environment={"FERROMQ_BROKER_RETENTION_AGE": "72"})


def test_none_unsets_an_option_of_a_file(tmp_path: Path) -> None:
    """For options that can be unset."""
    file = write(tmp_path / "b.toml", 'retention_total_bytes = "1GiB"\nretention_disk_usage = [75, 85, 90]\n')
    flags = {"retention_total_bytes": "none", "retention_disk_usage": "none", "retention_age": "none"}
    config = BrokerConfig.load(file, environment={}, flags=flags)
    assert config.storage.overrides() == {"retention_age": timedelta.max}


@pytest.mark.parametrize(
    "line", ["enableControllerMode=true", "enableDLegerCommitLog=true", "just words", "aclEnable=true"]
)
def test_a_feature_that_ferromq_lacks_is_an_error(tmp_path: Path, line: str) -> None:
    """A file that asks for it does not start something else; the error names the line."""
    with pytest.raises(ConfigError, match="line 1"):
        BrokerConfig.from_properties(write(tmp_path / "b.conf", line))


@pytest.mark.parametrize(
    ("lines", "broker_id"),
    [
        ("brokerRole=SLAVE\nbrokerId=1", 1),
        ("brokerId=3\nbrokerRole=SLAVE", 3),
        ("brokerRole=ASYNC_MASTER\nbrokerId=0", 0),
        ("brokerId=0", 0),
    ],
)
def test_rocketmqs_keys_of_a_role_make_one_id(tmp_path: Path, lines: str, broker_id: int) -> None:
    """In any order."""
    config = BrokerConfig.from_properties(write(tmp_path / "b.conf", lines))
    assert config.membership.broker_id == broker_id
    assert config.membership.is_slave == (broker_id > 0)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("brokerRole=SLAVE", "add brokerId=1"),
        ("brokerRole=SLAVE\nbrokerId=0", "above 0"),
        ("brokerId=1", "set brokerRole=SLAVE or brokerId=0"),
        ("brokerRole=ASYNC_MASTER\nbrokerId=2", "set brokerRole=SLAVE"),
        ("brokerRole=BOSS", "ASYNC_MASTER or SLAVE"),
        ("brokerRole=SYNC_MASTER", "no send waits for a slave; use ASYNC_MASTER"),
        ("brokerRole=SLAVE\nbrokerId=one", "whole number"),
        ("brokerPermission=3", "6 both"),
        ("listenPort=x", "whole number"),
    ],
)
def test_a_role_that_contradicts_itself_is_an_error(tmp_path: Path, lines: str, told: str) -> None:
    """No broker starts in a doubtful role."""
    with pytest.raises(ConfigError, match=rf"b\.conf.*{told}"):
        BrokerConfig.from_properties(write(tmp_path / "b.conf", lines))


@pytest.mark.parametrize(
    ("lines", "topic"),
    [
        ("", ""),
        ("traceTopicEnable=false\nmsgTraceTopicName=t", ""),
        ("traceTopicEnable=true", "RMQ_SYS_TRACE_TOPIC"),
        ("traceTopicEnable=true\nmsgTraceTopicName=t", "t"),
    ],
)
def test_a_topic_for_traces_is_made_where_asked_for(tmp_path: Path, lines: str, topic: str) -> None:
    """As in RocketMQ, whose name it has by default."""
    assert BrokerConfig.from_properties(write(tmp_path / "b.conf", lines)).sends.trace_topic == topic


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"listen": "10.0.0.1:10911"}, "10.0.0.1:10909"),
        ({"listen": "10.0.0.1:0"}, None),
        ({"listen": "10.0.0.1:2"}, None),
        ({"listen": "10.0.0.1:10911", "fast_listen": "off"}, None),
        ({"listen": "10.0.0.1:0", "fast_listen": "10.0.0.2:7"}, "10.0.0.2:7"),
    ],
)
def test_the_fast_port_is_two_below(options: dict[str, Any], expected: str | None) -> None:
    """Unless the port is free to choose."""
    config = BrokerConfig.from_options(options)
    assert fast_address(config, config.listen.replace(":0", ":45678")) == expected


@pytest.mark.parametrize("name", ["gone.toml", "gone.conf"])
def test_a_missing_file_is_an_error(tmp_path: Path, name: str) -> None:
    """It is named."""
    with pytest.raises(ConfigError, match=name):
        NameServerConfig.load(tmp_path / name, environment={})


def test_every_option_of_the_store_is_on_the_page_of_configuration() -> None:
    """And no other."""
    section = (Path(__file__).parents[2] / "docs/configuration.md").read_text().partition("## Options of the store")[2]
    rows = re.findall(r"^\| (`.*?) \|", section.partition("\n## ")[0], re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told == {field.name for kind in (StoreConfig, TimerConfig) for field in fields(kind)} | {"archive"}


@pytest.mark.parametrize(
    "kind",
    [
        BrokerConfig,
        CompatConfig,
        MembershipConfig,
        NameServerConfig,
        SendConfig,
        StoreConfig,
        TimerConfig,
        TransactionConfig,
    ],
)
def test_options_stay_few(kind: type) -> None:
    """At most 25 a group, and each has a default."""
    assert len(fields(kind)) <= 25
    kind()


def test_the_stores_options_are_those_of_the_core(tmp_path: Path) -> None:
    """By the same names; the address, which the broker decides, is no option."""
    store = Store(str(tmp_path), Clock.system(), commit_log_file_size=1 << 20)
    assert {field.name for kind in (StoreConfig, TimerConfig) for field in fields(kind)} == store.options().keys() - {
        "store_host"
    }
    store.close()


@pytest.mark.parametrize("kind", [BrokerConfig, NameServerConfig])
@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("conf", 'initAuthenticationUser={"username":"a","hidden":"x"}'),
        ("conf", 'innerClientAuthenticationCredentials={"hidden"'),
        ("conf", "hidden without a key"),
        ("conf", "initAuthenticationUser={\\hidden}"),
        ("toml", "initial_user = ['hidden']"),
        ("toml", "inner_credentials = {a = 'hidden'}"),
        ("toml", "inner_credentials = 'hidden'"),
    ],
)
def test_an_error_shows_no_secret(
    tmp_path: Path, kind: type[BrokerConfig | NameServerConfig], suffix: str, text: str
) -> None:
    """It names the file, and the key or the line."""
    file = write(tmp_path / f"server.{suffix}", text)
    with pytest.raises(ConfigError) as raised:
        kind.load(file, environment={})
    key = text.partition("=")[0].strip()
    assert "hidden" not in str(raised.value)
    assert f"server.{suffix}" in str(raised.value)
    assert key in str(raised.value) or "line 1" in str(raised.value)


def test_an_error_shows_no_header(tmp_path: Path) -> None:
    """It may have a token."""
    for name, text in (("a.conf", "metricsGrpcExporterHeader=hidden"), ("a.toml", "push_headers = [['hidden']]")):
        with pytest.raises(ConfigError, match="push_headers") as raised:
            BrokerConfig.load(write(tmp_path / name, text), environment={})
        assert "hidden" not in str(raised.value)


def test_white_lists_never_have_requests_of_users() -> None:
    """However the code is written."""
    for code in ("3001", "03001", "003010"):
        with pytest.raises(ConfigError, match="users and policies"):
            BrokerConfig.from_options({"authorization_whitelist": code})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"retention_age": "99999999999h"}, "expected a duration of 0s to 100000000d, or forever"),
        ({"transaction_timeout": "9" * 400 + "s"}, "expected a duration of 0s to 100000000d, or forever"),
        ({"transaction_check_max": "-3"}, "expected a whole number of 0 to 9223372036854775807"),
        ({"transaction_check_max": "9" * 25}, "expected a whole number of 0 to 9223372036854775807"),
        ({"max_message_size": "99999999999TiB"}, "expected a whole number of 0 to 9223372036854775807"),
    ],
)
def test_a_value_that_no_option_can_have_is_refused_with_the_range(options: dict[str, str], told: str) -> None:
    """Also where Python, or the core, could not count it."""
    with pytest.raises(ConfigError, match=told):
        BrokerConfig.from_options({"store": "s", **options})
