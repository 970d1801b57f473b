"""`spark.read.format("ferromq-log")` in a session: found, planned, filtered."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException

STORE = Path(__file__).parents[1] / "fixtures" / "store" / "stopped"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
HEADS = "topic,queue_id,queue_offset,physical_offset,message_id,keys,tag,properties,store_timestamp,sys_flag"


def load(session: Any, **options: str) -> Any:
    """Return a fixture's messages as a DataFrame; without bodies."""
    return session.read.format("ferromq-log").options(columns=HEADS, **options).load(str(STORE))


def test_filters_reach_the_files_and_leave_the_same_rows(session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark shows the pushed filters, and filters nothing itself."""
    tag = load(session).where("tag IS NOT NULL").first().tag
    condition = f"topic = 'bulk' AND queue_id IN (1, 7) AND queue_offset > 2 AND tag = '{tag}'"
    pushed = load(session).where(condition)
    pushed.explain("formatted")
    said = capsys.readouterr().out
    assert "EqualTo(topic,bulk)" in said
    assert "Filter (" not in said
    rows = pushed.orderBy("physical_offset").collect()
    assert 0 < len(rows) < load(session).count()
    session.conf.set(PUSHDOWN, "false")
    try:
        unpushed = load(session).where(condition)
        unpushed.explain("formatted")
        assert "Filter (" in capsys.readouterr().out
        assert unpushed.orderBy("physical_offset").collect() == rows
    finally:
        session.conf.set(PUSHDOWN, "true")


def test_wrong_options_and_damage_reach_the_user(session: Any, tmp_path: Path) -> None:
    """Spark's errors have the option, its value and the allowed values; for damage, the file."""
    with pytest.raises(AnalysisException, match="option 'onCorrupt' is 'skp'; did you mean 'skip'"):
        load(session, onCorrupt="skp")
    with pytest.raises(AnalysisException, match="option 'path' is '/nowhere', but it does not exist"):
        session.read.format("ferromq-log").load("/nowhere").count()
    damaged = tmp_path / f"{0:020}"
    content = bytearray((STORE / "commitlog" / damaged.name).read_bytes())
    content[90] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(PythonException, match="CorruptStore"):
        session.read.format("ferromq-log").load(str(damaged)).select("body").collect()
