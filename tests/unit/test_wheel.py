"""The promises of a release: one version, no debug sections, no dead links, a complete source distribution."""

import re
import runpy
import struct
import subprocess
import sys
import tarfile
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

import ferromq
from ferromq import _ferromq

ROOT = Path(__file__).parents[2]
RELATIVE = re.compile(r"""(?:\]\(|(?:src|href)=")(?!https?:|mailto:|#)([^)"#]*)""")


def test_there_is_one_version() -> None:
    """Cargo.toml has it; the wheel's metadata, the compiled module, Python and the command line follow."""
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    shown = [
        subprocess.run([sys.executable, "-m", "ferromq", word], capture_output=True, text=True, check=True, timeout=300)
        for word in ("--version", "version")
    ]
    assert "version" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert Version(ferromq.__version__) == Version(metadata.version("ferromq")) == Version(cargo)
    assert [done.stdout for done in shown] == [f"ferromq {ferromq.__version__}\n"] * 2


def test_the_installed_module_holds_no_debug_sections() -> None:
    """They were four fifths of it; a release has them in a file apart."""
    module = Path(_ferromq.__file__)
    if ROOT in module.parents and ".venv" not in module.parts:
        pytest.skip("the module was built into the source tree")
    names = section_names(module.read_bytes())
    assert ".text" in names
    assert [name for name in names if name.startswith(".debug_") or name == ".symtab"] == []


def section_names(elf: bytes) -> list[str]:
    """Return the names of the sections of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, index = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + size * number) for number in range(count)]
    names = elf[headers[index][4] : headers[index][4] + headers[index][5]]
    return [names[start : names.index(b"\0", start)].decode() for start, *_ in headers]


def test_the_description_of_a_wheel_has_no_relative_links() -> None:
    """A package index shows it where the repository's files are not."""
    plain_links = runpy.run_path(str(ROOT / "tools" / "finish_wheel.py"))["plain_links"]
    text = "![a](docs/a.png)[Spark](docs/spark.md), [web](https://example.org)\n```python\nx[0](y)\n```\n[b](c)"
    assert plain_links(text) == "Spark, [web](https://example.org)\n```python\nx[0](y)\n```\nb"
    page = plain_links((ROOT / "README.md").read_text())
    assert RELATIVE.findall("".join(page.split("```")[::2])) == []


def test_the_source_distribution_has_what_it_is_built_from_and_what_the_readme_links_to(tmp_path: Path) -> None:
    """Its README is read beside the pages; tests and their fixtures stay in the repository."""
    maturin = Path(sys.executable).with_name("maturin")
    subprocess.run([maturin, "sdist", "--out", tmp_path], cwd=ROOT, capture_output=True, check=True, timeout=300)
    (path,) = tmp_path.iterdir()
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    linked = [link.rstrip("/") for link in RELATIVE.findall((ROOT / "README.md").read_text())]
    assert [link for link in linked if not any(name == link or name.startswith(f"{link}/") for name in names)] == []
    assert {"Cargo.lock", "LICENSE", "crates/ferromq-python/src/lib.rs", "python/ferromq/py.typed"} <= set(names)
    assert [name for name in names if "/tests/" in name or name.endswith((".so", ".pyc"))] == []
