"""The public names of `import ferromq` and `ferromq.aio`, and what importing them imports."""

import importlib.util
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ferromq
from ferromq import aio, errors, testing

PUBLIC = [
    "Admin",
    "BrokerConfig",
    "Clock",
    "Connection",
    "Consumer",
    "DeadLetter",
    "DecodedMessage",
    "Embedded",
    "ExpiredFile",
    "Message",
    "MessageTable",
    "MessageView",
    "NameServerConfig",
    "Producer",
    "Progress",
    "Pulled",
    "PulledTable",
    "Queue",
    "QueueProgress",
    "Reader",
    "Reply",
    "ResentLetter",
    "Resolution",
    "SendReceipt",
    "SendSummary",
    "Sql",
    "StoreConfig",
    "StoredMessage",
    "Tls",
    "Transaction",
    "connect",
    "embedded",
    "to_arrow",
    "to_pandas",
]
SERVERS = ("ferromq.broker", "ferromq.namesrv", "ferromq.embedding", "ferromq.cli", "ferromq.spark")
TESTING = [
    "Broker",
    "Faults",
    "Like",
    "VirtualClock",
    "ferromq_broker",
    "ferromq_clock",
    "ferromq_faults",
    "ferromq_session_broker",
]


def test_exactly_these_names_are_public() -> None:
    """A new one is a decision, a lost one breaks programs."""
    assert ferromq.__all__ == sorted([*PUBLIC, *errors.__all__])


def test_exactly_these_names_of_the_pytest_plugin_are_public() -> None:
    """The classes, for annotations, and the fixtures; each is documented."""
    assert testing.__all__ == TESTING
    for name in TESTING:
        assert inspect.getdoc(getattr(testing, name))
    with pytest.raises(AttributeError, match=r"module 'ferromq\.testing' has no attribute 'Clock'"):
        testing.Clock  # noqa: B018


def test_pytest_finds_the_plugin_under_the_name_of_its_module() -> None:
    """As `-p ferromq.testing` does; under another name it would be loaded twice, which pytest refuses."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {"pytest11": {"ferromq.testing": "ferromq.testing"}}


def test_every_public_name_is_there_and_documented() -> None:
    """`embedded` is the function, not the module of the same name."""
    for name in ferromq.__all__:
        assert inspect.getdoc(getattr(ferromq, name))
    assert inspect.isfunction(ferromq.embedded)


def test_exactly_these_names_of_asyncio_are_public() -> None:
    """Each is documented."""
    assert aio.__all__ == ["Admin", "Connection", "Consumer", "Producer", "Reader", "Transaction", "Workers", "connect"]
    assert all(inspect.getdoc(getattr(aio, name)) for name in aio.__all__)


def test_all_names_are_imported_by_a_star() -> None:
    """Though most of them are loaded on first use."""
    program = "from ferromq import *; import ferromq; print([n for n in ferromq.__all__ if n not in globals()])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("used", "kept_out"),
    [
        (
            "import ferromq",
            ("grpc", "google.protobuf", "asyncio", "html", "pytest", "ferromq.client", "ferromq.config", *SERVERS),
        ),
        ("import ferromq.spark.stream.reader", ("grpc", "google.protobuf", "ferromq.client", "ferromq.config")),
        ("from ferromq import Producer, Consumer", ("ferromq.aio", "ferromq.admin", "ferromq.config", *SERVERS)),
        ("from ferromq import connect", ("ferromq.aio", "ferromq.config", *SERVERS)),
        ("from ferromq import Admin; Admin('localhost:9876')", ("grpc", "asyncio", "ferromq.config", *SERVERS)),
    ],
)
def test_a_program_imports_only_what_it_uses(used: str, kept_out: tuple[str, ...]) -> None:
    """A Spark query starts several Python processes, and each imports the first ones before its first row."""
    if importlib.util.find_spec("pyspark") is None and "spark" in used:
        pytest.skip("no PySpark")
    program = f"{used}; import sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert set(kept_out) & set(found.stdout.split()) == set()


def test_all_names_are_imported_where_there_is_no_fork_and_no_fcntl() -> None:
    """As on Windows, for clients; a program that starts no broker there needs neither."""
    program = """
import os, sys
del os.fork, os.register_at_fork
sys.modules["fcntl"] = sys.modules["resource"] = None
from ferromq import *
from ferromq.aio import *
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.parametrize(
    ("used", "packages", "most"),
    [
        ("import ferromq", set(), 80),
        ("from ferromq import Producer, Consumer", {"google", "grpc", "grpc_tools", "typing_extensions"}, 300),
    ],
)
def test_an_import_brings_no_other_package_and_few_modules(used: str, packages: set[str], most: int) -> None:
    """Programs of one message are as slow as their imports; modules are counted, since times are the machine's."""
    program = f"import sys; before = {{*sys.modules}}; {used}; print(*({{*sys.modules}} - before))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    names = found.stdout.split()
    roots = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"ferromq"}
    assert {root for root in roots if "cython" not in root} <= packages  # Cython makes up modules of grpc
    assert len(names) <= most


@pytest.mark.parametrize("name", ["admin.Admin", "aio.connect", "client"])
def test_modules_are_there_without_an_import_of_their_own(name: str) -> None:
    """Whatever was imported before."""
    subprocess.run([sys.executable, "-c", f"import ferromq; ferromq.{name}"], check=True, timeout=300)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Names are loaded on access; a wrong one must not look like a failed import."""
    with pytest.raises(AttributeError, match="module 'ferromq' has no attribute 'Broker'"):
        ferromq.Broker  # noqa: B018
    assert set(ferromq.__all__) <= set(dir(ferromq))
