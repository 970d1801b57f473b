"""Time limits for a busy machine."""

import os
from pathlib import Path

_MOST = 4.0


def in_load(seconds: float) -> float:
    """
    Return how long *seconds* of an idle machine take under the current load.

    For limits that are promises: they hold on an idle machine, but a program that gets a third of a processor is three
    times as late without a fault of its own. A limit grows at most fourfold, so that it still finds faults. Tests of
    shorter promises are marked `alone`. Call it after the measured action.
    """
    lately = os.getloadavg()[0]
    try:
        now = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except FileNotFoundError:
        now = 0
    return seconds * min(_MOST, max(1.0, 2 * max(lately, now) / (os.cpu_count() or 1)))
