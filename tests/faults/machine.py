"""How much later than on an idle machine things may happen on this one now."""

import os
from pathlib import Path


def in_load(seconds: float) -> float:
    """
    Return the time that *seconds* on an idle machine become where other programs want the processors, too.

    For limits that are promises: they hold in full on an idle machine, and a program that gets a fifth of a processor
    is five times as late without a fault of its own. Ask for it after what is measured.
    """
    lately = os.getloadavg()[0]
    try:
        now = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except FileNotFoundError:
        now = 0
    return seconds * max(1.0, 2 * max(lately, now) / (os.cpu_count() or 1))
