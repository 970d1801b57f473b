"""The alert rules and the dashboard in `deploy`: they name metrics that there are, and promtool takes them."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "ferromq.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "ferromq.json"
PROMTOOL = ROOT / ".cache" / "promtool"
NAME = re.compile(r"\b(?:ferromq|rocketmq)_[a-z_]+")
METRIC = re.compile(r"^\| `(\w+)` \| (\w+) \|", re.MULTILINE)


def known() -> set[str]:
    """Return the names of all samples, from the page; a system test compares it with the servers."""
    names = set[str]()
    for name, kind in METRIC.findall((ROOT / "docs" / "metrics.md").read_text()):
        names |= {f"{name}_{end}" for end in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return names


def test_rules_and_panels_read_metrics_that_there_are() -> None:
    """A renamed metric would silence an alert without a word."""
    expressions = re.findall(r"expr: (?!up\b)((?:>-\n(?: {10}.*\n)+)|.*)", RULES.read_text())
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions += [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > 15
    for expression in expressions:
        found = set(NAME.findall(expression))
        assert found
        assert found <= known(), expression


@pytest.mark.skipif(not PROMTOOL.exists(), reason="`make rules` fetches promtool")
@pytest.mark.parametrize("words", [("check", RULES), ("test", RULES.with_name("ferromq.rules.test.yml"))])
def test_promtool_takes_the_rules(words: tuple[str, Path]) -> None:
    """Their syntax, and what they do with given series."""
    what, file = words
    subprocess.run([PROMTOOL, what, "rules", file], check=True, timeout=60, capture_output=True)
