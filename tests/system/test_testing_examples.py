"""The tests that users read run: those of the examples, and those of the page on testing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from page_blocks import ROOT, blocks, is_run

EXAMPLES = sorted((ROOT / "examples" / "testing").glob("test_*.py"))


def run(directory: Path, *arguments: str) -> str:
    """Run pytest in a directory as a project of its own, and return what it prints; all tests must pass."""
    command = [sys.executable, "-m", "pytest", "-p", "ferromq.testing", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-c", os.devnull, f"--rootdir={directory}", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        cwd=directory,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_are_examples() -> None:
    """Of a service that sends, a worker, and a service with delays."""
    assert [path.stem for path in EXAMPLES] == ["test_invoice_worker", "test_order_service", "test_reminders"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_passes(example: Path) -> None:
    """As it stands, without a configuration."""
    assert "passed" in run(example.parent, example.name)


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    """Its blocks, one after the other, are a test file."""
    found = [block.text for block in blocks((ROOT / "docs" / "testing.md").read_text()) if is_run(block)]
    (tmp_path / "test_page.py").write_text("\n\n".join(found))
    assert f"{sum(text.count('def test_') for text in found)} passed" in run(tmp_path, "test_page.py")
