"""
Measures how long a program waits for the imports of its clients, as new processes.

    python benches/imports.py [--rounds 20]
"""

import argparse
import statistics
import subprocess
import sys
import time

PROGRAMS = ("pass", "import ferromq", "from ferromq import Producer, Consumer", "from ferromq import Admin")


def milliseconds(program: str) -> float:
    """Return how long a new interpreter takes for a program."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return (time.perf_counter() - begun) * 1000


def main() -> None:
    """Print the median and the spread for each program, less an empty one's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="processes for each program (default: 20)")
    rounds = parser.parse_args().rounds
    taken: dict[str, list[float]] = {program: [] for program in PROGRAMS}
    for _ in range(rounds):
        for program, times in taken.items():
            times.append(milliseconds(program))
    empty = statistics.median(taken.pop("pass"))
    for program, times in taken.items():
        median, least, most = (each - empty for each in (statistics.median(times), min(times), max(times)))
        print(f"{program:42} {median:6.0f} ms ({least:.0f} to {most:.0f})")


if __name__ == "__main__":
    main()
