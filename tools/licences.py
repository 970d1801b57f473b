"""Checks that every crate we link has a licence that may be shipped with Apache-2.0; reads `cargo metadata`."""

import json
import re
import subprocess
import sys

ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}


def is_allowed(expression: str) -> bool:
    """Say whether one side of each OR, with all of its ANDs, is on the list (SPDX expressions without nesting)."""
    flat = re.sub(r"[()]", "", expression.replace("/", " OR "))
    return any(all(part.strip() in ALLOWED for part in side.split(" AND ")) for side in flat.split(" OR "))


def main() -> int:
    """Print each crate whose licence is not allowed; return 1 if there is one."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["packages"]
    refused = [p for p in packages if not is_allowed(p["license"] or "")]
    for package in refused:
        sys.stderr.write(f"{package['name']} {package['version']}: licence {package['license']!r} is not allowed\n")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
