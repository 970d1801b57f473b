"""
Writes to our store until it is killed.

Usage: writer.py DIRECTORY OPTIONS COUNT ROUNDS. Prints one line of JSON a round; its messages are durable as far as the
flush policy promises; then waits to be killed. A round goes on when a line comes on standard input.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from compat_messages import open_ours, rounds_of, store_ours


def main() -> None:
    """Write, say where, and wait."""
    directory, options, count, rounds = sys.argv[1:]
    given = json.loads(options)
    store = open_ours(Path(directory), given)
    for messages in rounds_of(int(count), int(rounds)):
        placed = store_ours(store, messages, given)
        sys.stdout.write(json.dumps([(one.queue_offset, one.physical_offset) for one in placed]) + "\n")
        sys.stdout.flush()
        sys.stdin.readline()


if __name__ == "__main__":
    main()
