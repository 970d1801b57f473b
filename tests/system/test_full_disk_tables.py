"""Requests that write a table on a full disk: a typed error, one line in the log, and nothing is changed."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.files import atomic

SEND, SET_MODE, NOT_AVAILABLE = 310, 401, 14


def full(*_: Any) -> None:
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def mq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ferromq.Embedded]:
    """Start a broker whose tables cannot be written any more."""
    with ferromq.embedded(tmp_path) as embedded:
        with embedded.admin() as admin:
            admin.create_topic("there")
            admin.create_group("g")
        with monkeypatch.context() as patched:
            patched.setattr(atomic, "replace_file", full)
            patched.setattr(os, "fdatasync", full)
            yield embedded


@pytest.mark.parametrize(
    "change",
    [
        lambda admin: admin.create_topic("new"),
        lambda admin: admin.alter_topic("there", queues=9),
        lambda admin: admin.delete_topic("there"),
        lambda admin: admin.create_group("new"),
    ],
)
def test_a_change_is_refused_with_store_full(
    mq: ferromq.Embedded, change: Callable[[ferromq.Admin], None], caplog: pytest.LogCaptureFixture
) -> None:
    """With the reason and the way out, without a traceback in the log."""
    before = mq.broker.topics.content, mq.broker.groups.content
    with (
        mq.admin() as admin,
        pytest.raises(ferromq.StoreFull, match=r"disk full.*nothing changed; free some space"),
    ):
        change(admin)
    assert (mq.broker.topics.content, mq.broker.groups.content) == before
    assert not any(record.exc_info for record in caplog.records)
    assert "request refused" in caplog.text


def test_a_topic_of_first_use_is_refused_and_not_denied(mq: ferromq.Embedded) -> None:
    """Over gRPC and remoting: "does not exist, create it" would be no help."""
    with mq.producer(attempts=1) as producer, pytest.raises(ferromq.StoreFull):
        producer.send("new", b"x")
    client = RemotingClient()
    fields = {"a": "p", "b": "new", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    code, remark, _, _ = client.call(mq.remoting, SEND, fields, b"x")
    assert (code, "a full disk" in str(remark)) == (NOT_AVAILABLE, True)
    body = b'{"topic":"there","consumerGroup":"g","mode":"POP"}'
    code, remark, _, _ = client.call(mq.remoting, SET_MODE, {}, body)
    assert (code, "disk full" in str(remark)) == (NOT_AVAILABLE, True)
    client.close()
