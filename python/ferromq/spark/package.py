"""
Packs ferromq into one archive for Spark workers that have only PySpark installed.

`--py-files` is not enough: Python cannot load an extension module from a zip file. `--archives` unpacks the archive on
each worker.
"""

import importlib
import importlib.metadata
import zipfile
from collections.abc import Iterator
from pathlib import Path

MODULES = ("ferromq", "pyspark_ferromq", "pyspark_ferromq_log")
"""The import packages of ferromq itself."""
DEPENDENCIES = ("grpcio", "protobuf", "typing_extensions")
"""The distributions it needs, except PySpark, pyarrow and pandas, which every Spark with Arrow has."""
COMPILED = {"__pycache__"}


def pack(path: str | Path) -> Path:
    """
    Write the installed ferromq and its dependencies to the zip file *path*, and return the path.

    Use it for a cluster whose workers do not have ferromq::

        spark-submit --archives ferromq.zip#ferromq --conf spark.executorEnv.PYTHONPATH=ferromq job.py

    The driver also needs ferromq: installed, or the archive unpacked in its PYTHONPATH. The workers need the operating
    system and processor of this machine, and PySpark, pyarrow and pandas. Raises FileExistsError if *path* exists, and
    ValueError if it does not end in `.zip`.
    """
    path = Path(path)
    if path.suffix != ".zip":
        raise ValueError(f"the archive is {str(path)!r}; allowed: a name that ends in .zip, which Spark requires")
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
        for source, name in sorted(_files(), key=lambda file: file[1]):
            archive.write(source, name)
    return path


def _files() -> Iterator[tuple[Path, str]]:
    """Yield each file, and its name inside the archive."""
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
