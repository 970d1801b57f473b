"""Clients of name servers and ferromq's brokers: each verb over remoting, as against RocketMQ's Java brokers."""

from collections.abc import Iterator

import pytest
from namesrv_verbs import NamesrvVerbs
from verbs import Cluster

import ferromq
from ferromq.core.remoting.sends import RESERVED


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Run a broker and its name server."""
    checks = {"transaction_check_interval": "200ms", "transaction_timeout": "200ms"}
    with ferromq.embedded(**checks) as mq:  # type: ignore[arg-type]
        yield Cluster(mq.namesrv, mq.remoting, mq.broker.config.name)


def test_properties_that_are_reserved_here_are_refused_by_brokers_too() -> None:
    """Over gRPC the broker checks them, over remoting the client."""
    with ferromq.embedded() as mq, mq.producer() as producer:
        for name in sorted(RESERVED):
            with pytest.raises(ferromq.RequestError, match=f"property {name} is reserved"):
                producer.send("orders", b"x", properties={name: "1"})


class TestOfFerromq(NamesrvVerbs):
    """Against ferromq."""
