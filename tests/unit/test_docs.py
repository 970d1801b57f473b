"""The documents: every link leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`(?!\])", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as they are made on the web."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    """To a file or folder of the repository, and to a heading where one is named."""
    broken = []
    for link in LINK.findall(CODE.sub("", document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not (target.exists() and target.is_relative_to(ROOT) and (not anchor or anchor in anchors(target))):
            broken.append(link)
    assert broken == []


def test_the_documents_are_found() -> None:
    """Including those that others link to."""
    names = {path.relative_to(ROOT).as_posix() for path in DOCUMENTS}
    assert names > {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/guarantees.md", "docs/storage-format.md"}
