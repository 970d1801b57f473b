"""The code blocks of the pages on Spark run as they are printed, in the one session. Other pages: tests/system."""

from collections.abc import Callable
from typing import Any

import pytest
from page_blocks import ROOT, Page

from ferromq.cli import main as cli


def run_command(words: list[str]) -> None:
    """Run a pipeline in this process; 1 says that it found something."""
    assert cli.main([*words, "--quiet"]) in {0, 1}, words


@pytest.mark.parametrize("name", ["archive.md", "pipelines.md", "spark.md"])
def test_a_page_runs(
    name: str,
    session: Any,
    again: Callable[[Callable[[], Any]], Any],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From top to bottom; what it says is printed is."""

    def run() -> None:
        directory = tmp_path_factory.mktemp("page")
        monkeypatch.chdir(directory)
        Page(ROOT / "docs" / name, directory, run_command).run()

    again(run)
