"""Parts of the dashboard without a cluster: options, fields, bodies, sessions, the share of slots."""

import asyncio
import contextlib
import json
import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.admin import BrokerStatus, GroupLag, QueueLag, QueueRange, ResentLetter, TopicDescription, waiting
from ferromq.admin.waiting import op_offsets
from ferromq.dashboard import live
from ferromq.dashboard.bodies import preview, shown
from ferromq.dashboard.cluster import NO_KEYS, Busy, Cluster, Slots
from ferromq.dashboard.forms import Fields, WrongInput
from ferromq.dashboard.live import Feed, Rendered
from ferromq.dashboard.problems import Problem
from ferromq.dashboard.rendering import NAVIGATION, STATIC, Pages
from ferromq.dashboard.sessions import IDLE_SECONDS, LONGEST_SECONDS, MOST_SESSIONS, Attempts, Sessions
from ferromq.dashboard.settings import Settings
from ferromq.dashboard.signing import check_user
from ferromq.dashboard.view import Page, View, link, sliced
from ferromq.dashboard.views import dead_letters, groups, messages, topics
from ferromq.errors import (
    ConfigError,
    ConnectionFailed,
    FerromqError,
    Forbidden,
    OutcomeUnknown,
    RequestError,
    Unsupported,
)
from ferromq.protocol.retry_policy import Customized


class Stored(NamedTuple):
    """What bodies are shown of."""

    body: bytes
    sys_flag: int = 0


class Nothing:
    """A cluster that is closed with its session."""

    closed = 0

    def close(self) -> None:
        """Count it."""
        self.closed += 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"listen": "0.0.0.0:80"}, "other machines reach 0.0.0.0:80"),
        ({"listen": "mq.example.org:80", "sign_in": True}, "HTTPS"),
        ({"listen": "0.0.0.0:80", "certificate": "a", "key": "b"}, "--sign-in"),
        ({"listen": "8082"}, "HOST:PORT"),
        ({"listen": "127.0.0.1:99999"}, "a number from 0 to 65535"),
        ({"certificate": "a"}, "give both"),
        ({"names": ("mq1:8443",)}, "a host name without a port"),
    ],
)
def test_options_that_let_strangers_in_are_refused(options: dict[str, Any], told: str) -> None:
    """The text names the way out."""
    with pytest.raises(ConfigError, match=told):
        Settings(**options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"listen": "[::1]:0"},
        {"listen": "localhost:1"},
        {"listen": "0.0.0.0:80", "insecure": True},
        {"listen": "0.0.0.0:80", "sign_in": True, "certificate": "a", "key": "b"},
    ],
)
def test_other_options_are_taken(options: dict[str, Any]) -> None:
    """Loopback needs nothing."""
    assert Settings(**options).scheme == ("https" if "certificate" in options else "http")


@given(st.binary(max_size=300))
def test_bytes_of_a_form_are_fields_or_refused(content: bytes) -> None:
    """Nothing else is raised, by no reading of a field."""
    with contextlib.suppress(WrongInput):
        fields = Fields.parse(content)
        for name in ("a", "b", ""):
            fields.number(name)
            fields.time(name)
            fields.choice(name, {"x": 1})


@given(st.text(max_size=40))
def test_a_number_or_a_time_is_read_or_refused(text: str) -> None:
    """As a visitor may type it."""
    fields = Fields([("a", text)])
    for read in (fields.number, fields.time):
        with contextlib.suppress(WrongInput):
            read("a")


@given(st.binary(max_size=200), st.integers(0, 2**31 - 1))
def test_each_body_is_shown(body: bytes, flag: int) -> None:
    """Whatever its bytes and its flag are."""
    message: Any = Stored(body, flag)
    assert shown(message).size == len(body)
    assert "\n" not in preview(message)
    (shown(message).text + preview(message)).encode()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(_JSON, st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", " : ")]), st.booleans())
def test_json_gets_line_breaks_and_no_other_text(value: object, signs: tuple[str, str], is_ascii: bool) -> None:
    """As Python breaks its lines."""
    text = json.dumps(value, separators=signs, ensure_ascii=is_ascii)
    message: Any = Stored(text.encode(errors="replace"))
    found = shown(message)
    found.text.encode()
    if found.kind == "JSON" and is_ascii:
        assert found.text == json.dumps(value, indent=2)


def test_numbers_and_names_stay_as_they_were_sent() -> None:
    """Also those that no float holds, and names that are there twice."""
    message: Any = Stored(b'{"n":12345678901234567890.123,"e":1e400,"f":1.10,"f":"\\ud800\\u00e9"}')
    lines = '{\n  "n": 12345678901234567890.123,\n  "e": 1e400,\n  "f": 1.10,\n  "f": "\\ud800\\u00e9"\n}'
    assert shown(message).text == lines
    deep: Any = Stored(b"[" * 900 + b"1," * 20_000 + b"1" + b"]" * 900)
    assert shown(deep).kind == "text", "blanks would be most of it"


def test_halves_of_characters_are_shown() -> None:
    """UTF-8 has none, so a page with one could not be sent."""
    view = View({"problem": Problem("a\ud800", "b", 400), "is_fragment": True})
    visit: Any = None
    assert "a\\ud800" in Pages().live("problem.html", visit, view)
    assert link("/group", name="a\ud800") == "/group?name=a%3F"


def test_bodies_are_text_json_or_bytes() -> None:
    """JSON gets line breaks; a body that was compressed is shown as it was sent."""

    def told(body: bytes, flag: int = 0) -> tuple[str, str, bool]:
        message: Any = Stored(body, flag)
        found = shown(message)
        return found.kind, found.text, found.is_cut

    assert told(b"a line") == ("text", "a line", False)
    assert told(b'{"a": [1]}') == ("JSON", '{\n  "a": [\n    1\n  ]\n}', False)
    assert told(b"[" * 100_000)[0] == "text"
    assert told(b"\0\xff")[:2] == ("bytes", f"000000  00 ff{' ' * 43} ..")
    assert told(zlib.compress(b"packed"), 1)[:2] == ("text", "packed")
    assert told(b"junk", 1)[0] == "damaged zlib"
    assert told(b"junk", 1 | 1 << 8)[0] == "compressed by LZ4"


def test_what_a_compressed_body_grows_to_is_bounded() -> None:
    """A hundred megabytes of zeros come as a few bytes."""
    message: Any = Stored(zlib.compress(b"a" * 100_000_000), 1)
    found = shown(message)
    assert (len(found.text), found.is_cut) == (64 * 1024, True)
    assert len(preview(message)) <= 120


@given(st.binary(max_size=100))
def test_the_body_of_an_op_message_is_offsets_or_nothing(body: bytes) -> None:
    """As a store may have it."""
    assert all(0 <= offset < 10**19 for offset in op_offsets(body))


def test_a_broker_without_delivery_times_is_no_failure() -> None:
    """RocketMQ 4.x does not know the request."""

    def refuse(_code: int, _fields: dict[str, str]) -> bytes:
        raise Unsupported("request 61 is not supported")

    ask: Any = refuse
    assert waiting._timed_at(ask) is None


def test_op_messages_have_one_offset_or_several() -> None:
    """RocketMQ puts a comma behind the last one."""
    assert op_offsets(b"12") == [12]
    assert op_offsets(b"12,7,") == [12, 7]


def test_sessions_end_and_are_bounded() -> None:
    """The one that was idle for longest makes room."""
    now = [0.0]
    sessions, cluster = Sessions(lambda: now[0]), Nothing()
    held: Any = cluster
    first = sessions.begin("first", held)
    for number in range(MOST_SESSIONS - 1):
        now[0] += 1
        sessions.begin(str(number), held)
    assert cluster.closed == 0
    assert sessions.find(first) is not None
    now[0] += 1
    last = sessions.begin("last", held)
    assert cluster.closed == 1
    assert sessions.find(first) is not None, "it was used since"
    now[0] += IDLE_SECONDS + 1
    assert sessions.find(last) is None
    assert cluster.closed == MOST_SESSIONS + 1
    used = sessions.begin("busy", held)
    for _ in range(int(LONGEST_SECONDS / IDLE_SECONDS) + 1):
        now[0] += IDLE_SECONDS - 1
        found = sessions.find(used)
    assert found is None, "a session ends although it is used"


def test_tokens_are_of_one_visitor() -> None:
    """And of one process."""
    sessions, others = Sessions(lambda: 0.0), Sessions(lambda: 0.0)
    assert sessions.is_token("a", sessions.token("a"))
    assert not sessions.is_token("b", sessions.token("a"))
    assert not sessions.is_token("a", others.token("a"))
    assert not sessions.is_token("a", "é")


def _checked(
    refusals: dict[str, list[str | None]], secret: str = "given", listing: Sequence[str | None] = (None,)
) -> str:
    """
    Return what a sign-in tells; *refusals*: what each broker answers to its questions in turn, None: it allows.

    *listing*: what the name server answers in turn.
    """
    listed = list(listing)

    class Asked:
        """An administrator whose brokers answer by the script."""

        async def cluster(self, *, figures: bool) -> list[BrokerStatus]:
            """Name the brokers."""
            assert not figures, "one refusal must not hide the other brokers"
            why = listed.pop(0)
            if why is not None:
                raise Forbidden("refused", code=16, remark=why)
            return [BrokerStatus("c", address, 0, address) for address in refusals]

        @property
        def _admin(self) -> "Asked":
            """Return itself as the one that blocks."""
            return self

        def _options_at(self, address: str) -> dict[str, str]:
            """Answer the next question."""
            why = refusals[address].pop(0)
            if why == "away":
                raise OutcomeUnknown("it does not answer")
            if why is not None:
                raise Forbidden("refused", code=16, remark=why)
            return {}

        async def close(self, _timeout: float) -> None:
            """End."""

    async def run() -> str:
        slots = Slots(1.0)
        connect: Any = lambda _keys: Asked()  # noqa: E731
        try:
            return await check_user(connect, slots, "ada", secret)
        finally:
            await slots.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("refusals", "told"),
    [
        ({"a": ["signature", "may not", "signature"]}, ""),
        ({"a": ["signature", None, "signature"]}, ""),
        ({"a": ["signature", "signature", "signature"]}, "does not know"),
        ({"a": ["unknown", "signature", "signature"]}, "twice in the same way"),
        ({"a": ["unknown", None, None]}, "twice in the same way"),
        ({"a": ["unknown", "unknown", "unknown"], "b": ["signature"]}, "does not know"),
        ({"a": ["away"], "b": ["signature", "may not", "signature"]}, ""),
        ({"a": ["signature"], "b": [None]}, "The broker at b has no access control"),
        ({"a": [None], "b": [None]}, "This cluster has no access control"),
    ],
)
def test_one_broker_decides_about_a_key(refusals: dict[str, list[str | None]], told: str) -> None:
    """Answers of several brokers, or from before and after a change of the users, are no proof of a key."""
    found = _checked(refusals)
    assert told in found
    assert bool(told) == bool(found)


@pytest.mark.parametrize(
    ("refusals", "secret", "listing", "told"),
    [
        ({"a": ["signature", "may not", "signature"]}, "given", ["signature", None], ""),
        ({"a": ["signature", "signature", "signature"]}, "given", ["signature", None], "does not know"),
        ({"a": [None]}, "given", ["signature", None], "has no access control"),
        ({"a": ["signature"], "b": [None]}, "given", ["signature", None], "The broker at b has no access control"),
        ({}, "given", ["signature", "signature"], "does not know"),
        ({}, "given", ["signature", "may not"], "Get or List on Cluster:*"),
        ({}, "", ["signature"], "does not know"),
    ],
)
def test_a_name_server_with_access_control_shows_the_brokers_to_the_given_key(
    refusals: dict[str, list[str | None]], secret: str, listing: list[str | None], told: str
) -> None:
    """The brokers decide then, too."""
    found = _checked(refusals, secret, listing)
    assert told in found
    assert bool(told) == bool(found)


def test_a_sign_in_needs_a_broker() -> None:
    """Its failure is told."""
    with pytest.raises(OutcomeUnknown, match="does not answer"):
        _checked({"a": ["away"]})


def test_attempts_are_limited_for_all_together() -> None:
    """A stranger with many addresses has a hundred a minute."""
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    assert sum(attempts.take(f"10.0.0.{number}") for number in range(200)) == 100
    now[0] += 61
    assert attempts.take("10.0.0.1")


def test_a_long_list_is_cut_after_its_filter() -> None:
    """A page behind the end is the last one."""
    names = [f"topic-{number}" for number in range(10_000)]
    rows = sliced(names, Fields([("filter", "TOPIC 99"), ("page", "1000")]), 25)
    assert (rows.total, rows.pages, rows.number, len(rows.items)) == (280, 12, 12, 5)
    assert sliced([], Fields([]), 25).pages == 1


def test_links_hold_any_name() -> None:
    """Empty fields are left out."""
    assert link("/topic", name="a&b=<c>") == "/topic?name=a%26b%3D%3Cc%3E"
    assert link("/topics", filter="", page=None) == "/topics"


def test_each_page_has_a_key_of_its_own() -> None:
    """It follows `g`."""
    assert len({key for _, _, key in NAVIGATION}) == len(NAVIGATION)


def test_templates_escape_and_name_no_other_host() -> None:
    """Pages work without any other server."""
    Pages()
    for path in [*STATIC.iterdir(), *(STATIC.parent / "templates").iterdir()]:
        text = path.read_text()
        assert "|safe" not in text.replace(" ", "")
        if path.suffix in {".html", ".css"}:
            assert "//" not in text.replace("text//", ""), path
        assert "<script>" not in text, path
        assert " style=" not in text, path


def test_calls_wait_for_a_slot_and_not_for_ever() -> None:
    """A call whose visitor left keeps its slot until it ends."""

    async def run() -> None:
        slots = Slots(0.05)
        ends = asyncio.Event()

        async def hang() -> str:
            await ends.wait()
            return "done"

        tasks = [asyncio.create_task(slots.run(hang)) for _ in range(8)]
        await asyncio.sleep(0)
        for task in tasks[1:]:
            task.cancel()
        with pytest.raises(Busy, match="no answer within"):
            await slots.run(hang)
        ends.set()
        assert await slots.run(hang) == "done"
        assert await tasks[0] == "done"
        await slots.close()

    asyncio.run(run())


def test_streams_of_one_page_share_its_samples() -> None:
    """Ten visitors ask the cluster once."""

    async def run() -> int:
        count = 0

        async def load() -> Rendered:
            nonlocal count
            count += 1
            return Rendered("page", {"lag": 1}, {"stored": {"a": 10}})

        feed = Feed(load)
        samples = await asyncio.gather(*(feed.sample() for _ in range(10)))
        assert {sample.html for sample in samples} == {"page"}
        assert [figures for _, figures in feed.history] == [{"lag": 1}], "a rate needs two samples"
        json.dumps(samples[0].figures)
        return count

    assert asyncio.run(run()) == 1


class Growing:
    """An administrator of two brokers, of which `b` does not answer the second question."""

    def __init__(self) -> None:
        self.offsets = [{"a": 10, "b": 5_000_000}, {"a": 30}, {"a": 40, "b": 5_000_100}, {"a": 60, "b": 5_000_180}]

    async def cluster(self, *, figures: bool) -> list[BrokerStatus]:
        """Name the brokers."""
        assert not figures
        return [BrokerStatus("c", name, 0, name) for name in "ab"]

    async def describe_topic(self, name: str) -> TopicDescription:
        """Answer the next question."""
        queues = [QueueRange(broker, 0, 0, end, None) for broker, end in self.offsets.pop(0).items()]
        return TopicDescription(name, (), tuple(queues), ())

    async def describe_group(self, name: str, **_cluster: None) -> Any:
        """Describe the group."""
        return SimpleNamespace(name=name, retry_policy=Customized((1000,)))

    async def lag(self, name: str, **_cluster: None) -> GroupLag:
        """Answer the next question."""
        ends = self.offsets.pop(0).items()
        return GroupLag(name, tuple(QueueLag("t", broker, 0, end, 0, end, 0.0) for broker, end in ends))


@pytest.mark.parametrize(("pages", "path"), [(topics.PAGES, "/topic"), (groups.PAGES, "/group")])
def test_a_broker_that_returns_is_no_rate(pages: Sequence[Page], path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had before counts at no sample; rates are those of brokers that two samples have."""
    now = 0.0
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: now, time=lambda: now))
    (page,) = (page for page in pages if page.path == path)
    admin = Growing()
    visit: Any = SimpleNamespace(
        query=Fields.parse(b"name=n"), cluster=SimpleNamespace(ask=lambda question: question(admin))
    )

    async def look() -> Rendered:
        view = await page.load(visit)
        return Rendered("", view.figures, view.counters)

    async def run() -> list[float | None]:
        nonlocal now
        feed, rates = Feed(look), []
        for _ in range(4):
            now += 10.0
            rates.append((await feed.sample()).figures.get("stored"))
        return rates

    assert asyncio.run(run()) == [None, 2.0, 1.0, 10.0]


def test_reads_that_wait_turn_away_reads_alone() -> None:
    """However many there are."""

    async def run() -> None:
        slots = Slots(5.0)
        ends = asyncio.Event()

        async def hang() -> str:
            await ends.wait()
            return "done"

        async def other() -> str:
            return "other"

        reads = [asyncio.create_task(slots.run(hang, reads_messages=True)) for _ in range(66)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="8 questions that read messages wait"):
            await slots.run(hang, reads_messages=True)
        assert await slots.run(other) == "other"
        ends.set()
        answers = await asyncio.gather(*reads, return_exceptions=True)
        assert answers.count("done") == 2 + 8
        await slots.close()

    asyncio.run(run())


class Hung:
    """The cluster of a visitor whose servers have answered about a message and do not answer any more."""

    def __init__(self) -> None:
        self.asked = 0

    def ends(self) -> float:
        """Give as much time as there is."""
        return float("inf")

    async def read(self, _question: object, _ends: float = 0.0) -> Any:
        """Answer once."""
        self.asked += 1
        if self.asked > 1:
            raise OutcomeUnknown("no answer")
        return SimpleNamespace(message_id="id")


def test_a_page_of_a_message_asks_no_server_again_that_hangs() -> None:
    """So it does not keep one of the few places of reads."""
    (page,) = (page for page in messages.PAGES if page.path == "/message")
    cluster = Hung()
    visit: Any = SimpleNamespace(query=Fields.parse(b"topic=t&id=id"), cluster=cluster)
    view = asyncio.run(page.load(visit))
    assert (str(view.context["groups_error"]), view.context["trace"], cluster.asked) == ("no answer", None, 2)


def test_a_page_reads_no_further_when_its_time_is_over() -> None:
    """Its reads have one end together."""

    async def run() -> None:
        slots = Slots(0.05)
        nothing: Any = None
        cluster = Cluster(lambda _keys: nothing, slots, NO_KEYS)

        async def answer(_admin: object) -> str:
            return "read"

        assert await cluster.read(answer, cluster.ends()) == "read"
        with pytest.raises(Busy, match="it was not asked"):
            await cluster.read(answer, cluster.ends() - slots.longest - 1)
        await slots.close()

    asyncio.run(run())


class Letters:
    """An administrator of ten dead letters; one that is looked for once may be gone later."""

    def __init__(self, gone: int = -1, error: FerromqError | None = None) -> None:
        self.parts: list[int] = []
        self._error = error
        self._gone = gone
        self._looked: list[int] = []

    async def query_by_offset(self, topic: str, _queue: int, offset: int, _count: int, *, broker: str) -> list[Any]:
        """Return one letter."""
        self._looked.append(offset)
        is_gone = offset == self._gone and self._looked.count(offset) > 1
        return [] if is_gone else [SimpleNamespace(queue_offset=offset, topic=topic, broker=broker)]

    async def resend_dead_letters(self, letters: Sequence[Any], *, topic: str | None) -> list[Any]:
        """Note how many are sent together."""
        self.parts.append(len(letters))
        return [ResentLetter(letter, topic, error=self._error) for letter in letters]


def resent(admin: Letters) -> str:
    """Return what the page tells after it sent ten letters again."""

    async def read(question: Any) -> Any:
        return await question(admin)

    form = Fields.parse(b"group=g&" + b"&".join(b"letter=a|0|%d" % offset for offset in range(10)))
    visit: Any = SimpleNamespace(cluster=SimpleNamespace(read=read))
    (action,) = dead_letters.ACTIONS
    said: str = asyncio.run(action.do(visit, form)).said
    return said


@pytest.mark.parametrize(("gone", "parts", "said"), [(-1, [4, 4, 2], "sent 10 of 10"), (9, [4, 4], "sent 8 of 10")])
def test_dead_letters_are_sent_again_a_few_at_a_time(gone: int, parts: list[int], said: str) -> None:
    """As each may be large. What was sent before a failure is told."""
    admin = Letters(gone)
    told = resent(admin)
    assert admin.parts == parts
    assert told.startswith(said)
    assert ("is gone" in told) == (gone >= 0)


def test_no_letter_is_sent_behind_a_server_that_does_not_answer() -> None:
    """A refusal stops no other letter."""
    for error, parts in ((ConnectionFailed("lost"), [4]), (RequestError("refused"), [4, 4, 2])):
        admin = Letters(error=error)
        assert resent(admin).startswith("sent 0 of 10 dead letters again; the first failure: ")
        assert admin.parts == parts


def test_few_questions_read_messages_at_a_time() -> None:
    """They leave slots for others, and one whose visitor left waits no longer for a place."""

    async def run() -> None:
        slots = Slots(0.05)
        ends = asyncio.Event()

        async def hang() -> str:
            await ends.wait()
            return "done"

        async def other() -> str:
            return "other"

        reads = [asyncio.create_task(slots.run(hang, reads_messages=True)) for _ in range(2)]
        await asyncio.sleep(0)
        gone = asyncio.create_task(slots.run(hang, reads_messages=True))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(Busy, match="2 questions to the cluster had no answer within"):
            await slots.run(hang, reads_messages=True)
        assert await slots.run(other) == "other"
        ends.set()
        assert await asyncio.gather(*reads) == ["done", "done"]
        assert [await slots.run(hang, reads_messages=True) for _ in range(3)] == ["done"] * 3
        await slots.close()

    asyncio.run(run())
