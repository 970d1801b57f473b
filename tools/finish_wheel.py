"""
Make a built wheel fit for release: `python tools/finish_wheel.py [--symbols DIRECTORY] WHEEL ...`, in place.

The compiled module is stripped. Its symbols go to DIRECTORY/NAME-OF-THE-WHEEL.debug; gdb, perf and Rust's backtraces
find that file beside the installed module, or below /usr/lib/debug. In the description, links to files of the
repository become plain text, because they lead nowhere on a package index.
"""

import argparse
import base64
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LARGEST = 8_000_000
"""Bytes of a finished wheel."""
RELATIVE_IMAGE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)")
RELATIVE_LINK = re.compile(r"\[([^\[\]]+)\]\((?!https?:|mailto:|#)[^)]*\)")


def plain_links(text: str) -> str:
    """Return Markdown without its relative images, and with the bare text of its relative links."""
    parts = text.split("```")
    parts[::2] = [RELATIVE_LINK.sub(r"\1", RELATIVE_IMAGE.sub("", part)) for part in parts[::2]]
    return "```".join(parts)


def objcopy(*arguments: str | Path) -> None:
    """Run the objcopy that comes with Rust, which knows every processor; without it the system's."""
    ask = ["rustc", "--print", "sysroot"]
    sysroot = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    command = next(map(str, sysroot.glob("lib/rustlib/*/bin/rust-objcopy")), "objcopy")
    subprocess.run([command, *arguments], check=True, env={**os.environ, "LD_LIBRARY_PATH": str(sysroot / "lib")})


def strip(module: bytes, symbols: Path) -> bytes:
    """Return *module* without its symbols, and write them to *symbols*, which the module then names."""
    symbols.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "module.so")
        path.write_bytes(module)
        objcopy("--only-keep-debug", "--compress-debug-sections=zlib", path, symbols)
        objcopy("--strip-all", f"--add-gnu-debuglink={symbols}", path)
        symbols.chmod(0o644)
        return path.read_bytes()


def record(files: dict[zipfile.ZipInfo, bytes], name: str) -> bytes:
    """Return the RECORD of *files*: name, hash and size of each."""
    lines = []
    for info, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{info.filename},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{name},,\n"]).encode()


def finish(wheel: Path, symbols: Path) -> None:
    """Replace *wheel* by its finished form."""
    with zipfile.ZipFile(wheel) as archive:
        files = {info: archive.read(info) for info in archive.infolist()}
    for info, data in files.items():
        if info.filename.endswith(".so"):
            files[info] = strip(data, symbols / f"{wheel.stem}.debug")
        elif info.filename.endswith(".dist-info/METADATA"):
            files[info] = plain_links(data.decode()).encode()
    listing = next(info for info in files if info.filename.endswith(".dist-info/RECORD"))
    del files[listing]
    files[listing] = record(files, listing.filename)
    finished = wheel.with_suffix(".new")
    with zipfile.ZipFile(finished, "w") as archive:
        for info, data in files.items():
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, 9)
    finished.replace(wheel)


def main() -> int:
    """Finish the wheels of the command line, and print their sizes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().partition("\n")[0])
    parser.add_argument(
        "--symbols", type=Path, metavar="DIRECTORY", help="where the symbols go (symbols, beside the wheel)"
    )
    parser.add_argument("wheels", type=Path, nargs="+", metavar="WHEEL")
    options = parser.parse_args()
    for wheel in options.wheels:
        finish(wheel, options.symbols or wheel.parent / "symbols")
        size = wheel.stat().st_size
        sys.stdout.write(f"{wheel}  {size / 1e6:.1f} MB\n")
        if size > LARGEST:
            sys.stderr.write(f"{wheel} is larger than {LARGEST / 1e6:.0f} MB, the most of a wheel: see what it holds\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
