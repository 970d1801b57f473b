"""Frames of HTTP/2 in the bytes of a connection."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.testing.http2_frames import DATA, HEADERS, PREFACE, FrameReader, Piece

Frame = tuple[int, int, bytes]
FRAMES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**31 - 1), st.binary(max_size=40)), max_size=8)


def encode(frames: Sequence[Frame], reserved: int = 0) -> bytes:
    """Return the bytes of frames."""
    parts = [
        len(payload).to_bytes(3) + bytes([kind, 0x5]) + (stream | reserved << 31).to_bytes(4) + payload
        for kind, stream, payload in frames
    ]
    return b"".join(parts)


def joined(pieces: Sequence[Piece]) -> list[Frame]:
    """Return frames of pieces, of which none is empty but an empty frame."""
    return [(piece.kind, piece.stream, piece.payload) for piece in pieces]


@given(frames=FRAMES, cuts=st.lists(st.integers(0, 500), max_size=10), reserved=st.integers(0, 1))
def test_frames_are_found_whatever_pieces_they_come_in(frames: list[Frame], cuts: list[int], reserved: int) -> None:
    """Behind the preface; a frame in two pieces is found in each of them."""
    whole = PREFACE + encode(frames, reserved)
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    reader = FrameReader(len(PREFACE))
    pieces = [piece for begin, end in itertools.pairwise(places) for piece in reader.read(whole[begin:end])]
    found: list[Frame] = []
    for piece in pieces:
        is_rest = found and len(found[-1][2]) < len(frames[len(found) - 1][2])
        if is_rest:
            kind, stream, payload = found.pop()
            assert (kind, stream) == (piece.kind, piece.stream)
            found.append((kind, stream, payload + piece.payload))
        else:
            found.append((piece.kind, piece.stream, piece.payload))
    assert found == frames


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_any_bytes_are_read(data: bytes, cuts: list[int]) -> None:
    """Without an error, and without an end that comes too late."""
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = FrameReader()
    for begin, end in itertools.pairwise(places):
        assert sum(len(piece.payload) for piece in reader.read(data[begin:end])) <= end - begin


@pytest.mark.parametrize("kind", [DATA, HEADERS])
def test_an_empty_frame_is_one(kind: int) -> None:
    """As the end of a stream."""
    assert joined(list(FrameReader().read(encode([(kind, 3, b"")])))) == [(kind, 3, b"")]
