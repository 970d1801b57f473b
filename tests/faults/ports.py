"""Free ports of 127.0.0.1 that stay reserved for one server, however often it starts."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[str]:
    """
    Yield the address of a port until the end.

    A bound socket keeps it, which does not listen: connections are refused, and a server that may reuse addresses, as
    ours do, can listen beside it. A port that is only free now may be another program's a moment later.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{keeper.getsockname()[1]}"
