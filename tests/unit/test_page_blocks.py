"""The runner of the documents' blocks, `tests/pages/page_blocks.py`."""

from pathlib import Path

import pytest
from page_blocks import Page, blocks

OUTPUT = "```python\nprint('one 17 two')\n```\n\n<!-- output -->\n```text\n{}\n```\n"


def page(directory: Path, text: str) -> Page:
    """Return a page with this text."""
    path = directory / "page.md"
    path.write_text(text)
    return Page(path, directory)


def test_comments_say_how_a_block_is_run() -> None:
    """A reason not to, the expected output, and code that the reader does not see."""
    text = "<!-- setup\nx = 1\n-->\n```python\ny\n```\n<!-- not run: no Docker here -->\n```sh\nz\n```\n" + OUTPUT
    found = [(block.language, block.text, block.line, block.not_run, block.output) for block in blocks(text)]
    assert found == [
        ("python", "x = 1\n", 2, "", None),
        ("python", "y\n", 5, "", None),
        ("sh", "z\n", 9, "no Docker here", None),
        ("python", "print('one 17 two')\n", 12, "", "{}\n"),
    ]


def test_blocks_share_names_and_a_directory(tmp_path: Path) -> None:
    """Python, shell and a configuration, which the next blocks find."""
    text = """```python
here = __import__("pathlib").Path(DIRECTORY)
(here / "made").touch()
```
```toml
# broker.toml
flush = "group"
```
```sh
test -f made
grep -q group broker.toml
touch made-too
```
```python
assert (here / "made-too").exists()
```
"""
    page(tmp_path, text.replace("DIRECTORY", repr(str(tmp_path)))).run()


def test_printed_output_is_compared(tmp_path: Path) -> None:
    """An ellipsis stands for anything; all else is compared."""
    page(tmp_path, OUTPUT.format("one … two")).run()
    with pytest.raises(AssertionError, match="the page says 'one two"):
        page(tmp_path, OUTPUT.format("one two")).run()


@pytest.mark.parametrize("text", ["```python\n1 / 0\n```\n", "```sh\nfalse\n```\n", '```toml\nflsh = "x"\n```\n'])
def test_a_block_that_fails_is_named(tmp_path: Path, text: str) -> None:
    """By the page and the line."""
    with pytest.raises(Exception, match=r".") as raised:
        page(tmp_path, f"# Page\n\n{text}").run()
    assert "page.md:4: this block" in raised.value.__notes__[0]
