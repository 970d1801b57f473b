"""The dashboard where there are several brokers, of one cluster or of two."""

import contextlib
import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboards import Visitor, served
from dispatching import dispatched

import ferromq
from ferromq.broker.controller import BrokerController
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController

FREE = "127.0.0.1:0"
PATIENCE = 10.0
HREF = re.compile(r'href="([^"#]+)"')


class Brokers:
    """A name server and the brokers `a` and `b`, each with messages, dead letters, a delayed message and clients."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack, clusters: tuple[str, str]) -> None:
        enter = stack.enter_context
        self.name_server = enter(contextlib.closing(NamesrvController(NameServerConfig(listen=FREE))))
        self.clusters = clusters
        self.brokers = {}
        for name, cluster in zip("ab", clusters, strict=True):
            options = {"listen": FREE, "grpc_listen": FREE, "fast_listen": "off", "commit_log_file_size": "4MiB"}
            given = {"store": directory / name, "namesrv": self.name_server.address, "name": name, "cluster": cluster}
            broker = BrokerController(BrokerConfig.from_options({**given, **options}))
            self.brokers[name] = enter(contextlib.closing(broker))
        self.admin = enter(ferromq.Admin(self.name_server.address))
        for cluster in dict.fromkeys(clusters):
            self.admin.create_topic("orders", 2, cluster=cluster)
            self.admin.create_topic("reminders", 1, message_type="DELAY", cluster=cluster)
            self.admin.create_group("billing", cluster=cluster)
        endpoints = ";".join(broker.endpoint for broker in self.brokers.values())
        producer = enter(ferromq.Producer(endpoints, "orders"))
        self.consumer = consumer = enter(ferromq.Consumer(endpoints, "billing", "orders"))
        for number in range(8):
            producer.send("orders", b"%d" % number, keys=f"order-{number}")
            producer.send("reminders", b"call back", delay=3600)
        for message in consumer.receive_many(8, wait=PATIENCE):
            consumer.forward_to_dead_letter(message, "no price")
        for number in range(8, 16):
            producer.send("orders", b"%d" % number)
        for each in self.brokers.values():
            dispatched(each)


@pytest.fixture(params=[("DefaultCluster", "DefaultCluster"), ("prod", "test")], ids=["one cluster", "two clusters"])
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Brokers]:
    """Run two brokers, in one cluster or in two."""
    with contextlib.ExitStack() as stack:
        yield Brokers(tmp_path, stack, request.param)


def kind(link: str) -> str:
    """Return a link without the queue or option that it names: one of them is enough for each topic and server."""
    return re.sub(r"(?<=[?&])(option|queue|offset)=[^&]*", "", link)


@pytest.mark.timeout(120)
def test_each_link_of_each_page_leads_to_a_page(brokers: Brokers) -> None:
    """Of what is on both brokers, too."""
    with served(brokers.name_server.address, allow_changes=True) as dashboard, Visitor(dashboard) as visitor:
        found, todo, failed = {"/"}, [("/", "the begin")], []
        while todo:
            path, origin = todo.pop()
            answer = visitor.get(path)
            if answer.status_code >= 400:
                failed.append((answer.status_code, path, origin))
            for link in map(html.unescape, HREF.findall(answer.text)):
                if kind(link) not in found and not link.startswith("/static/"):
                    found.add(kind(link))
                    todo.append((link, path))
    assert failed == []


def chosen(page: str) -> str:
    """Return the cluster that the selector of a page shows."""
    (name,) = re.findall(r"<option selected>([^<]+)</option>", page)
    return str(name)


@pytest.mark.parametrize("brokers", [("prod", "test")], indirect=True)
def test_a_visitor_chooses_the_cluster(brokers: Brokers) -> None:
    """Pages, links and forms keep it; without a choice they show the first cluster that has the group."""
    admin = brokers.admin
    admin.create_group("audit", cluster="test")
    with (
        served(brokers.name_server.address, allow_changes=True) as dashboard,
        Visitor(dashboard) as visitor,
        ferromq.Consumer(brokers.brokers["b"].endpoint, "audit", "orders") as consumer,
    ):
        assert chosen(visitor.page("/groups")) == "prod"
        assert "audit" not in visitor.page("/groups")
        listed = visitor.page("/groups", cluster="test")
        assert (chosen(listed), 'href="/group?name=audit&amp;cluster=test"' in listed) == ("test", True)
        assert 'href="/clients?cluster=test"' in listed
        assert chosen(visitor.page("/group", name="audit")) == "test"
        assert visitor.get("/group", params={"name": "audit", "cluster": "prod"}).status_code == 404
        consumer.receive(wait=PATIENCE)
        assert "PYTHON" in visitor.page("/clients", cluster="test", filter="audit")
        unknown = visitor.get("/groups", params={"cluster": "live"})
        assert (unknown.status_code, "known are prod, test" in unknown.text) == (400, True)
        first = visitor.page("/")
        assert "is not known" not in first
        lags = [{each.group: each.messages for each in admin.lags(cluster=name)} for name in brokers.clusters]
        assert f"<b>{sum(sum(each.values()) for each in lags)}</b><span>messages behind" in first
        assert min(each["billing"] for each in lags) > 0

        brokers.consumer.close()
        form = {"name": "billing", "topic": "orders"}
        plan = visitor.page("/group/skip", **form, cluster="test")
        assert 'name="cluster" value="test"' in plan
        refused = visitor.act("/group/skip", **form)
        assert (refused.status_code, "several clusters" in refused.text) == (400, True)
        assert chosen(visitor.done("/group/skip", **form, cluster="test")) == "test"
        assert [admin.lag("billing", topic="orders", cluster=name).messages for name in brokers.clusters] == [
            lags[0]["billing"],
            0,
        ]
        move = {**form, "to": "begin"}
        assert 'name="cluster" value="test"' in visitor.page("/group/reset", **move, cluster="test")
        assert chosen(visitor.done("/group/reset", **move, cluster="test")) == "test"
        assert admin.lag("billing", topic="orders", cluster="test").messages > 0
        assert chosen(visitor.done("/group/alter", name="billing", retries="3", cluster="test")) == "test"
        assert [admin.describe_group("billing", cluster=name).retries for name in brokers.clusters] == [16, 3]
        visitor.done("/group/delete", name="billing", confirm="billing", cluster="test")
        assert ["billing" in admin.groups(cluster=name) for name in brokers.clusters] == [True, False]
        assert chosen(visitor.done("/group/new", name="fresh", cluster="test")) == "test"


def test_a_topic_of_one_broker_is_browsed(brokers: Brokers) -> None:
    """Although its name is a system topic's, of which all brokers are asked."""
    assert list(brokers.admin.browse("rmq_sys_SYNC_BROKER_MEMBER_a")) == []
    with pytest.raises(ferromq.TopicNotFound):
        brokers.admin.browse("rmq_sys_of_none")
