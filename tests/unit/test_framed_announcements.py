"""What goes in frames, by what a broker announces."""

import pytest

from ferromq._ferromq import FramedCalls
from ferromq.client.connection import Channels
from ferromq.core.requests import Call, Identity, Stream

ENDPOINT = "127.0.0.1:1"


@pytest.mark.parametrize("announced", [{"1"}, {"1", "2"}])
def test_receives_go_in_frames_only_to_a_broker_that_announces_them(announced: set[str]) -> None:
    """An earlier one takes sends and acknowledgements in frames, and would close the connection for a receive."""
    channels = Channels(Identity(), None)
    channels._frames = FramedCalls()
    channels.framed[ENDPOINT] = announced
    for method in ("ReceiveMessage", "PullMessage"):
        assert channels.is_framed(Stream(ENDPOINT, method, b"", 1.0)) is ("2" in announced)
    assert channels.is_framed(Call(ENDPOINT, "AckMessage", b"", 1.0))
    assert not channels.takes_records(ENDPOINT), "no connection is open"
    channels.close()
