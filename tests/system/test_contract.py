"""The list of the contract is the files whose tests run on each way to a broker."""

from pathlib import Path

from contract import FILES


def test_the_list_names_the_files_that_run_on_each_way() -> None:
    """A file that leaves the contract, or joins it, changes the list."""
    found = {path.name for path in Path(__file__).parent.glob("test_*.py") if "import EACH_WAY" in path.read_text()}
    assert found - {Path(__file__).name} == set(FILES.values())
