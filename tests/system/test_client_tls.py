"""The client over TLS: trusted brokers, and errors for others."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import ferromq
from ferromq import Resolution, aio

FILES = Path(__file__).parents[1] / "fixtures" / "tls"
TRUST = FILES / "ca.pem"


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Yield a broker that takes TLS alone."""
    options = {"grpc_tls_certificate": str(FILES / "first.pem"), "grpc_tls_key": str(FILES / "first.key")}
    with ferromq.embedded(grpc_tls_mode="enforcing", **options) as embedded:
        yield embedded


def test_messages_travel_over_tls(mq: ferromq.Embedded) -> None:
    """Sends, receives, transactions and telemetry alike."""
    with mq.admin() as admin:
        admin.create_topic("payments", 1, message_type="TRANSACTION")
    with (
        mq.producer(tls=TRUST, checker=lambda _: Resolution.COMMIT) as producer,
        mq.consumer("ledger", "payments", tls=ferromq.Tls(TRUST)) as consumer,
    ):
        with producer.transaction() as tx:
            tx.send("payments", b"over TLS")
        (message,) = consumer.receive(wait=10)
        assert message.body == b"over TLS"
        consumer.ack(message)


def test_the_asynchronous_client_speaks_it_too(mq: ferromq.Embedded) -> None:
    """Its session and its calls."""

    async def main() -> None:
        async with (
            aio.Producer(mq.endpoint, tls=str(TRUST)) as producer,
            aio.Consumer(mq.endpoint, "billing", "orders", tls=str(TRUST)) as consumer,
        ):
            await producer.send("orders", b"hello")
            (message,) = await consumer.receive(wait=10)
            await consumer.ack(message)

    asyncio.run(main())


@pytest.mark.parametrize("tls", [False, True])
def test_a_client_that_does_not_trust_the_broker_says_so(mq: ferromq.Embedded, tls: bool) -> None:
    """Plaintext, and a trust that does not hold the broker's certificate."""
    with mq.producer(tls=tls, attempts=1) as producer, pytest.raises(ferromq.ConnectionFailed):
        producer.send("orders", b"x")


def test_invalid_files_are_refused_when_the_client_is_made(mq: ferromq.Embedded) -> None:
    """With the path."""
    with pytest.raises(ferromq.ConfigError, match=r"missing\.pem"):
        mq.producer(tls=FILES / "missing.pem")
    with pytest.raises(ferromq.ConfigError, match="key"):
        mq.producer(tls=ferromq.Tls(TRUST, certificate=FILES / "client.pem"))
