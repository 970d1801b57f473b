"""A standalone cluster with two workers that have PySpark but not ferromq, which `--archives` ships."""

import json
import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset as ds
import pytest
from cluster import cluster, python_without_ferromq, submit

import ferromq
from ferromq import spark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PROGRAM = '''
"""Where each row was read, and by which ferromq: through the broker, and from the files of its log; then pipelines."""
import json, sys
from pyspark import TaskContext
from pyspark.sql import SparkSession
from ferromq.cli import main as cli

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
for words in json.loads(sys.argv[2]):
    found[words[0]] = cli.main(["pipeline", *words, "--json"])  # prints a line
print(json.dumps(found))
session.stop()
'''
SENT = [f"message {number}" for number in range(2_000)]


class Cluster(NamedTuple):
    """A cluster with two workers, and the files that its programs need."""

    address: str
    python: Path
    archive: Path

    def run(self, program: Path, *words: str) -> list[Any]:
        """Run a program that succeeds, and return the JSON of each line it printed."""
        done = submit(self.address, self.python, self.archive, program, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run the cluster."""
    directory = tmp_path_factory.mktemp("cluster")
    python = python_without_ferromq(directory)
    archive = spark.pack(directory / "ferromq.zip")
    with cluster(directory) as address:
        yield Cluster(address, python, archive)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the store."""
    return tmp_path_factory.mktemp("shared") / "store"


@pytest.fixture(scope="module")
def mq(store: Path) -> Iterator[ferromq.Embedded]:
    """Serve the topic, in a log of several files."""
    with ferromq.embedded(store, flush="group", commit_log_file_size=128 << 10) as mq:
        with mq.producer() as producer:
            producer.send_all("shipped", (ferromq.Message(text.encode(), tag=text[-1]) for text in SENT))
        yield mq


@pytest.fixture(scope="module")
def said(workers: Cluster, mq: ferromq.Embedded, store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the program's output: summaries of pipelines, then the executors that read rows."""
    program = tmp_path_factory.mktemp("job") / "job.py"
    program.write_text(PROGRAM)
    sources = {
        "ferromq": {"endpoint": mq.endpoint, "topic": "shipped"},
        "ferromq-log": {"path": str(store), "topic": "shipped"},
    }
    pipelines = [
        ["archive", str(store), str(store.parent / "archive")],
        ["audit", str(store)],
        ["stats", "--endpoint", mq.endpoint, "--topic", "shipped"],
    ]
    return workers.run(program, json.dumps(sources), json.dumps(pipelines))


def test_two_workers_read_with_the_ferromq_that_was_shipped(said: list[Any]) -> None:
    """Every row is read once, by both workers, with ferromq from the archive only."""
    found = said[-1]
    for name in ("ferromq", "ferromq-log"):
        assert Counter(body for body, _, _ in found[name]) == Counter(SENT), name
        assert all(shipped for _, _, shipped in found[name]), name
    assert len({executor for _, executor, _ in found["ferromq"]}) == 2


def test_pipelines_run_in_a_programs_session_on_the_cluster(said: list[Any], store: Path) -> None:
    """`archive` archives every log file, `audit` finds the store sound, `stats` counts, with exit code 0."""
    archive, audit, stats, found = said
    assert [found[name] for name in ("archive", "audit", "stats")] == [0, 0, 0]
    assert archive["log_files"] == archive["of_them_new"] > 2
    assert archived(store.parent / "archive") == Counter(SENT)
    assert (audit["findings"], audit["records"] >= len(SENT)) == (0, True)
    assert stats["messages"] == len(SENT)
    assert {(row["tag"], row["messages"]) for row in stats["by_tag"]} == {(str(digit), 200) for digit in range(10)}


@pytest.mark.skipif(not os.environ.get("FERROMQ_CLUSTER_FILES"), reason="FERROMQ_CLUSTER_FILES asks for it")
def test_a_pipelines_file_is_a_program_for_spark_submit(workers: Cluster, mq: ferromq.Embedded, store: Path) -> None:
    """`archive` archives every log file in a shared directory, with each message once."""
    out = store.parent / "by-file"
    unpacked = workers.archive.with_suffix("")
    (summary,) = workers.run(unpacked / "ferromq" / "pipeline" / "archive.py", str(store), str(out), "--json")
    assert summary["log_files"] == summary["of_them_new"] > 2
    assert archived(out) == Counter(SENT)


def archived(out: Path) -> Counter[str]:
    """Return the topic's bodies in an archive."""
    bodies = ds.dataset(str(out), partitioning="hive").to_table(filter=ds.field("topic") == "shipped")["body"]
    return Counter(bytes(body).decode() for body in bodies.to_pylist())


def test_the_archive_has_ferromq_and_what_it_needs(tmp_path: Path) -> None:
    """The zip file is self-contained; a name that Spark would not unpack is rejected."""
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
