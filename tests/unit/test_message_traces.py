"""The records of message traces: each form is read, and other bytes are counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.protocol.message_traces import Begun, Ended, Recalled, Record, Sent, TransactionEnded, decode

SENT = "Pub|7|DefaultRegion|g|t|id|null|k|h:1|3|5|0|offset-id|true"
FORMS: list[tuple[str, Record]] = [
    (SENT, Sent("id", 7, "g", "t", "h:1", 3, 5, "normal", is_success=True, client_host=None)),
    (f"{SENT}|10.0.0.1", Sent("id", 7, "g", "t", "h:1", 3, 5, "normal", is_success=True, client_host="10.0.0.1")),
    (
        "Pub|7|r|g|t|id|tag||null|3|5|1|false",  # by the oldest clients, and failed
        Sent("id", 7, "g", "t", None, 3, 5, "transaction", is_success=False, client_host=None),
    ),
    ("SubBefore|8|r|g|req|id|2|", Begun("id", 8, "g", "req", 2)),
    ("SubAfter|req|id|9|false|k|2|10|g", Ended("id", "req", 9, is_success=False, result="exception", at=10, group="g")),
    ("SubAfter|req|id|9|true|k", Ended("id", "req", 9, is_success=True, result="success", at=None, group=None)),
    ("SubAfter|req|id|9|false|k", Ended("id", "req", 9, is_success=False, result="failed", at=None, group=None)),
    (
        "EndTransaction|7|r|g|t|id|tag|k|h:1|2|tx|ROLLBACK_MESSAGE|true",
        TransactionEnded("id", 7, "g", "t", "rollback", "tx", is_checked=True),
    ),
    ("Recall|7|r|g|t|id|true", Recalled("id", 7, "g", "t", is_success=True)),
]
WORDS = st.sampled_from(
    ["Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall", "true", "UNKNOW", "²", "-1", "9" * 19]
)
SHAPED = st.lists(st.lists(WORDS | st.text(max_size=3) | st.integers().map(str), max_size=16).map("\x01".join))


def body(*records: str) -> bytes:
    """Return the body of a trace message; each record ends with a separator."""
    return "".join(record.replace("|", "\x01") + "\x02" for record in records).encode()


@pytest.mark.parametrize(("text", "record"), FORMS)
def test_each_record_is_read(text: str, record: Record) -> None:
    """Of clients of any age."""
    assert list(decode(body(text))) == [record]


def test_a_body_has_many_records() -> None:
    """In their order; one of an unknown form does not hide the others."""
    texts = [text for text, _ in FORMS]
    records = [record for _, record in FORMS]
    assert list(decode(body(*texts[:4], "New|1", *texts[4:]))) == [*records[:4], None, *records[4:]]
    assert list(decode(b"")) == []


@pytest.mark.parametrize(
    "text",
    [
        SENT.replace("|7|", "|x|"),
        SENT.replace("|7|", "|253402300800000|"),
        SENT.replace("|0|offset", "|9|offset"),
        SENT.replace("true", "yes"),
        "Pub|7",
        "SubAfter|req|id|9|true|k|7|10|g",
        "EndTransaction|7|r|g|t|id|tag|k|h:1|2|tx|PERHAPS|true",
        SENT.replace("|g|", f"|{'g' * 1025}|"),
    ],
)
def test_a_record_of_another_form_is_counted(text: str) -> None:
    """Instead of values that are not there."""
    assert list(decode(body(text))) == [None]


@given(st.binary(max_size=200) | SHAPED.map("\x02".join).map(str.encode))
def test_any_bytes_are_records_or_counted(raw: bytes) -> None:
    """Nothing is raised, and nothing is lost."""
    parts = [part for part in raw.decode(errors="replace").split("\x02") if part]
    assert len(list(decode(raw))) == len(parts)
