"""The status of a whole acknowledgement answer: official clients show it instead of the texts of its entries."""

from collections.abc import Iterator

import pytest
from grpc_peer import GrpcPeer

import ferromq
from ferromq._proto import messages as pb

TOPIC = "acknowledged"


@pytest.fixture
def mq() -> Iterator[ferromq.Embedded]:
    """Run a broker of its own."""
    with ferromq.embedded() as mq:
        yield mq


def status(peer: GrpcPeer, *handles: str) -> tuple[int, str]:
    """Acknowledge all of them in one request."""
    entries = [
        pb.AckMessageEntry(message_id=f"id-{number}", receipt_handle=each) for number, each in enumerate(handles)
    ]
    request = pb.AckMessageRequest(group=pb.Resource(name="g"), topic=pb.Resource(name=TOPIC), entries=entries)
    answer = peer.call("AckMessage", request)
    return int(answer.status.code), str(answer.status.message)


def test_the_answer_says_the_name_of_the_code_that_all_entries_share(mq: ferromq.Embedded) -> None:
    """A refusal of all, and different outcomes, have RocketMQ's names; the entries have the reasons."""
    with GrpcPeer(mq.endpoint) as peer:
        peer.send(TOPIC, "one")
        (message,) = peer.receive("g", TOPIC, wait=5)
        assert status(peer, "no-handle") == (pb.Code.INVALID_RECEIPT_HANDLE, "INVALID_RECEIPT_HANDLE")
        assert status(peer, message.handle, "no-handle") == (pb.Code.MULTIPLE_RESULTS, "MULTIPLE_RESULTS")
        assert status(peer, message.handle) == (pb.Code.OK, "OK")
