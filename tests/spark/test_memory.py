"""A reader holds a few batches in memory, however large the topic is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ferromq

pytestmark = pytest.mark.timeout(300)

COUNT, SIZE, ALLOWED = 64_000, 4096, 125_000_000
READ = """
import json, sys
from pyspark.sql.datasource import CaseInsensitiveDict
from ferromq.spark.log.source import FerromqLogSource
from ferromq.spark.source import FerromqSource

def anonymous():
    # The operating system reclaims pages of mapped files, so they do not count.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

options = CaseInsensitiveDict(json.loads(sys.argv[1]))
source = FerromqLogSource(options) if "path" in options else FerromqSource(options)
reader = source.reader(source.schema())
rows = read = 0
first = most = anonymous()
for partition in reader.partitions():
    for batch in reader.read(partition):
        rows, read = rows + batch.num_rows, read + batch.nbytes
        most = max(most, anonymous())
print(rows, read, most - first)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store whose topic has 250 MiB in one queue."""
    directory = tmp_path_factory.mktemp("memory")
    with ferromq.embedded(directory) as mq:
        with mq.admin() as admin:
            admin.create_topic("big", 1)
        with mq.producer() as producer:
            producer.send_all("big", (number.to_bytes(4) * (SIZE // 4) for number in range(COUNT)))
    return directory


@pytest.mark.parametrize("way", ["endpoint", "namesrv", "path"])
def test_a_reader_holds_batches_not_the_topic(store: Path, way: str) -> None:
    """Reading a topic adds less than half its size to memory, over either protocol and from the files."""
    with ferromq.embedded(store) as mq:
        where = {"endpoint": mq.endpoint, "namesrv": mq.namesrv, "path": str(store)}[way]
        options = json.dumps({way: where, "topic": "big"})
        done = subprocess.run([sys.executable, "-c", READ, options], check=True, stdout=subprocess.PIPE, text=True)
    rows, read, grown = map(int, done.stdout.split())
    assert (rows, read >= COUNT * SIZE) == (COUNT, True)
    assert grown < ALLOWED
