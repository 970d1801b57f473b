"""Requests of an administrator and a name server to several servers, one of which hangs, and their repetition."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_proxy import FAULTS, Fault, FaultProxy
from machine import in_load

import ferromq
from ferromq import OutcomeUnknown, TopicNotFound
from ferromq._ferromq import RemotingClient, Request, Server
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.min_broker_id_notifier import MinBrokerIdNotifier
from ferromq.namesrv.route_types import MinBrokerIdChange
from ferromq.namesrv.server import NamesrvController
from ferromq.process.clock import Clock
from ferromq.protocol.codes import RequestCode

FREE, TIMEOUT = "127.0.0.1:0", 3.0
PATIENCE = 60
# On an idle machine; a call without a bound takes much longer.
SLACK = 1.5
ORDER, TOPIC = "ORDER_TOPIC_CONFIG", "orders"
Eventually = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def name_servers(no_thread_left: None) -> Iterator[list[NamesrvController]]:
    """Run two name servers."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(NamesrvController(NameServerConfig(listen=FREE)))) for _ in "ab"]


@pytest.fixture
def proxy(name_servers: list[NamesrvController]) -> Iterator[FaultProxy]:
    """Yield a proxy before the second of them."""
    with FaultProxy(name_servers[1].address) as proxy:
        yield proxy


@pytest.fixture
def broker(name_servers: list[NamesrvController], tmp_path: Path) -> Iterator[BrokerController]:
    """Run a broker that is registered with both, without a proxy."""
    options = {"listen": FREE, "grpc_listen": FREE, "fast_listen": "off", "commit_log_file_size": "1MiB"}
    names = ";".join(server.address for server in name_servers)
    config = BrokerConfig.from_options({"store": tmp_path, "namesrv": names, "name": "here", **options})
    with contextlib.closing(BrokerController(config, clock=Clock.manual(1_700_000_000_000))) as broker:
        yield broker


@pytest.fixture
def admin(
    name_servers: list[NamesrvController], proxy: FaultProxy, broker: BrokerController
) -> Iterator[ferromq.Admin]:
    """Return an administrator of both name servers, the second behind the proxy."""
    assert broker.address
    with ferromq.Admin(f"{name_servers[0].address};{proxy.address}", timeout=TIMEOUT) as admin:
        yield admin


@pytest.fixture
def patient(
    name_servers: list[NamesrvController], proxy: FaultProxy, broker: BrokerController
) -> Iterator[ferromq.Admin]:
    """Return an administrator without a time limit, which has created a topic."""
    assert broker.address
    with ferromq.Admin(f"{name_servers[0].address};{proxy.address}", timeout=PATIENCE) as admin:
        admin.create_topic(TOPIC, 1, message_type="FIFO")
        yield admin


def fails_in_time(call: Callable[[], object], requests: int) -> None:
    """Fail if a call succeeds, raises another error, or exceeds the time of its requests."""
    begin = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        call()
    assert time.monotonic() - begin < requests * TIMEOUT + in_load(SLACK)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_deletion_that_a_name_server_missed(
    name_servers: list[NamesrvController], proxy: FaultProxy, admin: ferromq.Admin, patient: ferromq.Admin, fault: Fault
) -> None:
    """The next call finishes it; only then is the topic gone."""
    fault(proxy)
    fails_in_time(lambda: admin.delete_topic(TOPIC), 1)
    assert name_servers[0].routes.lookup(TOPIC) is None
    # A repetition without its answer cannot tell whether the topic exists.
    fails_in_time(lambda: admin.delete_topic(TOPIC), 1)
    proxy.resume()
    # The request may have arrived, though its answer got lost.
    with contextlib.suppress(TopicNotFound):
        patient.delete_topic(TOPIC)
    assert name_servers[1].routes.lookup(TOPIC) is None
    with pytest.raises(TopicNotFound):
        patient.delete_topic(TOPIC)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_broker_that_one_name_server_still_counts(
    name_servers: list[NamesrvController], proxy: FaultProxy, admin: ferromq.Admin, patient: ferromq.Admin, fault: Fault
) -> None:
    """The next call removes it there, and names its topics."""
    for server in name_servers:
        server.kv_config.put(ORDER, TOPIC, "here:1;gone:1")
    fault(proxy)
    fails_in_time(lambda: admin.take_out_broker("gone"), 2)
    assert name_servers[0].kv_config.get(ORDER, TOPIC) == "here:1"
    proxy.resume()
    assert set(patient.take_out_broker("gone")) <= {TOPIC}
    assert [server.kv_config.get(ORDER, TOPIC) for server in name_servers] == ["here:1"] * 2
    assert patient.take_out_broker("gone") == []


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_order_configurations_are_those_of_the_first_that_answers(
    name_servers: list[NamesrvController], proxy: FaultProxy, patient: ferromq.Admin, fault: Fault
) -> None:
    """A hanging one costs its timeout; if none answers, that is the error."""
    assert patient.order_configurations() == {TOPIC: {"here": 1}}
    fault(proxy)
    with ferromq.Admin(f"{proxy.address};{name_servers[0].address}", timeout=TIMEOUT) as other:
        begin = time.monotonic()
        assert other.order_configurations() == {TOPIC: {"here": 1}}
        assert time.monotonic() - begin < TIMEOUT + in_load(SLACK)
    with ferromq.Admin(proxy.address, timeout=TIMEOUT) as alone:
        fails_in_time(alone.order_configurations, 1)
    proxy.resume()
    assert patient.order_configurations() == {TOPIC: {"here": 1}}


def test_a_slow_name_server_is_one_that_answers(
    name_servers: list[NamesrvController], proxy: FaultProxy, patient: ferromq.Admin
) -> None:
    """Within the timeout: everything is done."""
    proxy.delay(0.1)
    name_servers[1].kv_config.put(ORDER, TOPIC, "gone:1;here:1")
    assert patient.take_out_broker("gone") == [TOPIC]
    with pytest.raises(ferromq.ConfigError, match="broker is 'unknown'"):
        patient.take_out_broker("unknown")
    assert patient.take_out_broker("unknown", force=True) == []
    assert [server.kv_config.get("FERROMQ_GRPC", "unknown") for server in name_servers] == ["gone"] * 2
    patient.delete_topic(TOPIC)
    assert name_servers[1].routes.lookup(TOPIC) is None


class Told:
    """A receiver of notices about lowest broker ids, like a broker."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self._server = Server(Clock.system().raw)
        self._server.register(int(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE), self._hear)
        self.address = f"127.0.0.1:{self._server.listen_remoting(FREE)}"

    def _hear(self, request: Request) -> tuple[int, str | None, dict[str, str], bytes]:
        self.notices.append(request.fields["minBrokerId"])
        return 0, None, {}, b""

    def close(self) -> None:
        """Stop."""
        self._server.stop(timeout=1.0)


@pytest.fixture
def told() -> Iterator[Told]:
    """Yield a receiver of notices."""
    with contextlib.closing(Told()) as told:
        yield told


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_notices_go_on_where_a_broker_does_not_answer(told: Told, fault: Fault, eventually: Eventually) -> None:
    """The name server waits for no broker, other brokers get their notices, and this one gets later ones."""
    with (
        FaultProxy(told.address) as proxy,
        contextlib.closing(Told()) as other,
        contextlib.closing(MinBrokerIdNotifier(RemotingClient())) as out,
    ):
        fault(proxy)
        begin = time.monotonic()
        for number in range(2):
            out.notify(MinBrokerIdChange("b", number, "h:1", None, None, (proxy.address, other.address)))
        assert time.monotonic() - begin < in_load(SLACK)
        assert eventually(lambda: other.notices == ["0", "1"])
        proxy.resume()
        out.notify(MinBrokerIdChange("b", 2, "h:1", None, None, (proxy.address, other.address)))
        # The hanging notice may arrive after it.
        assert eventually(lambda: other.notices == ["0", "1", "2"] and "2" in told.notices)


def test_notices_end_at_once(no_thread_left: None, told: Told) -> None:
    """Though many wait for a broker that does not answer."""
    with FaultProxy(told.address) as proxy:
        proxy.hang()
        out = MinBrokerIdNotifier(RemotingClient())
        for number in range(100):
            out.notify(MinBrokerIdChange("b", number, "h:1", None, None, (proxy.address,)))
        begin = time.monotonic()
        out.close()
        assert time.monotonic() - begin < in_load(SLACK)
