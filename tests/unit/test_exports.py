"""The public names of `import ferromq`."""

import importlib.util
import inspect
import subprocess
import sys

import pytest

import ferromq
from ferromq import errors

PUBLIC = [
    "Admin",
    "BrokerConfig",
    "Clock",
    "Consumer",
    "Embedded",
    "ExpiredFile",
    "Message",
    "MessageView",
    "NameServerConfig",
    "Producer",
    "Pulled",
    "Queue",
    "Resolution",
    "SendReceipt",
    "SendSummary",
    "Sql",
    "StoreConfig",
    "StoredMessage",
    "Tls",
    "Transaction",
    "embedded",
]


def test_exactly_these_names_are_public() -> None:
    """A new one is a decision, a lost one breaks programs."""
    assert ferromq.__all__ == sorted([*PUBLIC, *errors.__all__])


def test_every_public_name_is_there_and_documented() -> None:
    """`embedded` is the function, not the module of the same name."""
    for name in ferromq.__all__:
        assert inspect.getdoc(getattr(ferromq, name))
    assert inspect.isfunction(ferromq.embedded)


@pytest.mark.parametrize(
    ("module", "kept_out"),
    [
        ("ferromq", ("grpc", "google.protobuf", "asyncio", "ferromq.broker", "ferromq.client", "ferromq.config")),
        ("ferromq.spark.stream.reader", ("grpc", "google.protobuf", "ferromq.client", "ferromq.config")),
    ],
)
def test_a_spark_process_does_not_import_servers(module: str, kept_out: tuple[str, ...]) -> None:
    """A query starts several Python processes, and each imports this before its first row."""
    if importlib.util.find_spec("pyspark") is None and "spark" in module:
        pytest.skip("no PySpark")
    program = f"import sys, {module}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert set(kept_out) & set(found.stdout.split()) == set()


@pytest.mark.parametrize("name", ["admin.Admin", "client"])
def test_modules_are_there_without_an_import_of_their_own(name: str) -> None:
    """Whatever was imported before."""
    subprocess.run([sys.executable, "-c", f"import ferromq; ferromq.{name}"], check=True, timeout=300)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Names are loaded on access; a wrong one must not look like a failed import."""
    with pytest.raises(AttributeError, match="module 'ferromq' has no attribute 'Broker'"):
        ferromq.Broker  # noqa: B018
    assert set(ferromq.__all__) <= set(dir(ferromq))
