"""The code blocks of README and docs run as they are printed. Pages on Spark: tests/spark/test_pages.py."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from page_blocks import PAGES, ROOT, RUN, SHOWN, blocks, is_run

RUNNER = ROOT / "tests" / "pages" / "run_page.py"
SPARK = {"archive.md", "pipelines.md", "spark.md"}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name not in SPARK and any(map(is_run, blocks(page.read_text())))],
    ids=lambda page: page.name,
)
@pytest.mark.timeout(240)  # a page may start dozens of programs
def test_a_page_runs(page: Path, tmp_path: Path) -> None:
    """From top to bottom, in one process; the output is the printed one."""
    program = [sys.executable, str(RUNNER), str(page)]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


UNTYPED = ("no-redef", "assignment", "var-annotated", "union-attr", "import-untyped", "import-not-found")
"""Codes of mypy that do not count on pages: blocks reuse names, and annotate no empty or optional values."""


@pytest.mark.timeout(240)
def test_the_python_of_pages_has_the_types_of_what_it_calls(tmp_path: Path) -> None:
    """A reader's type checker takes it, too."""
    for page in PAGES:
        text = ""
        for block in blocks(page.read_text()):
            if block.language == "python" and not block.not_run:
                text += "\n" * (block.line - 1 - text.count("\n")) + block.text
        (tmp_path / f"page_{page.stem.replace('-', '_')}.py").write_text(text)
    options = [word for code in UNTYPED for word in ("--disable-error-code", code)]
    command = [sys.executable, "-m", "mypy", "--config-file=", "--cache-dir", tmp_path / "cache", *options, tmp_path]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_every_block_has_a_language() -> None:
    """One that is run, or one that is only shown; a block that is not run says why."""
    for page in PAGES:
        text = page.read_text()
        assert set(re.findall(r"^```([^\n]*)\n.*?^```$", text, re.MULTILINE | re.DOTALL)) <= RUN | SHOWN, page
        for block in blocks(text):
            assert not block.not_run or len(block.not_run) > 8, f"{page}:{block.line} does not say why"


def test_every_block_of_python_compiles() -> None:
    """Also one that is not run, because what it needs is missing."""
    for page in PAGES:
        for block in blocks(page.read_text()):
            if block.language == "python":
                compile("\n" * (block.line - 1) + block.text, str(page), "exec")
