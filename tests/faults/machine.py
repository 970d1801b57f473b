"""How much later than on an idle machine things may happen on this one now."""

import os
from pathlib import Path

_MOST = 4.0


def in_load(seconds: float) -> float:
    """
    Return the time that *seconds* on an idle machine become where other programs want the processors, too.

    For limits that are promises: they hold in full on an idle machine, and a program that gets a third of a processor
    is three times as late without a fault of its own. A limit grows to four times as much at most: more would find no
    fault. Tests of shorter promises are marked `alone`. Ask for it after what is measured.
    """
    lately = os.getloadavg()[0]
    try:
        now = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except FileNotFoundError:
        now = 0
    return seconds * min(_MOST, max(1.0, 2 * max(lately, now) / (os.cpu_count() or 1)))
