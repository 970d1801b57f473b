"""Lines of the audit log for requests of any content."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferromq.process import logs
from ferromq.protocol import audit
from ferromq.protocol.codes import RequestCode
from ferromq.protocol.remoting import success

TEXTS = st.text(max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["topicConfigList", "topicName", "groupName", "policies"]), inner, max_size=3)
    ),
    max_leaves=9,
)
BODIES = st.one_of(st.binary(max_size=40), JSON.map(lambda content: json.dumps(content).encode()))
FIELDS = st.dictionaries(st.sampled_from(["topic", "group", "username", "readable", "key"]), TEXTS, max_size=4)


@pytest.fixture(autouse=True)
def _lines(caplog: pytest.LogCaptureFixture) -> None:
    """Take lines, as a server process does."""
    caplog.set_level(logging.INFO, "ferromq.audit")


def ask(code: RequestCode, fields: dict[str, str], body: bytes) -> None:
    """Let an audited handler answer a request."""
    request: Any = SimpleNamespace(fields=fields, body=body, user="ada\n", certificate="CN=é\r", peer="10.0.0.9:1")
    assert audit.audited(code, lambda _request: success())(request) == success()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(audit.CHANGES)), FIELDS, BODIES)
def test_any_request_is_answered_and_has_at_most_one_printable_line(
    caplog: pytest.LogCaptureFixture, code: RequestCode, fields: dict[str, str], body: bytes
) -> None:
    """No text of a client begins a line of its own, and none is without limit."""
    caplog.clear()
    ask(code, fields, body)
    for record in caplog.records:
        line = record.getMessage()
        assert all(" " <= each <= "~" for each in line)
    assert len(caplog.records) <= 1


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"topicConfigList":' + b"[" * 800 + b"]" * 800 + b"}"])
def test_a_body_that_nests_deeply_is_answered(caplog: pytest.LogCaptureFixture, body: bytes) -> None:
    """The change is made already, so its answer must not fail for the line."""
    caplog.set_level(logging.INFO)
    ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
    assert "subject=- outcome=SUCCESS" in caplog.text


def test_a_value_is_quoted_in_text_alone(caplog: pytest.LogCaptureFixture) -> None:
    """JSON has its own quotes."""
    ask(RequestCode.CHANGE_BROKER_STATE, {"state": "draining", "quietMs": "5"}, b"")
    (record,) = caplog.records
    assert 'subject="state=draining quietMs=5" outcome' in logs.Line().format(record)
    fields = json.loads(logs.JsonLine().format(record))["fields"]
    assert (fields["subject"], fields["user"], fields["certificate"]) == ("state=draining quietMs=5", "ada\n", "CN=é\r")


def test_a_long_subject_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """A list of thousands of topics is one short line."""
    body = json.dumps({"topicConfigList": [{"topicName": f"topic-{number}"} for number in range(5_000)]}).encode()
    ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
    (record,) = caplog.records
    assert 500 < len(record.getMessage()) < 700
