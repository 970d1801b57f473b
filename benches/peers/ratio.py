"""Fold `name<TAB>value<TAB>unit` lines of two engines into medians and their ratio."""

import statistics
import sys
from collections import defaultdict


def main() -> None:
    """Read lines from stdin and print one row for each load both engines ran."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    units: dict[str, str] = {}
    for line in sys.stdin:
        name, value, unit = line.rstrip("\n").split("\t")
        engine, load = name.split(" ", 1)
        values[load][engine].append(float(value))
        units[load] = unit
    print(f"{'load':<55} {'ferromq':>12} {'java':>12} {'ratio':>7}")
    for load, engines in values.items():
        ours = statistics.median(engines["ferromq-store"]) if engines["ferromq-store"] else None
        theirs = statistics.median(engines["java-store"]) if engines["java-store"] else None
        ratio = f"{ours / theirs:.2f}" if ours and theirs else "-"
        cells = [f"{value:,.1f}" if value is not None else "-" for value in (ours, theirs)]
        print(f"{load + ' ' + units[load]:<55} {cells[0]:>12} {cells[1]:>12} {ratio:>7}")


if __name__ == "__main__":
    main()
