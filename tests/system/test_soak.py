"""A few seconds of `make soak`: it runs, and finds nothing."""

import random
from collections import Counter
from pathlib import Path

import pytest

SOAK = Path(__file__).parent.parent / "soak"


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_every_message_is_accounted_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some kills, every kind of message: nothing lost, early, out of order, or dead without a cause."""
    monkeypatch.syspath_prepend(str(SOAK))
    from soak import Soak  # noqa: PLC0415 (it lives beside, as a program)

    soak = Soak(tmp_path / "store", random.randrange(1 << 32), between_kills=(2, 4))
    print(f"seed={soak.seed}")  # noqa: T201 (shown when the test fails)
    assert soak.run(10) == []
    assert soak.ledger.kills > 0
    assert soak.ledger.counts["sent"] > 0


def test_a_last_delivery_is_not_the_end_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes a dead letter after its last lease; an earlier check would report it as lost."""
    monkeypatch.syspath_prepend(str(SOAK))
    from ledger import Entry, Fate, Ledger  # noqa: PLC0415

    ledger = Ledger(max_attempts=2)
    ledger.sending("p0-1", Entry("soak-plain", is_poison=True))
    ledger.decided("p0-1", Fate.SENT)
    for attempt in (1, 2):
        ledger.delivered("p0-1", attempt, now_ms=0)
        assert not ledger.is_finished()
    ledger.died("p0-1")
    assert ledger.is_finished()
    assert ledger.verdict(Counter({"p0-1": 1}), Counter()) == []
