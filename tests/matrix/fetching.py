"""How clients are fetched and programs compiled, each once, into `.cache/matrix`."""

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rows import BuildError, CannotFetchError

ROOT: Final = Path(__file__).parents[2]
CACHE: Final = ROOT / ".cache" / "matrix"
PROGRAMS: Final = Path(__file__).parent / "programs"
_BUILD_LIMIT_S: Final = 1_200.0
SHORT_LIMIT_S: Final = 120.0
"""A limit for runs that skip clients that cannot be fetched soon."""
_OURS_IS_WRONG: Final = re.compile(
    r"Malformed POM|Non-parseable POM|'dependencies\.dependency\.\w+'|Could not find artifact|does not contain package"
    r"|--locked was passed|are in sync"
)
"""Errors of Maven, Go, Cargo and npm that are caused by our input."""
limit_s = 1_200.0
"""How long each command that fetches may take."""


def fetch(*words: object, cwd: Path | None = None) -> None:
    """Run a command that needs the network. Raises `CannotFetchError`, or `BuildError` if our input is wrong."""
    said = _said(words, cwd, limit_s, CannotFetchError)
    if said is not None:
        error = BuildError if _OURS_IS_WRONG.search(said) else CannotFetchError
        raise error(_failed(words, said))


def build(*words: object, cwd: Path | None = None) -> None:
    """Run a command without the network. Raises `BuildError`; `CannotFetchError` if there is no such command."""
    said = _said(words, cwd, _BUILD_LIMIT_S, BuildError)
    if said is not None:
        raise BuildError(_failed(words, said))


def _failed(words: Sequence[object], said: str) -> str:
    return f"`{' '.join(map(str, words[:4]))}` failed: {' '.join(said.split())[-500:]}"


def _said(words: Sequence[object], cwd: Path | None, limit: float, too_long: type[Exception]) -> str | None:
    """Run a command; return its output if it fails."""
    command = [str(word) for word in words]
    if shutil.which(command[0]) is None:
        raise CannotFetchError(f"no {command[0]} on the PATH")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
            timeout=limit,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise too_long(f"`{' '.join(command[:4])}` took more than {limit:.0f} s") from error
    return done.stdout + done.stderr if done.returncode else None


def sources(folder: str, *endings: str) -> list[Path]:
    """Return the files of a program with these endings, including subfolders."""
    return sorted(path for path in (PROGRAMS / folder).rglob("*") if path.is_file() and path.name.endswith(endings))


def once(directory: Path, name: str, given: Iterable[str | Path], make: Callable[[Path], None]) -> Path:
    """
    Return the folder *name* in *directory*, which *make* fills; anew if *given* has changed.

    Parallel runs wait for each other.
    """
    digest = hashlib.sha256()
    for each in given:
        digest.update(each.read_bytes() if isinstance(each, Path) else each.encode())
        digest.update(b"\0")
    folder, stamp = directory / name, directory / f"{name}.stamp"
    with _locked(directory / f"{name}.lock"):
        if not folder.is_dir() or not stamp.is_file() or stamp.read_text() != digest.hexdigest():
            stamp.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            make(folder)
            stamp.write_text(digest.hexdigest())
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ferromq</groupId><artifactId>matrix</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def jars(directory: Path, *coordinates: str) -> Path:
    """Fetch `GROUP:ARTIFACT:VERSION` and their dependencies from Maven; return the folder of the jars."""
    pom = _POM.format("".join(_DEPENDENCY.format(*each.split(":")) for each in coordinates))

    def fill(folder: Path) -> None:
        (folder / "pom.xml").write_text(pom)
        goal = ("dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime")
        fetch("mvn", "-q", "-B", "-ntp", "-f", folder / "pom.xml", *goal)

    return once(directory, "jars", [pom], fill)


def java_program(directory: Path, files: Sequence[Path], main: str, *coordinates: str) -> list[str]:
    """Fetch jars, compile a Java program against them, and return the command that runs it."""
    library = jars(directory, *coordinates)

    def compile_all(folder: Path) -> None:
        build("javac", "-nowarn", "-proc:none", "-cp", f"{library}/*", "-d", folder, *files)

    classes = once(directory, "classes", [*coordinates, *files], compile_all)
    # The clients write their logs below the home directory, which is the run's own.
    options = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Duser.home=.")
    return ["java", *options, "-cp", f"{classes}:{library}/*", main]


def venv(directory: Path, *requirements: str) -> Path:
    """Make a virtual environment with *requirements*; return its Python."""

    def fill(folder: Path) -> None:
        build(sys.executable, "-m", "venv", folder)
        fetch(folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)

    return once(directory, "venv", [sys.version, *requirements], fill) / "bin" / "python"


def copied(directory: Path, name: str, files: Iterable[Path], finish: Callable[[Path], None], *given: str) -> Path:
    """Copy *files* flat into the folder *name*, and finish there; once for each version of them and of *given*."""
    files = list(files)

    def make(folder: Path) -> None:
        for file in files:
            shutil.copy(file, folder)
        finish(folder)

    return once(directory, name, [*files, *given], make)


def go_program(directory: Path, files: Sequence[Path], module: str, *, tags: str = "") -> list[str]:
    """Build a Go program against *module* (`PATH@VERSION`), whose own file of versions pins the rest."""

    def finish(folder: Path) -> None:
        build("go", "mod", "init", "matrix", cwd=folder)
        fetch("go", "get", module, cwd=folder)
        fetch("go", "mod", "tidy", cwd=folder)
        build("go", "build", "-tags", tags, "-o", "program", ".", cwd=folder)

    return [str(copied(directory, "go", files, finish, module, tags) / "program")]


def rust_program(directory: Path, files: Sequence[Path]) -> list[str]:
    """Build a Rust program, whose `Cargo.lock` pins its dependencies."""
    target = directory / "target"

    def finish(folder: Path) -> None:
        fetch("cargo", "fetch", "--quiet", "--locked", cwd=folder)
        build("cargo", "build", "--quiet", "--locked", "--offline", "--target-dir", target, cwd=folder)

    copied(directory, "rust", files, finish)
    return [str(target / "debug" / "matrix")]
