"""A standalone cluster with two workers that have PySpark and no ferromq: it is shipped with `--archives`."""

import json
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from cluster import cluster, python_without_ferromq, submit

import ferromq
from ferromq import spark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PROGRAM = '''
"""Where each row was read, and by which ferromq: through the broker, and from the files of its log."""
import json, sys
from pyspark import TaskContext
from pyspark.sql import SparkSession

def place(batches):
    import os, ferromq, pyarrow
    from pyspark import SparkFiles
    for batch in batches:
        shipped = os.path.realpath(ferromq.__file__).startswith(os.path.realpath(SparkFiles.getRootDirectory()))
        rows = [(bytes(body), os.getcwd(), shipped) for body in batch.column("body").to_pylist()]
        yield pyarrow.RecordBatch.from_pylist([dict(zip(("body", "executor", "shipped"), row)) for row in rows])

session = SparkSession.builder.getOrCreate()
found = {}
for name, options in json.loads(sys.argv[1]).items():
    frame = session.read.format(name).options(**options).load().select("body")
    rows = frame.mapInArrow(place, "body binary, executor string, shipped boolean").collect()
    found[name] = [(bytes(row.body).decode(), row.executor, row.shipped) for row in rows]
print(json.dumps(found))
session.stop()
'''


def test_two_workers_read_with_the_ferromq_that_was_shipped(tmp_path: Path) -> None:
    """Every row comes once, both workers read, and none has ferromq but from the archive."""
    archive = spark.pack(tmp_path / "ferromq.zip")
    program = tmp_path / "job.py"
    program.write_text(PROGRAM)
    sent = [f"message {number}" for number in range(2_000)]
    python = python_without_ferromq(tmp_path)
    with ferromq.embedded(tmp_path / "store", flush="group") as mq, cluster(tmp_path) as address:
        with mq.producer() as producer:
            producer.send_all("shipped", (ferromq.Message(text.encode()) for text in sent))
        sources = {
            "ferromq": {"endpoint": mq.endpoint, "topic": "shipped"},
            "ferromq-log": {"path": str(tmp_path / "store"), "topic": "shipped"},
        }
        done = submit(address, python, archive, program, json.dumps(sources))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name in sources:
        assert Counter(body for body, _, _ in found[name]) == Counter(sent), name
        assert all(shipped for _, _, shipped in found[name]), name
    assert len({executor for _, executor, _ in found["ferromq"]}) == 2


def test_the_archive_has_ferromq_and_what_it_needs(tmp_path: Path) -> None:
    """One zip file that stands on its own; a name that Spark would not unpack is refused."""
    path = spark.pack(tmp_path / "ferromq.zip")
    names = zipfile.ZipFile(path).namelist()
    for module in (
        "ferromq/_ferromq.abi3.so",
        "pyspark_ferromq/__init__.py",
        "grpc/__init__.py",
        "google/protobuf/__init__.py",
    ):
        assert module in names, module
    assert not [name for name in names if "__pycache__" in name]
    with pytest.raises(FileExistsError):
        spark.pack(path)
    with pytest.raises(ValueError, match=r"ends in \.zip"):
        spark.pack(tmp_path / "ferromq.whl")
