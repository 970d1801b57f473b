"""
ferromq as one archive that Spark brings to its workers, where nothing but PySpark is installed.

A wheel is a zip file, but Python does not load an extension module out of one: `--py-files` alone is not enough.
`--archives` unpacks on each worker; see `pack`.
"""

import importlib
import importlib.metadata
import zipfile
from collections.abc import Iterator
from pathlib import Path

MODULES = ("ferromq", "pyspark_ferromq", "pyspark_ferromq_log")
"""The import packages of ferromq itself."""
DEPENDENCIES = ("grpcio", "protobuf", "typing_extensions")
"""The distributions it needs beside PySpark, pyarrow and pandas, which every Spark with Arrow has."""
COMPILED = {"__pycache__"}


def pack(path: str | Path) -> Path:
    """
    Write the installed ferromq, with what it depends on, to the zip file *path*, and return the path.

    For a cluster whose workers do not have ferromq::

        spark-submit --archives ferromq.zip#ferromq --conf spark.executorEnv.PYTHONPATH=ferromq job.py

    The driver needs ferromq, too: installed, or the archive unpacked in its PYTHONPATH. The workers need the same
    operating system and processor as this machine, PySpark, pyarrow and pandas. Raises FileExistsError where *path* is
    there, and ValueError where it does not end in `.zip`, by which Spark knows it.
    """
    path = Path(path)
    if path.suffix != ".zip":
        raise ValueError(f"the archive is {str(path)!r}; allowed: a name that ends in .zip, by which Spark knows it")
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
        for source, name in sorted(_files(), key=lambda file: file[1]):
            archive.write(source, name)
    return path


def _files() -> Iterator[tuple[Path, str]]:
    """Yield each file, and its name below a folder of PYTHONPATH."""
    for module in MODULES:
        folder = Path(str(importlib.import_module(module).__file__)).parent
        for file in folder.rglob("*"):
            if file.is_file() and not COMPILED & set(file.parts):
                yield file, f"{module}/{file.relative_to(folder).as_posix()}"
    for distribution in DEPENDENCIES:
        for packed in importlib.metadata.files(distribution) or ():
            file = Path(str(packed.locate()))
            if ".." not in packed.parts and not COMPILED & set(packed.parts) and file.is_file():
                yield file, packed.as_posix()
