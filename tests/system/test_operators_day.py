"""The operator's day in `examples/operators_day.sh`, by ferromq's own commands and by the names of RocketMQ's tool."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "operators_day.sh"
TOLD = (
    "billing is 5 messages behind",
    "billing: is a dead letter; 2 deliveries; Expecting value",
    "6 messages would be read once more",
    'the user "clerk" may not Pub Topic:orders',
    "\nsound\n",
    "draining broker-a",
    "billing is 0 messages behind",
)
"""What the script prints, in this order."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("tool", ["ferromq", "mqadmin"])
def test_the_day_ends_well(tool: str, tmp_path: Path) -> None:
    """Each step succeeds but the clerk's send, and both brokers are there in the end."""
    program = Path(sys.executable).parent
    ended = subprocess.run(
        ["bash", SCRIPT, tmp_path / "day"],
        env={**os.environ, "PATH": f"{program}:{os.environ['PATH']}", "TOOL": tool},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    place = 0
    for words in TOLD:
        assert words in ended.stdout[place:], ended.stdout
        place = ended.stdout.index(words, place) + 1
    last = ended.stdout.rpartition("\n--- Billing bills the rest")[0].rpartition("cluster  ")[2]
    assert last.count("serving") == 2, ended.stdout
