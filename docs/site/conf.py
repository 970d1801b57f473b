"""
How Sphinx makes the documentation site of `docs/`; `make docs` runs it.

The pages are plain Markdown that reads the same in the repository. Only the API reference is made here, from docstrings
and, for compiled types, from `_ferromq.pyi`. So no extension module is needed.
"""
# ruff: noqa: INP001 (Sphinx reads this file; it is no package)

import __future__

import re
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]

project = "ferromq"
author = "the ferromq authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
html_theme = "furo"
html_title = "ferromq"
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 4

default_role = "code"
add_module_names = False
python_maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": True}
# Types in signatures are linked by their name alone: `bytes` is the built-in type, and also a field of several classes.
suppress_warnings = ["ref.python"]

_CODE = re.compile(r"(?<![`:\w])`([^`\n]+)`(?!`)")
_CALL = re.compile(r"(\*\w+\*)(?=\()")


def _load_stubs() -> None:
    """Replace the extension module by its types."""
    typing.type_check_only = lambda kind: kind  # type: ignore[attr-defined] (in stubs alone)
    path = ROOT / "python" / "ferromq" / "_ferromq.pyi"
    module = ModuleType("ferromq._ferromq", "The types of the compiled core.")
    sys.modules[module.__name__] = module
    flags = __future__.annotations.compiler_flag
    exec(compile(path.read_text(), str(path), "exec", flags, dont_inherit=True), module.__dict__)  # noqa: S102


def _to_rst(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Convert a docstring to reStructuredText: single backticks are code, and so are indented blocks."""
    made: list[str] = []
    if lines and lines[0].startswith("Alias for field number"):  # Python writes this itself
        lines.clear()
    for line in lines:
        begins = line.startswith("    ") and (not made or not made[-1])
        if begins and not next((text for text in reversed(made) if text), "").endswith("::") and not _in_code(made):
            made += [".. code-block:: python", ""]
        made.append(line if line.startswith("    ") else _CALL.sub(r"\1\\ ", _CODE.sub(r"``\1``", line)))
    lines[:] = made


def _in_code(made: list[str]) -> bool:
    """Say whether the last text is in an indented block."""
    return next((text for text in reversed(made) if text), "").startswith("    ")


def _navigation(_app: Any, docname: str, content: list[str]) -> None:
    """Make the menu of the site from the lists of links in two pages."""
    if docname == "reference/decisions":
        content[0] += "\n```{toctree}\n:glob:\n\n/decisions/*\n```\n"
    if docname not in {root_doc, "reference/index"}:
        return
    for part in re.split(r"^#+ ", content[0], flags=re.MULTILINE)[1:]:
        pages = re.findall(r"^- \[[^]]+\]\(([^)]+)\.md\)", part, re.MULTILINE)
        caption = part.partition("\n")[0]
        if pages:
            content[0] += "\n".join(["\n```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


def _has_other_page(app: Any, _what: str, _name: str, found: Any, _skip: bool, _options: Any) -> bool | None:
    """Leave errors and options to pages of their own."""
    here = app.env.current_document.docname
    is_there = isinstance(found, type) and (issubclass(found, Exception) or hasattr(found, "from_options"))
    return True if here == "api/ferromq" and is_there else None


def setup(app: Any) -> None:
    """Register the hooks."""
    app.connect("source-read", _navigation)
    app.connect("autodoc-skip-member", _has_other_page)
    app.connect("autodoc-process-docstring", _to_rst)


_load_stubs()
