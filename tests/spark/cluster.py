"""Starts a standalone Spark cluster on this machine from the PySpark package: a master and workers."""

import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
PATIENCE = 120.0
"""Seconds that a process may take to say that it is there."""


class Process:
    """A process of the cluster; a thread reads its output, so that it never blocks on a full pipe."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self._name, self.lines = name, list[str]()
        self._grown = threading.Condition()
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._grown:
                self.lines.append(line.rstrip("\n"))
                self._grown.notify_all()

    def said(self, words: str) -> str:
        """Wait for a line with *words* and return the rest of it."""
        with self._grown:
            found = self._grown.wait_for(lambda: [line for line in self.lines if words in line], PATIENCE)
            assert found, f"the {self._name} did not say {words!r}:\n" + "\n".join(self.lines[-20:])
            return found[0].split(words, 1)[1].strip()

    def stop(self) -> None:
        """Stop the process."""
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)


@contextmanager
def cluster(directory: Path, workers: int = 2) -> Iterator[str]:
    """Run a cluster of *workers* with one core each and files in *directory*; yields its `spark://` address."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK_"))
    }
    environment |= {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "256m"}
    environment |= {"SPARK_DAEMON_JAVA_OPTS": _JAVA}
    start = [str(HOME / "bin" / "spark-class")]
    with ExitStack() as stack:
        master = Process(
            "master",
            [
                *start,
                "org.apache.spark.deploy.master.Master",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--webui-port",
                "0",
            ],
            environment,
        )
        stack.callback(master.stop)
        address = master.said("Starting Spark master at ")
        master.said("I have been elected leader")
        running = []
        for number in range(workers):
            words = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            place = ["--work-dir", str(directory / f"worker-{number}"), address]
            running.append(
                Process(
                    f"worker {number}", [*start, "org.apache.spark.deploy.worker.Worker", *words, *place], environment
                )
            )
            stack.callback(running[-1].stop)
        for worker in running:
            worker.said("Successfully registered with master")
        yield address


def python_without_ferromq(directory: Path) -> Path:
    """
    Return a Python that has all packages of this one, PySpark too, and not ferromq: that one has to be shipped.

    Its packages are links in *directory*; it never looks into the folder of the packages itself.
    """
    packages = directory / "packages"
    packages.mkdir()
    hidden = ("ferromq", "pyspark_ferromq", "grpc", "google", "__pycache__")
    for entry in HOME.parent.iterdir():
        if not entry.name.startswith(hidden):
            (packages / entry.name).symlink_to(entry)
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return script


def submit(address: str, python: Path, archive: Path, program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """
    Run *program* with `spark-submit`, ferromq shipped in *archive* to workers that start Python as *python*.

    The driver has the archive unpacked in its PYTHONPATH: what plans a read is a Python started as those of workers.
    """
    unpacked = archive.with_suffix("")
    zipfile.ZipFile(archive).extractall(unpacked)
    settings = {
        "spark.executorEnv.PYTHONPATH": "ferromq",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": _JAVA,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        # Tasks wait for both workers.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    command = [str(HOME / "bin" / "spark-submit"), "--master", address, "--archives", f"{archive}#ferromq"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = os.environ | {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(unpacked)}
    environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.run(
        [*command, str(program), *words], env=environment, capture_output=True, text=True, check=False, timeout=600
    )
