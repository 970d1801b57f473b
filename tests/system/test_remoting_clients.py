"""Remoting clients of a broker, seen over their sockets."""

from collections.abc import Iterator

import pytest
from remoting_peer import Peer

import ferromq


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Run an embedded broker."""
    with ferromq.embedded() as embedded:
        yield embedded


def test_an_unknown_code_leaves_the_connection_open(mq: ferromq.Embedded) -> None:
    """It is answered with 3, and the next question with its answer."""
    with Peer(mq.broker.address) as peer:
        assert peer.call(31_999).code == 3
        assert peer.call(31_999).code == 3
