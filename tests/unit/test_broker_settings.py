"""A broker's options at run time: shown under RocketMQ's names, changed, kept in the file."""

import json
import re
import tomllib
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ferromq._ferromq import Clock, Store
from ferromq.broker.administration.rocketmq_options import fields_of, flat, own_text, rocketmq_names
from ferromq.broker.administration.settings import Settings
from ferromq.config.at_run_time import BROKER_OPTIONS
from ferromq.config.broker import BrokerConfig
from ferromq.config.file_edit import ProtectedKey, set_lines, set_toml
from ferromq.config.rocketmq_keys import REFUSED
from ferromq.errors import ConfigError

NOW = 1_700_000_000_000


class Broker:
    """Settings over a store that records its changes."""

    def __init__(self, directory: Path, config: BrokerConfig | None = None, file: Path | None = None) -> None:
        self.stored: dict[str, Any] = {}
        self.settings = Settings(config or BrokerConfig(), file, lambda: NOW, self._configure)
        store = Store(str(directory / "store"), Clock.system(), commit_log_file_size=1 << 20)
        self.defaults = store.options()
        store.close()

    def _configure(self, **options: Any) -> None:
        self.stored |= options

    def shown(self) -> dict[str, str]:
        """Return the current values under RocketMQ's names."""
        return rocketmq_names({**flat(self.settings.config), **self.defaults, **self.stored})

    def update(self, **wanted: str) -> frozenset[str]:
        """Change options."""
        return self.settings.update(wanted, self.shown())


def test_changeable_options_are_documented() -> None:
    """Each option that can change while the broker runs is in the table of `administration.md`, and no other."""
    text = (Path(__file__).parents[2] / "docs/administration.md").read_text()
    section = text.partition("## Change an option while the broker runs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told == {name for name in BROKER_OPTIONS if not name.startswith("retention_")}
    assert "`retention_…`" in rows


def test_options_change_under_rocketmqs_names_and_ours(tmp_path: Path) -> None:
    """Listeners get each change once, and the version advances; equal values are no change."""
    broker, heard = Broker(tmp_path), []
    broker.settings.add_listener(lambda changed, _, config: heard.append((changed, config.default_queues)))
    before = broker.settings.version
    assert broker.update(autoCreateTopicEnable="false", default_queues="3") == {"auto_create_topics", "default_queues"}
    assert heard == [({"auto_create_topics", "default_queues"}, 3)]
    assert not broker.settings.config.auto_create_topics
    assert broker.update(autoCreateTopicEnable="false", brokerName="broker-a") == frozenset()
    assert broker.settings.version.counter == before.counter + 1
    assert len(heard) == 1
    assert broker.shown()["autoCreateTopicEnable"] == "false"


def test_the_store_gets_its_own_options(tmp_path: Path) -> None:
    """Age in hours, hours of the day, flush; keys of one group keep the unmentioned values."""
    broker = Broker(tmp_path)
    broker.update(fileReservedTime="48", deleteWhen="04;16")
    assert broker.stored == {"retention_age": timedelta(hours=48), "retention_hours": (4, 16)}
    broker.update(flushIntervalCommitLog="200")
    assert broker.stored["flush"] == "interval 200ms"
    broker.update(flushDiskType="SYNC_FLUSH")
    assert broker.shown()["flushDiskType"] == "SYNC_FLUSH"
    broker.update(flushIntervalCommitLog="300")
    assert broker.stored["flush"] == "group", "the interval counts for the other kind of flush alone"
    assert broker.shown()["fileReservedTime"] == "48"
    assert broker.shown()["deleteWhen"] == "04;16"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("brokerName", "other", "brokerName cannot change"),
        ("storePathRootDir", "elsewhere", "storePathRootDir cannot change"),
        ("maxMessageSize", "1000", "maxMessageSize cannot change"),
        ("autoCreateTopicEnabled", "true", "did you mean autoCreateTopicEnable"),
        ("longPollingEnable", "true", "longPollingEnable has no effect"),
        ("rocketmqHome", "x", "rocketmqHome has no effect"),
        ("defaultTopicQueueNums", "many", "defaultTopicQueueNums=many"),
        ("defaultTopicQueueNums", "0", "default_queues is 0"),
        ("flushDiskType", "LATER", "LATER"),
        ("brokerRole", "GOD", "GOD"),
    ],
)
def test_a_fixed_option_is_named_and_changes_nothing(tmp_path: Path, key: str, value: str, named: str) -> None:
    """Nor does the rest of the request."""
    broker = Broker(tmp_path)
    with pytest.raises(ConfigError, match=named):
        broker.update(autoCreateTopicEnable="false", **{key: value})
    assert broker.settings.config == BrokerConfig()
    assert broker.stored == {}


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_a_refused_key_stays_refused_at_run_time(tmp_path: Path, key: str) -> None:
    """With the reason, and the whole request has no effect."""
    broker = Broker(tmp_path)
    values = ("true", "false", "2", "other")
    refused = [value for value in values if _is_refused(broker, key, value)]
    assert len(refused) >= len(values) - 1
    assert broker.settings.config == BrokerConfig()
    assert broker.stored == {}


def _is_refused(broker: Broker, key: str, value: str) -> bool:
    try:
        broker.update(**{key: value})
    except ConfigError:
        with pytest.raises(ConfigError, match=f"^{key}={value}: "):
            broker.update(autoCreateTopicEnable="false", **{key: value})
        return True
    return False


@pytest.mark.parametrize(
    "protected", ["autoCreateTopicEnable", "auto_create_topics", "brokerName;autoCreateTopicEnable;brokerConfigPath"]
)
@pytest.mark.parametrize("key", ["autoCreateTopicEnable", "auto_create_topics"])
def test_a_protected_key_is_not_changed(tmp_path: Path, protected: str, key: str) -> None:
    """By neither of its names, nor is the rest of that request; other keys are."""
    broker = Broker(tmp_path, BrokerConfig.from_options({"protected_keys": protected}))
    with pytest.raises(ProtectedKey, match=f"^{key} cannot be changed"):
        broker.update(**{key: "false", "defaultTopicQueueNums": "3"})
    assert broker.settings.config.default_queues == BrokerConfig().default_queues
    assert broker.update(defaultTopicQueueNums="3") == {"default_queues"}
    with pytest.raises(ConfigError, match="configBlackList cannot change"):
        broker.update(configBlackList="")


@pytest.mark.parametrize(
    ("protected", "wanted"),
    [
        ("diskMaxUsedSpaceRatio", {"retention_disk_usage": "10,20,30"}),
        ("diskMaxUsedSpaceRatio", {"cleanFileForciblyEnable": "true"}),
        ("diskMaxUsedSpaceRatio", {"diskSpaceWarningLevelRatio": "80"}),
        ("flushCommitLogTimed", {"flush": "interval 9ms"}),
        ("wakeFlushWhenPutMessage", {"flushIntervalCommitLog": "9"}),
        ("retention_disk_usage", {"cleanFileForciblyEnable": "true"}),
        ("flush", {"flushDiskType": "SYNC_FLUSH"}),
        ("minInvisibleTimeMillsForRecv", {"min_invisible_time": "5s"}),
    ],
)
def test_a_protected_key_protects_what_it_sets(tmp_path: Path, protected: str, wanted: dict[str, str]) -> None:
    """Also where other keys of its group, or an option of ferromq's, set it."""
    broker = Broker(tmp_path, BrokerConfig.from_options({"protected_keys": protected}))
    with pytest.raises(ProtectedKey, match=f"^{next(iter(wanted))} cannot be changed"):
        broker.update(**wanted)
    assert broker.stored == {}


def test_an_unknown_protected_key_is_refused() -> None:
    """It would protect nothing; RocketMQ's protected keys are known."""
    BrokerConfig.from_options({"protected_keys": "configBlackList;brokerConfigPath"})
    with pytest.raises(ConfigError, match=r"configBlackList.*: autoCreateTopicEnabled; did you mean autoCreateTopicEn"):
        BrokerConfig.from_options({"protected_keys": "autoCreateTopicEnabled"})


def test_every_key_of_rocketmqs_with_an_effect_is_known_by_what_it_sets() -> None:
    """So that it can be protected. Other files, and keys with one value, set nothing by themselves."""
    keys = BrokerConfig.properties.keys() - REFUSED.keys()
    others = {"tls.config.file", "tls.server.keyPassword", "tls.client.keyPassword", "tls.test.mode.enable"}
    others.add("migrateAuthFromV1Enabled")
    parts = ("Provider", "MetadataProvider", "Strategy")
    others |= {f"{what}{part}" for what in ("authentication", "authorization") for part in parts}
    assert {key for key in keys if not fields_of(key)} == others


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("minInvisibleTimeMillsForRecv", "-5"),
        ("minInvisibleTimeMillsForRecv", "0"),
        ("maxInvisibleTimeMills", "-5"),
        ("maxDelayTimeMills", "0"),
        ("min_invisible_time", "0s"),
    ],
)
def test_an_invalid_limit_of_invisible_time_leaves_the_file_alone(tmp_path: Path, key: str, value: str) -> None:
    """A broker that starts with it again would fail."""
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\n")
    broker = Broker(tmp_path, BrokerConfig.from_properties(file), file)
    with pytest.raises(ConfigError, match=r"expected a whole number of 0 or more|it must be 1 ms or more"):
        broker.update(**{key: value})
    assert file.read_text() == "brokerName=b\n"


@pytest.mark.parametrize("value", ["none", "no"])
def test_an_option_without_a_key_of_rocketmqs_takes_its_own_words(tmp_path: Path, value: str) -> None:
    """At run time and in a file of lines."""
    file = tmp_path / "broker.conf"
    file.write_text("grpc_creates_topics=true\n")
    broker = Broker(tmp_path, BrokerConfig.from_properties(file), file)
    assert broker.update(grpc_creates_topics=value) == {"grpc_creates_topics"}
    expected = None if value == "none" else False
    assert broker.settings.config.compatibility.grpc_creates_topics is expected
    assert BrokerConfig.from_properties(file).compatibility.grpc_creates_topics is expected


@pytest.mark.parametrize(
    ("key", "value"),
    [("min_invisible_time", "1ms"), ("minInvisibleTimeMillsForRecv", "1"), ("max_delay_time", "forever")],
)
def test_an_explicit_value_equal_to_compats_is_kept(tmp_path: Path, key: str, value: str) -> None:
    """It holds after a start with another `compat`, too."""
    file = tmp_path / "broker.toml"
    file.write_text("")
    broker = Broker(tmp_path, BrokerConfig.from_file(file), file)
    (field,) = broker.update(**{key: value})
    again = BrokerConfig.load(file, environment={}, flags={"compat": "rocketmq"})
    assert again.compatibility.used[field] == broker.settings.config.compatibility.used[field]
    assert broker.update(**{key: value}) == frozenset()


def test_a_change_is_seen_with_all_options(tmp_path: Path) -> None:
    """Also where the file does not hold all of them."""
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\n")
    broker = Broker(tmp_path, BrokerConfig.load(file, environment={"FERROMQ_BROKER_MAX_INVISIBLE_TIME": "24h"}), file)
    broker.update(minInvisibleTimeMillsForRecv="50000000")
    with pytest.raises(ConfigError, match=r"min_invisible_time is 25h, above max_invisible_time, 1d"):
        broker.update(minInvisibleTimeMillsForRecv="90000000")


def test_everything_shown_may_be_sent_back(tmp_path: Path) -> None:
    """A console that returns all shown values changes nothing."""
    broker = Broker(tmp_path)
    assert broker.update(**broker.shown()) == frozenset()
    assert broker.update(**{**broker.shown(), "defaultTopicQueueNums": "3"}) == {"default_queues"}


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("broker.conf", "# mine\nbrokerName=b\ndefaultTopicQueueNums=4\n", BrokerConfig.from_properties),
        ("broker.toml", '# mine\nname = "b"\ndefault_queues = 4\n', BrokerConfig.from_file),
    ],
)
def test_the_file_keeps_what_changed(
    tmp_path: Path, name: str, text: str, read: Callable[[Path], BrokerConfig]
) -> None:
    """In its own notation; the rest of it stays, and the previous file is the .bak."""
    file = tmp_path / name
    file.write_text(text)
    broker = Broker(tmp_path, read(file), file)
    broker.update(defaultTopicQueueNums="5", autoCreateSubscriptionGroup="false", fileReservedTime="24")
    again = read(file)
    assert (again.name, again.default_queues, again.auto_create_groups) == ("b", 5, False)
    assert again.storage.retention_age == timedelta(hours=24)
    assert file.read_text().startswith("# mine\n")
    assert file.with_name(f"{name}.bak").read_text() == text


def test_a_link_to_the_file_stays(tmp_path: Path) -> None:
    """The file that it leads to is changed, and the previous one is beside it."""
    (tmp_path / "conf").mkdir()
    real, link = tmp_path / "conf" / "real.toml", tmp_path / "broker.toml"
    real.write_text("default_queues = 4\n")
    link.symlink_to("conf/real.toml")
    (tmp_path / "broker.new.toml").mkdir()  # in the way of a file beside the link
    Broker(tmp_path, BrokerConfig.from_file(link), link).update(defaultTopicQueueNums="5")
    assert (link.is_symlink(), real.read_text()) == (True, 'default_queues = "5"\n')
    assert real.with_name("real.toml.bak").read_text() == "default_queues = 4\n"
    assert not link.with_name("broker.toml.bak").exists()


def test_a_file_without_a_key_for_an_option_stays_unchanged(tmp_path: Path) -> None:
    """RocketMQ's files have no key for some of our options: nothing changes, and the error names the option."""
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\n")
    broker = Broker(tmp_path, BrokerConfig.from_properties(file), file)
    with pytest.raises(ConfigError, match=r"^retention_total_bytes has no key in .*broker\.conf has; keep .* TOML"):
        broker.update(retention_total_bytes="1GiB")
    with pytest.raises(ConfigError, match=r"^min_invisible_time has no key in .*; use minInvisibleTimeMillsForRecv$"):
        broker.update(min_invisible_time="5s")
    assert (file.read_text(), broker.stored) == ("brokerName=b\n", {})
    assert sorted(path.name for path in tmp_path.glob("broker*")) == ["broker.conf"]


def test_lines_are_set_where_they_are() -> None:
    """A key that stands twice is one afterwards; a table of TOML stays last."""
    assert set_lines("a=1\n#a=2\nb = 3\na=4\n", {"a": "5", "c": "6"}) == "a=5\n#a=2\nb = 3\nc=6\n"
    assert set_toml("a = 1\n\n[t]\na = 2\n", {"a": 'x"', "b": "y"}) == 'a = "x\\""\nb = "y"\n\n[t]\na = 2\n'


LIMITS = """# mine
limits = [
    "topic=* send=5000",  # each topic
    "user=* send=10",
]  # of all
flush = "each"  # at once

# by topic
[retention_age_by_topic]
orders = "1d"

# the last one
[flush_every]
time = "1s"
"""


def test_a_value_of_several_lines_and_a_table_are_replaced_as_a_whole() -> None:
    """Other lines, and comments outside the value, stay."""
    old = LIMITS[LIMITS.index("limits") : LIMITS.index("  # of all")]
    assert set_toml(LIMITS, {"limits": "user=* send=9"}) == LIMITS.replace(old, 'limits = "user=* send=9"')
    table = '[flush_every]\ntime = "1s"\n'
    set_there = LIMITS.replace('"each"  # at once', '"group"  # at once\nflush_every = "500ms"').replace(table, "")
    assert set_toml(LIMITS, {"flush_every": "500ms", "flush": "group"}) == set_there


SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.dates() | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
KEYS = st.lists(st.sampled_from(["a", "b", "c-1", "d", "b c", "#", "[e]", "f=1"]), unique=True, max_size=5)
COMMENTS = st.sampled_from(["", " # why", '  # "a" = [', '# """'])
LINES = st.lists(st.sampled_from(["", "# a = 1", "#[b]"]), max_size=2)


def written(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, date):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@st.composite
def values(draw: st.DrawFn) -> str:
    """Return a value and a comment as TOML, over several lines or on one."""
    value, comment = draw(VALUES), draw(COMMENTS)
    if isinstance(value, list):
        gap = draw(st.sampled_from([" ", "\n", "\n  # ]\n"]))
        return f"[{gap}{''.join(f'{written(each)},{gap}' for each in value)}]{comment}"
    if isinstance(value, str) and draw(st.booleans()):
        begin = draw(st.sampled_from(["", "\n", "# a\n", "a = 1\n", "[d]\n"]))
        return f'"""{begin}{written(value)[1:-1]}"""{comment}'
    return f"{written(value)}{comment}"


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Return a configuration with values, tables, dotted keys and comments."""
    names = [json.dumps(name) if draw(st.booleans()) or not name.isalnum() else name for name in draw(KEYS)]
    split = draw(st.integers(0, len(names)))
    lines = draw(LINES)
    for name in names[:split]:
        keys = [f"{name}.x", f"{name} . y"] if draw(st.booleans()) else [name]
        lines += [f"{key} = {draw(values())}" for key in keys] + draw(LINES)
    for name in names[split:]:
        lines.append(f"[{name}]{draw(COMMENTS)}")
        lines += [f"{json.dumps(key)} = {draw(values())}" for key in draw(KEYS)] + draw(LINES)
        if draw(st.booleans()):
            lines += [f"[{name}.z]", "a = 1"]
    return "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n\n"]))


@given(text=documents(), changes=st.dictionaries(st.sampled_from(["a", "b", "d"]), st.text(max_size=8) | st.booleans()))
def test_a_change_of_any_toml_file_changes_its_option_alone(text: str, changes: dict[str, str | bool]) -> None:
    """The other options are read as before; without a change the lines are the same."""
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(condition=False)
    after = set_toml(text, changes)
    assert tomllib.loads(after) == {**before, **changes}
    if not changes:
        assert after == text.removesuffix("\n") + "\n"


def test_a_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    """A change leaves it as it is, and the error names no file that is gone."""
    file = tmp_path / "broker.toml"
    file.write_text('flush = "each"\n')
    broker = Broker(tmp_path, BrokerConfig.from_file(file), file)
    for text, told in (("flush = [\n", "broker.toml is not TOML.*correct it"), ("x = 1\n", "in .*/broker.toml")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=told):
            broker.update(defaultTopicQueueNums="5")
        assert file.read_text() == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(hours=72), "3d"),
        (timedelta(minutes=90), "90m"),
        (timedelta(milliseconds=1500), "1500ms"),
        (timedelta(), "0ms"),
        (timedelta.max, "forever"),
        (None, "none"),
        (True, "true"),
        ((4, 16), "4,16"),
        ({"b": timedelta(hours=1), "a": 2}, "a=2,b=1h"),
    ],
)
def test_values_are_shown_as_files_take_them(value: Any, text: str) -> None:
    """So that shown values can be written back."""
    assert own_text(value) == text
