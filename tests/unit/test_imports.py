"""What an import loads: a program does not wait for what it does not use. `benches/imports.py` measures the time."""

import subprocess
import sys

import pytest


def loaded(program: str) -> set[str]:
    """Return the modules that a program has loaded when it ends."""
    command = [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, timeout=50).stdout.split())


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        (
            "import ferromq",
            {"grpc", "google.protobuf", "asyncio", "ferromq.client.producer", "ferromq.broker.controller"},
        ),
        ("from ferromq import Producer, Consumer", {"ferromq.broker.controller", "ferromq.namesrv.server", "pyspark"}),
        ("from ferromq import Admin", {"ferromq.broker.controller", "ferromq.namesrv.server", "pyspark"}),
    ],
)
def test_an_import_loads_what_it_names(program: str, unwanted: set[str]) -> None:
    """Servers, Spark and, for the package alone, gRPC are left to their first use."""
    assert not unwanted & loaded(program)
