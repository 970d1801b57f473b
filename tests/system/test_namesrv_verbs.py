"""Clients of name servers and ferromq's brokers: each verb over remoting, as against RocketMQ's Java brokers."""

from collections.abc import Iterator

import pytest
from namesrv_verbs import Cluster, NamesrvVerbs

import ferromq


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Run a broker and its name server."""
    checks = {"transaction_check_interval": "200ms", "transaction_timeout": "200ms"}
    with ferromq.embedded(**checks) as mq:  # type: ignore[arg-type]
        yield Cluster(mq.namesrv, mq.remoting, mq.broker.config.name)


class TestOfFerromq(NamesrvVerbs):
    """Against ferromq."""
