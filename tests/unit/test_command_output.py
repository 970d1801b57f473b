"""How commands print."""

import errno
import io
import os

import pytest

from ferromq.cli.administration import output
from ferromq.cli.administration.output import Output, OutputError


class Full(io.StringIO):
    """A terminal that cannot be written."""

    def isatty(self) -> bool:
        """Say so."""
        return True

    def write(self, _text: str) -> int:
        """Take nothing."""
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("has_rich", [True, False])
def test_a_table_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch, *, has_rich: bool) -> None:
    """By rich, too."""
    if has_rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setattr(output, "_rich", lambda: None)
    monkeypatch.setattr("sys.stdout", Full())
    with pytest.raises(OutputError, match="cannot write to the standard output"):
        Output(is_json=False).table(("topic",), [("orders",)], "<")
