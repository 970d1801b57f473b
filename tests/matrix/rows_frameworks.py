"""The rows of frameworks and tools that bring their own client."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fetching import PROGRAMS, build, fetch, once, sources
from rows import Row


def _maven_program(folder: str, main: str, directory: Path) -> Sequence[str]:
    """Fetch the dependencies of the program's `pom.xml`, compile it with the shared sources, and return its command."""
    pom = PROGRAMS / folder / "pom.xml"

    def fill(target: Path) -> None:
        goal = ("dependency:copy-dependencies", f"-DoutputDirectory={target}", "-DincludeScope=runtime")
        fetch("mvn", "-q", "-B", "-ntp", "-f", pom, *goal)

    library = once(directory, "jars", [pom], fill)
    files = (*sources("frameworks", ".java"), *sources(folder, ".java"))

    def compile_all(target: Path) -> None:
        build("javac", "-nowarn", "-proc:none", "-cp", f"{library}/*", "-d", target, *files)

    classes = once(directory, "classes", [pom, *files], compile_all)
    options = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Duser.home=.")
    return ["java", *options, "-cp", f"{classes}:{library}/*", main]


def _spring_row(client: str, version: str, folder: str, main: str, *more: str) -> Row:
    checks = ("send", "async", "tags", "sql", "order", "delay", "transaction", "retry", *more)
    topics = dict.fromkeys(("async", *more), "NORMAL")
    return Row(client, version, checks, partial(_maven_program, folder, f"matrix.{main}"), topics=topics)


ROWS: tuple[Row, ...] = (
    _spring_row(
        *("rocketmq-spring-boot-starter", "2.3.5", "spring-boot", "SpringBoot"),
        *("oneway", "batch", "request", "pull"),
    ),
    _spring_row("rocketmq-v5-client-spring-boot-starter", "2.3.1", "spring-v5", "SpringV5", "simple"),
    _spring_row("spring-cloud-stream-rocketmq", "2023.0.3.3", "spring-stream", "SpringStream", "oneway", "broadcast"),
    Row(
        *("camel-rocketmq", "4.17.0", ("send", "async", "tags", "sql", "request")),
        partial(_maven_program, "camel", "matrix.Camel"),
        topics=dict.fromkeys(("async", "request", "reply"), "NORMAL"),
    ),
)
