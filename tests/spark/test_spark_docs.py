"""docs/spark.md documents every option and column."""

import re
from pathlib import Path

import pytest

from ferromq.spark import options
from ferromq.spark.log import options as log_options
from ferromq.spark.schema import SCHEMA
from ferromq.spark.write import options as write_options
from ferromq.spark.write import rows as write_rows

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def table_after(heading: str) -> set[str]:
    """Return the code words in the first cells of a section's tables."""
    section = PAGE.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, (?:or )?)?)+) \|", section, re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("Batch read through brokers", options.OPTIONS),
        ("Batch read of commit-log files", [name for name in log_options.OPTIONS if name != "paths"]),
        ("Stream read", [*options.STREAM_OPTIONS, "startingOffsets", "startingTimestamp"]),
        ("Write", [*write_options.OPTIONS, *write_rows.COLUMNS]),
        ("Columns", SCHEMA.fieldNames()),
    ],
)
def test_every_option_and_column_is_in_a_table(heading: str, names: list[str]) -> None:
    """The tables have no other names."""
    assert table_after(heading) == set(names)
