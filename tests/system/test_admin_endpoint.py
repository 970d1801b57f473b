"""Administration by the gRPC endpoint of a broker, which tells its name servers, or is administered directly."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from fault_proxy import FaultProxy
from machine import in_load
from ports import kept_port

import ferromq
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.embedding import SMALL_FILES
from ferromq.namesrv.server import NamesrvController
from ferromq.protocol.retry_policy import Customized

FREE, ABSENT = "127.0.0.1:0", "127.0.0.1:1"
TLS = Path(__file__).parents[1] / "fixtures" / "tls"


def broker(directory: Path, name: str, **options: Any) -> BrokerController:
    """Start a broker with free ports."""
    given = {"store": directory / name, "listen": FREE, "grpc_listen": FREE, "name": name}
    return BrokerController(BrokerConfig.from_options({**given, **SMALL_FILES, "fast_listen": "off", **options}))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[BrokerController]]:
    """Yield two brokers of one name server."""
    with ExitStack() as stack:
        name_server = stack.enter_context(closing(NamesrvController(NameServerConfig(listen=FREE))))
        names = ("a", "b")
        yield [stack.enter_context(closing(broker(tmp_path, name, namesrv=name_server.address))) for name in names]


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[list[BrokerController]]:
    """Yield two brokers without a name server."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(broker(tmp_path, name))) for name in ("a", "b")]


def test_one_broker_is_enough_to_administer_its_cluster(cluster: list[BrokerController]) -> None:
    """It tells its name servers, which know the others; one that is absent is skipped."""
    first, second = cluster
    with ferromq.Admin(endpoint=f"{ABSENT};{second.endpoint}") as admin:
        admin.create_topic("orders", queues=2)
        assert "orders" in admin.topics()
        for each in (first, second):
            found = each.topics.get("orders")
            assert found is not None
            assert found.write_queues == 2
        admin.delete_topic("orders")
        assert first.topics.get("orders") is None


def test_brokers_without_name_servers_are_administered_directly(lone: list[BrokerController]) -> None:
    """By every call, on all of them."""
    with ferromq.Admin(endpoint=";".join(each.endpoint for each in lone)) as admin:
        admin.create_topic("orders", queues=2)
        admin.create_topic("orders")
        assert "orders" in admin.topics()
        admin.alter_topic("orders", queues=3)
        admin.create_group("billing", retries=3)
        admin.alter_group("billing", retries=4)
        for each in lone:
            topic, group = each.topics.get("orders"), each.groups.get("billing")
            assert topic is not None
            assert group is not None
            assert (topic.write_queues, group.max_attempts) == (3, 5)
        with ferromq.Producer(lone[1].endpoint) as producer:
            receipt = producer.send("orders", b"tea", keys="o-1")
        while not admin.query_by_key("orders", "o-1"):
            pass
        found = admin.query_by_id("orders", receipt.message_id)
        assert found is not None
        assert found.body == b"tea"
        admin.clean()
        admin.clean_unused_queues()
        assert admin.order_configurations() == {}
        with pytest.raises(ferromq.ConfigError, match="broker is 'gone', which is not known"):
            admin.take_out_broker("gone")
        with pytest.raises(ferromq.RequestError, match=r"the broker b at .* answers; stop it first"):
            admin.take_out_broker("b")
        admin.delete_topic("orders")
        assert [each.topics.get("orders") for each in lone] == [None, None]
        for call in (admin.delete_topic, lambda name: admin.query_by_key(name, "k")):
            with pytest.raises(ferromq.TopicNotFound, match="no topic orders"):
                call("orders")


def test_a_cluster_is_chosen_among_lone_brokers_too(tmp_path: Path) -> None:
    """As among those of a name server."""
    with closing(broker(tmp_path, "a", cluster="prod")) as prod, closing(broker(tmp_path, "b", cluster="test")) as test:
        with ferromq.Admin(endpoint=f"{prod.endpoint};{test.endpoint}") as admin:
            with pytest.raises(ferromq.ConfigError, match="several clusters: prod, test"):
                admin.create_topic("orders")
            admin.create_topic("orders", cluster="test")
        assert prod.topics.get("orders") is None
        assert test.topics.get("orders") is not None


def test_nothing_is_changed_unless_all_lone_brokers_answer(lone: list[BrokerController]) -> None:
    """Else the topic would be on some of them only."""
    with ferromq.Admin(endpoint=f"{lone[0].endpoint};{ABSENT}") as admin, pytest.raises(ferromq.ConnectionFailed):
        admin.create_topic("orders")
    assert lone[0].topics.get("orders") is None


def test_brokers_with_and_without_name_servers_are_no_cluster(cluster: list[BrokerController], tmp_path: Path) -> None:
    """The error names both."""
    with (
        closing(broker(tmp_path, "lone")) as lone,
        ferromq.Admin(endpoint=f"{lone.endpoint};{cluster[0].endpoint}") as admin,
    ):
        with pytest.raises(ferromq.ConfigError, match=r"registers with name servers .* lone with none"):
            admin.create_topic("orders")
        assert lone.topics.get("orders") is None


def test_a_server_that_is_not_a_ferromq_broker_is_unsupported() -> None:
    """The error says what to give instead."""
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        port = server.add_insecure_port(FREE)
        server.start()
        try:
            with ferromq.connect(f"127.0.0.1:{port}") as mq, pytest.raises(ferromq.Unsupported) as caught:
                mq.admin().topics()
        finally:
            server.stop(None).wait()
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "ferromq.Admin('HOST:9876')" in str(caught.value)


def test_a_server_that_hangs_costs_no_more_than_the_timeout(lone: list[BrokerController]) -> None:
    """Connecting included."""
    with FaultProxy(lone[0].endpoint) as proxy:
        proxy.hang()
        begin = time.monotonic()
        with ferromq.Admin(endpoint=proxy.address, timeout=1) as admin, pytest.raises(ferromq.OutcomeUnknown):
            admin.topics()
        assert time.monotonic() - begin < in_load(3)


def test_a_broker_that_moved_is_found_again(tmp_path: Path) -> None:
    """The call that misses it says where its address came from; the next one asks anew."""
    with kept_port() as endpoint, ferromq.Admin(endpoint=endpoint) as admin:
        with closing(broker(tmp_path, "a", grpc_listen=endpoint)) as before:
            admin.create_topic("orders")
        with closing(broker(tmp_path, "a", grpc_listen=endpoint)) as after:
            assert after.address != before.address
            with pytest.raises(ferromq.ConnectionFailed) as caught:
                admin.topics()
            (note,) = caught.value.__notes__
            assert f"the broker at {endpoint} told its remoting address {before.address}" in note
            assert "orders" in admin.topics()


def test_unreachable_name_servers_are_named(tmp_path: Path) -> None:
    """With the way out: those that the broker knows may have other addresses here."""
    with closing(broker(tmp_path, "a", namesrv=ABSENT)) as away, ferromq.Admin(endpoint=away.endpoint) as admin:
        with pytest.raises(ferromq.ConnectionFailed) as caught:
            admin.topics()
        (note,) = caught.value.__notes__
        assert f"told its name servers {ABSENT}" in note
        assert "ferromq.Admin('HOST:9876')" in note


def test_an_administrator_speaks_tls_with_all_servers(tmp_path: Path) -> None:
    """Over gRPC and remoting; without it, a broker that enforces it is not reached."""
    files = {"certificate": TLS / "first.pem", "key": TLS / "first.key"}
    options = {f"{side}_{name}": str(path) for side in ("tls", "grpc_tls") for name, path in files.items()}
    modes = {"tls_mode": "enforcing", "grpc_tls_mode": "enforcing"}
    with closing(broker(tmp_path, "a", **options, **modes)) as secure:
        with ferromq.connect(secure.endpoint, tls=TLS / "ca.pem") as mq:
            mq.admin().create_topic("orders")
            assert secure.topics.get("orders") is not None
        for tls in (False, True, TLS / "elsewhere.pem"):
            with ferromq.Admin(endpoint=secure.endpoint, tls=tls) as admin, pytest.raises(ferromq.ConnectionFailed):
                admin.topics()


def test_tls_at_the_endpoint_means_tls_with_the_other_servers(tmp_path: Path) -> None:
    """An administrator falls back to plaintext over remoting only with `tls=False`."""
    files = {"grpc_tls_certificate": str(TLS / "first.pem"), "grpc_tls_key": str(TLS / "first.key")}
    with closing(broker(tmp_path, "a", **files)) as half, ferromq.connect(half.endpoint, tls=TLS / "ca.pem") as mq:
        with pytest.raises(ferromq.ConnectionFailed, match=half.address) as caught:
            mq.admin().topics()
        assert any("tls=False speaks plaintext" in note for note in caught.value.__notes__)
        assert mq.admin(tls=False).topics()


@pytest.mark.parametrize(
    ("tls", "why"),
    [
        (TLS / "missing.pem", "missing.pem"),
        (ferromq.Tls(TLS / "ca.pem", certificate=TLS / "client.pem"), "needs its key"),
        (ferromq.Tls(TLS / "ca.pem", server_name="elsewhere"), "server_name is 'elsewhere'"),
    ],
)
def test_wrong_options_of_tls_are_refused(tls: Any, why: str) -> None:
    """When the administrator is made."""
    with pytest.raises(ferromq.ConfigError, match=why):
        ferromq.Admin("127.0.0.1:9876", tls=tls)


def test_the_asynchronous_administrator_does_not_block_its_loop(
    lone: list[BrokerController], eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """A broker that hangs hangs the call alone."""

    async def use() -> None:
        with FaultProxy(lone[0].endpoint) as proxy:
            proxy.hang()
            async with ferromq.aio.Admin(endpoint=proxy.address, timeout=20) as admin:
                call = asyncio.create_task(admin.topics())
                # The loop is free meanwhile: it runs this wait.
                assert await asyncio.to_thread(eventually, lambda: proxy.accepted > 0)
                assert not call.done()
                proxy.refuse()
                with pytest.raises(ferromq.OutcomeUnknown):
                    await call
        async with ferromq.aio.connect(lone[0].endpoint) as mq:
            admin = mq.admin()
            await admin.create_topic("orders", queues=2, message_type="FIFO")
            await admin.alter_topic("orders", queues=3)
            await admin.create_group("billing", fifo=True, retries=3, retry_delays=[1])
            await admin.create_group("billing", fifo=True, retries=3, retry_delays=[timedelta(seconds=1)])
            await admin.alter_group("billing", retries=4)
            await admin.clean()
            await admin.clean_unused_queues()
            assert await admin.order_configurations() == {}
            with pytest.raises(ferromq.ConfigError, match="broker is 'gone', which is not known"):
                await admin.take_out_broker("gone")
            async with mq.producer() as producer:
                receipt = await producer.send("orders", b"tea", keys="o-1", message_group="g")
            while not await admin.query_by_key("orders", "o-1"):
                pass
            found = await admin.query_by_id("orders", receipt.message_id)
            assert found is not None
            assert found.body == b"tea"
            await admin.delete_topic("orders")
            assert "orders" not in await admin.topics()

    asyncio.run(use())
    group = lone[0].groups.get("billing")
    assert group is not None
    assert (group.fifo, group.max_attempts, group.retry) == (True, 5, Customized((1000,)))
