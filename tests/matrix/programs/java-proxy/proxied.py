"""
Runs a command with RocketMQ's own proxy between it and the side it is tried against.

The arguments are the command. It finds the proxy's gRPC listener in MATRIX_ENDPOINT, and its remoting listener, which
answers routes as a name server does, in MATRIX_NAMESRV.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "compat"))

from java_processes import JavaProxy


def main() -> int:
    """Run the command; return what it returns."""
    with JavaProxy(Path.cwd() / "proxy", os.environ["MATRIX_NAMESRV"]) as proxy:
        host, _, port = proxy.address.rpartition(":")
        listeners = {"MATRIX_ENDPOINT": proxy.address, "MATRIX_NAMESRV": f"{host}:{int(port) + 1}"}
        return subprocess.run(sys.argv[1:], env={**os.environ, **listeners}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
