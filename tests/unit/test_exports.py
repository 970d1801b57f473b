"""What `import ferromq` gives."""

import inspect

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
