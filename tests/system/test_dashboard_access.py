"""Who may see and change what through a dashboard, and what it does when its cluster does not answer."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from dashboards import Visitor, served
from fault_proxy import FaultProxy

import ferromq
from ferromq import aio
from ferromq._ferromq import RemotingClient
from ferromq.broker.controller import BrokerController
from ferromq.cli import main
from ferromq.cli.administration import dashboard as command
from ferromq.config.broker import BrokerConfig
from ferromq.config.namesrv import NameServerConfig
from ferromq.dashboard import connections
from ferromq.dashboard.sessions import IDLE_SECONDS
from ferromq.embedding import SMALL_FILES
from ferromq.errors import ConfigError
from ferromq.namesrv.server import NamesrvController
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.terminal.commands import use_namespace

ROOT, ADA = ("root", "root's key"), ("ada", "ada's key")
Eventually = Callable[[Callable[[], bool]], bool]
TLS = Path(__file__).parents[1] / "fixtures" / "tls"


@pytest.fixture(scope="module")
def mq() -> Iterator[ferromq.Embedded]:
    """Yield a broker without access control."""
    with ferromq.embedded() as embedded:
        yield embedded


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ferromq.Embedded]:
    """Yield a broker with access control, and a user who may see one topic alone."""
    options: dict[str, Any] = {"authentication_enabled": True, "authorization_enabled": True}
    with ferromq.embedded(tmp_path_factory.mktemp("guarded"), initial_user=":".join(ROOT), **options) as embedded:
        ask(embedded, RequestCode.AUTH_CREATE_USER, {"username": ADA[0]}, {"username": ADA[0], "password": ADA[1]})
        policy = {"resource": "Topic:orders", "actions": ["Get", "Sub"], "decision": "Allow"}
        acl = {"subject": "User:ada", "policies": [{"policyType": "Custom", "entries": [policy]}]}
        ask(embedded, RequestCode.AUTH_CREATE_ACL, {"subject": "User:ada"}, acl)
        with ferromq.Admin(embedded.namesrv, access_key=ROOT[0], secret_key=ROOT[1]) as admin:
            admin.create_topic("orders", 1)
            admin.create_topic("secrets", 1)
        yield embedded


def ask(mq: ferromq.Embedded, code: RequestCode, fields: dict[str, str], body: object) -> None:
    """Send a request of the super user."""
    answer = RemotingClient(credentials=ROOT).call(mq.remoting, code, fields, json.dumps(body).encode())
    assert answer[0] == ResponseCode.SUCCESS, answer


def test_it_is_read_only_unless_told_otherwise(mq: ferromq.Embedded) -> None:
    """Pages have no buttons, and forms are refused."""
    with served(mq.namesrv) as dashboard, Visitor(dashboard) as visitor:
        assert "read-only" in visitor.page("/topics")
        assert "New topic" not in visitor.page("/topics").partition("<main")[2].partition("</h1>")[2][:200]
        refused = visitor.act("/topic/new", name="refused", queues="1")
        assert (refused.status_code, "--allow-changes" in refused.text) == (403, True)
        with ferromq.Admin(mq.namesrv) as admin:
            assert "refused" not in admin.topics()


def test_a_form_of_another_page_is_refused(mq: ferromq.Embedded) -> None:
    """Without the token of this visitor, and from a page of another site."""
    with (
        served(mq.namesrv, allow_changes=True) as dashboard,
        Visitor(dashboard) as visitor,
        Visitor(dashboard) as other,
    ):
        form = {"name": "forged", "queues": "1"}
        for token in ("", "00", other.token()):
            assert visitor.post("/topic/new", data={"token": token, **form}).status_code == 400
        own = visitor.token()
        for headers in (
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            answer = visitor.post("/topic/new", data={"token": own, **form}, headers=headers)
            assert answer.status_code == 403, headers
        with ferromq.Admin(mq.namesrv) as admin:
            assert "forged" not in admin.topics()
        large = visitor.post("/topic/new", content=b"a=" + b"b" * 300_000)
        assert (large.status_code, "256" in large.text or "262,144" in large.text) == (400, True)


def test_names_that_others_may_own_are_refused(mq: ferromq.Embedded) -> None:
    """A page of a site whose name points to this machine reads nothing; a name that was given is taken."""
    with served(mq.namesrv, names=("mq.example.org",)) as dashboard, Visitor(dashboard) as visitor:
        for host, status in (
            ("evil.example", 421),
            ("evil.example:8082", 421),
            ("", 421),
            ("localhost:1", 200),
            ("[::1]:8082", 200),
            ("MQ.example.org", 200),
        ):
            assert visitor.get("/topics", headers={"host": host}).status_code == status, host


def test_answers_let_no_script_of_others_run(mq: ferromq.Embedded) -> None:
    """Also errors and files."""
    with served(mq.namesrv) as dashboard, Visitor(dashboard) as visitor:
        for path in ("/", "/nowhere", "/static/dashboard.js"):
            headers = visitor.get(path).headers
            policy = headers["content-security-policy"]
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy
            assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        cookie = (
            visitor.get("/").headers.get("set-cookie") or visitor.get("/", headers={"cookie": ""}).headers["set-cookie"]
        )
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie, "a link from another site must bring it"
        page = visitor.page("/")
        assert "http://" not in page.replace(dashboard.url, "")
        assert "https://" not in page


def test_users_sign_in_where_access_control_is_on(guarded: ferromq.Embedded) -> None:
    """Each sees and changes what the broker lets them."""
    with served(guarded.namesrv) as dashboard, Visitor(dashboard) as visitor:
        asked = visitor.get("/topic", params={"name": "orders"})
        assert (asked.status_code, asked.headers["location"]) == (303, "/sign-in?next=%2Ftopic%3Fname%3Dorders")
        assert visitor.sign_in("root", "wrong").status_code == 403
        assert visitor.sign_in("unknown", "wrong").status_code == 403
        before = dict(visitor.cookies)
        entered = visitor.sign_in(*ROOT, path=asked.headers["location"])
        assert (entered.status_code, entered.headers["location"]) == (303, "/topic?name=orders")
        assert dict(visitor.cookies) != before, "an id that was known before is no session"
        assert "root" in visitor.page("/topic", name="orders")
        assert "created topic made" in visitor.done("/topic/new", name="made", queues="1")
        assert visitor.act("/sign-out").status_code == 303
        assert visitor.get("/topic", params={"name": "orders"}).status_code == 303
        stranger = visitor.post("/sign-out", content=b"a" * 300_000)
        assert (stranger.status_code, stranger.headers["location"]) == (303, "/sign-in"), "its form is not read"


def test_the_broker_decides_what_a_user_may(guarded: ferromq.Embedded) -> None:
    """The dashboard only tells it."""
    with served(guarded.namesrv) as dashboard, Visitor(dashboard) as visitor:
        assert visitor.sign_in(*ADA).status_code == 303
        assert "no such" not in visitor.page("/messages", topic="orders")
        for path, fields in (("/messages", {"topic": "secrets"}), ("/configuration", {"server": guarded.remoting})):
            refused = visitor.get(path, params=fields)
            assert (refused.status_code, "ada" in refused.text) == (403, True), refused.text
        assert visitor.act("/topic/delete", name="secrets", confirm="secrets").status_code == 403


def test_a_sign_in_is_no_right_at_name_servers(guarded: ferromq.Embedded) -> None:
    """They know no users, so only --allow-changes lets a user change their options."""
    option = {"server": "name servers", "option": "scanNotActiveBrokerInterval", "value": "6000"}
    with served(guarded.namesrv, sign_in=True) as dashboard, Visitor(dashboard) as visitor:
        assert visitor.sign_in(*ROOT).status_code == 303
        assert ">Change</a>" not in visitor.page("/configuration", server="name servers")
        refused = visitor.act("/configuration/change", **option)
        assert (refused.status_code, "--allow-changes" in refused.text) == (403, True)
    with served(guarded.namesrv, sign_in=True, allow_changes=True) as dashboard, Visitor(dashboard) as visitor:
        assert visitor.sign_in(*ADA).status_code == 303
        assert visitor.act("/configuration/change", **option).status_code == 303


def test_a_topic_that_may_not_be_read_asks_for_no_sign_in(mq: ferromq.Embedded) -> None:
    """Its permission refuses all, and the cluster has no users."""
    with ferromq.Admin(mq.namesrv) as admin, mq.producer() as producer:
        admin.create_topic("write-only", 1)
        producer.send("write-only", b"unread")
        admin.alter_topic("write-only", permission="w")
    with served(mq.namesrv) as dashboard, Visitor(dashboard) as visitor:
        refused = visitor.get("/messages", params={"topic": "write-only"})
        assert (refused.status_code, "Not allowed" in refused.text) == (403, True)


def test_a_change_that_takes_long_is_not_told_as_undone(mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may still be made."""
    goes_on, is_made = threading.Event(), threading.Event()

    async def slow(_admin: aio.Admin, _name: str, **_options: Any) -> None:
        await asyncio.to_thread(goes_on.wait, 10)
        is_made.set()

    monkeypatch.setattr(aio.Admin, "delete_topic", slow)
    with served(mq.namesrv, allow_changes=True, timeout=0.1) as dashboard, Visitor(dashboard) as visitor:
        answer = visitor.act("/topic/delete", name="slowly", confirm="slowly")
        assert answer.status_code == 503
        assert "may still be made" in answer.text
        assert "asks again by itself" not in answer.text
        goes_on.set()
        assert is_made.wait(10)


def test_many_visitors_of_a_long_list_get_all_its_rows(mq: ferromq.Embedded) -> None:
    """Each asks about a few topics at a time."""
    with ferromq.Admin(mq.namesrv) as admin:
        for number in range(25):
            admin.create_topic(f"many-{number}", 1)
    with served(mq.namesrv) as dashboard:

        def rows(_number: int) -> int:
            with Visitor(dashboard) as visitor:
                return visitor.page("/topics", filter="many-").count("questions to the cluster")

        with ThreadPoolExecutor(6) as visitors:
            assert list(visitors.map(rows, range(6))) == [0] * 6


def test_a_cluster_without_access_control_has_no_users(mq: ferromq.Embedded) -> None:
    """A made-up name lets no one change it."""
    with served(mq.namesrv) as dashboard, Visitor(dashboard) as visitor:
        answer = visitor.sign_in("made", "up")
        assert (answer.status_code, "no access control" in answer.text) == (403, True)
        assert visitor.act("/topic/new", name="refused", queues="1").status_code == 403


def test_each_page_needs_a_user_where_the_dashboard_says_so(guarded: ferromq.Embedded, mq: ferromq.Embedded) -> None:
    """Whatever the cluster shows to strangers."""
    with served(mq.namesrv, sign_in=True, allow_changes=True) as dashboard, Visitor(dashboard) as visitor:
        for path in ("/", "/topics", "/topic/new", "/messages"):
            assert visitor.get(path).headers["location"].startswith("/sign-in")
        assert visitor.get("/", headers={"accept": "text/event-stream"}).status_code == 303
        assert visitor.act("/topic/new", name="refused", queues="1").status_code == 303


def test_users_sign_in_at_a_cluster_that_takes_tls_alone(tmp_path: Path) -> None:
    """It asks for client certificates, and the dashboard shows one."""
    files = {name: TLS / name for name in ("ca.pem", "client.pem", "client.key")}
    options: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "tls_mode": "enforcing",
        "tls_client_auth": "require",
        "tls_certificate": TLS / "first.pem",
        "tls_key": TLS / "first.key",
        "tls_trust": files["ca.pem"],
        "tls_outgoing": "true",
        "tls_outgoing_trust": files["ca.pem"],
        "tls_outgoing_certificate": files["client.pem"],
        "tls_outgoing_key": files["client.key"],
    }
    shown = ferromq.Tls(files["ca.pem"], files["client.pem"], files["client.key"])
    with contextlib.closing(NamesrvController(NameServerConfig.from_options(options))) as name_server:
        given = {**options, "namesrv": name_server.address, "store": tmp_path, "grpc_listen": "127.0.0.1:0"}
        given |= {"commit_log_file_size": "1MiB", "initial_user": ":".join(ROOT), "fast_listen": "off"}
        given |= {"authentication_enabled": True, "authorization_enabled": True}
        with (
            contextlib.closing(BrokerController(BrokerConfig.from_options(given))) as broker,
            served(name_server.address, tls=shown) as dashboard,
            Visitor(dashboard) as visitor,
        ):
            assert visitor.sign_in("root", "wrong").status_code == 403
            assert visitor.sign_in(*ROOT).status_code == 303
            assert broker.address in visitor.page("/")
            assert "created topic sealed" in visitor.done("/topic/new", name="sealed", queues="1")
            assert "Delete sealed?" in visitor.page("/topic/delete", name="sealed")
        with served(name_server.address, tls=ferromq.Tls(files["ca.pem"])) as dashboard, Visitor(dashboard) as visitor:
            assert visitor.get("/").status_code == 503, "without a certificate"


_CHECKED: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "initial_user": ":".join(ROOT),
    "inner_credentials": ":".join(ROOT),
}


@contextlib.contextmanager
def checked_name_server(directory: Path) -> Iterator[NamesrvController]:
    """Start a name server with access control."""
    options = {"listen": "127.0.0.1:0", "access_directory": str(directory / "users"), **_CHECKED}
    with contextlib.closing(NamesrvController(NameServerConfig.from_options(options))) as server:
        yield server


def broker(directory: Path, **options: Any) -> contextlib.closing[BrokerController]:
    """Start a broker."""
    given = {"store": directory / "store", "listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "fast_listen": "off"}
    return contextlib.closing(BrokerController(BrokerConfig.from_options({**given, **SMALL_FILES, **options})))


@pytest.mark.parametrize("known_by", ["name server", "endpoint", "lone broker"])
def test_users_sign_in_where_strangers_may_not_list_the_brokers(known_by: str, tmp_path: Path) -> None:
    """A page leads to the sign-in there."""
    with contextlib.ExitStack() as stack:
        given, namesrv, endpoint = dict(_CHECKED), None, None
        if known_by != "lone broker":
            given["namesrv"] = namesrv = stack.enter_context(checked_name_server(tmp_path)).address
        guarded = stack.enter_context(broker(tmp_path, **given))
        if known_by != "name server":
            namesrv, endpoint = None, guarded.endpoint
        dashboard = stack.enter_context(served(namesrv, endpoint=endpoint))
        visitor = stack.enter_context(Visitor(dashboard))
        asked = visitor.get("/topics")
        assert (asked.status_code, asked.headers.get("location")) == (303, "/sign-in?next=%2Ftopics"), asked.text
        for user, secret in ((ROOT[0], "wrong"), ("unknown", ROOT[1])):
            refused = visitor.sign_in(user, secret)
            assert (refused.status_code, "does not know this user" in refused.text) == (403, True)
        assert visitor.sign_in(*ROOT).status_code == 303
        assert "created topic made" in visitor.done("/topic/new", name="made", queues="1")


def test_no_visitor_leads_the_dashboard_to_an_address(tmp_path: Path) -> None:
    """Where name servers let strangers list no brokers."""
    with (
        checked_name_server(tmp_path) as name_server,
        socket.create_server(("127.0.0.1", 0)) as other,
        served(name_server.address, allow_changes=True) as dashboard,
        Visitor(dashboard) as visitor,
    ):
        other.settimeout(0)
        address = f"127.0.0.1:{other.getsockname()[1]}"
        asked = visitor.get("/configuration/change", params={"server": address, "option": "region"})
        assert (asked.status_code, asked.headers["location"].partition("?")[0]) == (303, "/sign-in"), asked.text
        with pytest.raises(BlockingIOError):
            other.accept()


def test_a_broker_without_access_control_takes_no_user_of_its_name_server(tmp_path: Path) -> None:
    """The user could change it without a right."""
    with (
        checked_name_server(tmp_path) as name_server,
        broker(tmp_path, namesrv=name_server.address, inner_credentials=":".join(ROOT)),
        served(name_server.address) as dashboard,
        Visitor(dashboard) as visitor,
    ):
        refused = visitor.sign_in(*ROOT)
        assert (refused.status_code, "has no access control" in refused.text) == (403, True)


def test_sessions_end_and_attempts_are_limited(guarded: ferromq.Embedded) -> None:
    """Time is the test's."""
    now = [0.0]
    with served(guarded.namesrv, now=lambda: now[0]) as dashboard, Visitor(dashboard) as visitor:
        assert visitor.sign_in(*ROOT).status_code == 303
        now[0] += IDLE_SECONDS - 1
        assert visitor.get("/topics").status_code == 200
        now[0] += IDLE_SECONDS + 1
        assert visitor.get("/configuration", params={"server": guarded.remoting}).status_code == 303
        assert visitor.sign_in(*ROOT).status_code == 303
        now[0] += IDLE_SECONDS - 1
        next(samples := visitor.samples("/"))
        samples.close()
        now[0] += 2
        assert visitor.get("/").status_code == 303, "a page that is left open is no use"
        tries = [visitor.sign_in("root", "wrong").status_code for _ in range(12)]
        assert tries == [403] * 10 + [429] * 2
        now[0] += 61
        assert visitor.sign_in(*ROOT).status_code == 303


def test_sign_in_goes_on_at_pages_of_the_dashboard_alone(guarded: ferromq.Embedded) -> None:
    """A link to another site is not followed."""
    with served(guarded.namesrv) as dashboard, Visitor(dashboard) as visitor:
        for target in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"):
            answer = visitor.act("/sign-in?next=" + target, user=ROOT[0], secret=ROOT[1])
            assert answer.headers["location"] == "/"


def test_a_name_server_that_is_gone_is_told_and_comes_back(mq: ferromq.Embedded) -> None:
    """On the page that is looked at, too."""
    with FaultProxy(mq.namesrv) as proxy, served(proxy.address) as dashboard, Visitor(dashboard) as visitor:
        samples = visitor.samples("/")
        assert "broker-a" in next(samples)["html"]
        proxy.refuse()
        told = next(sample["html"] for sample in samples if "html" in sample and "problem" in sample["html"])
        assert "asks again by itself" in told
        assert visitor.get("/").status_code == 503
        proxy.resume()
        again = next(sample["html"] for sample in samples if "html" in sample and "problem" not in sample["html"])
        assert "broker-a" in again
        samples.close()


def test_a_name_server_that_hangs_holds_up_no_page_for_long(mq: ferromq.Embedded, eventually: Eventually) -> None:
    """Nor do its questions use up the threads."""
    with (
        FaultProxy(mq.namesrv) as proxy,
        served(proxy.address, timeout=0.5) as dashboard,
        Visitor(dashboard) as visitor,
    ):
        proxy.hang()
        for path in ("/", "/topics", "/groups", "/clients", "/messages?topic=a", "/transactions", "/delayed"):
            assert visitor.get(path).status_code == 503
        assert visitor.get("/sign-in").status_code == 200
        proxy.resume()
        assert eventually(lambda: visitor.get("/topics").status_code == 200)


def test_idle_connections_end(mq: ferromq.Embedded, monkeypatch: pytest.MonkeyPatch, eventually: Eventually) -> None:
    """Before a request, in the middle of one, and after one; so strangers cannot take all places."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with served(mq.namesrv) as dashboard, Visitor(dashboard) as visitor, contextlib.ExitStack() as stack:
        host, port = dashboard.url.removeprefix("http://").split(":")

        def connected() -> socket.socket:
            return stack.enter_context(socket.create_connection((host, int(port)), 5))

        def is_served() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return visitor.get("/sign-in").status_code == 200
            return False

        idle = [connected() for _ in range(256)]
        idle[0].sendall(b"GET /topics HTTP/1.1\r\nhost: local")
        assert eventually(is_served)
        for each in idle[:2]:
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""
        second = connected()
        second.sendall(b"GET /static/icon.svg HTTP/1.1\r\nhost: localhost\r\n\r\nGET /")
        with contextlib.suppress(ConnectionResetError):
            while second.recv(10_000):
                assert second.fileno() >= 0


def test_a_proxy_on_this_machine_tells_https(mq: ferromq.Embedded) -> None:
    """Cookies are then for HTTPS alone."""
    with served(mq.namesrv) as dashboard, Visitor(dashboard) as visitor:
        assert "Secure" in visitor.get("/sign-in", headers={"x-forwarded-proto": "https"}).headers["set-cookie"]
        visitor.cookies.clear()
        assert "Secure" not in visitor.get("/sign-in").headers["set-cookie"]


def test_a_broker_that_hangs_takes_no_page_away(mq: ferromq.Embedded, tmp_path: Path, eventually: Eventually) -> None:
    """It is named, and what the others tell is shown."""
    words = [sys.executable, "-m", "ferromq", "broker", "--namesrv", mq.namesrv, "--name", "second"]
    words += ["--store", str(tmp_path), "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"]
    with (
        subprocess.Popen([*words, "--metrics-listen", "off"], stderr=subprocess.DEVNULL) as second,
        ferromq.Admin(mq.namesrv) as admin,
    ):
        try:
            assert eventually(lambda: len(admin.cluster()) == 2)
            (address,) = [broker.address for broker in admin.cluster() if broker.name == "second"]
            admin.create_topic("both", 1)
            admin.create_group("readers")
            admin.create_topic("later", 1, message_type="DELAY")
            with mq.producer() as producer:
                for _ in range(4):  # two for each broker
                    producer.send("both", b"on the first")
                    producer.send("later", b"in an hour", delay=3600)
                assert eventually(lambda: admin.delayed_messages().topics.get("later") == 4)
                second.send_signal(signal.SIGSTOP)
                told = {
                    "/messages?topic=both": "on the first",
                    "/delayed": "later",
                    "/groups": "readers",
                    "/clients": "readers",
                }
                with (
                    served(mq.namesrv, timeout=2) as dashboard,
                    Visitor(dashboard) as visitor,
                    ThreadPoolExecutor(len(told)) as threads,  # each page waits for the broker
                ):
                    for path, page in zip(told, threads.map(visitor.page, told), strict=True):
                        assert told[path] in page, path
                        assert f"The broker at {address} did not answer" in page, path
        finally:
            second.send_signal(signal.SIGCONT)
            second.terminate()


def test_messages_are_found_at_a_broker_that_is_registered_by_name(tmp_path: Path) -> None:
    """They were stored at its IP address."""
    with ferromq.embedded(tmp_path, advertise="localhost") as mq, mq.producer() as producer:
        producer.send("orders", b"tea for one")
        with served(mq.namesrv) as dashboard, Visitor(dashboard) as visitor:
            found = re.search(r'class="id" href="([^"]+)"', visitor.page("/messages", topic="orders"))
            assert found is not None
            assert "tea for one" in visitor.page(found[1].replace("&amp;", "&"))


def test_the_command_serves_until_a_signal(guarded: ferromq.Embedded) -> None:
    """It prints its address, and takes no keys from the environment."""
    words = [
        sys.executable,
        "-m",
        "ferromq",
        "dashboard",
        "--namesrv",
        guarded.namesrv,
        "--listen",
        "127.0.0.1:0",
        "--json",
    ]
    keys = {"FERROMQ_ACCESS_KEY": ROOT[0], "FERROMQ_SECRET_KEY": ROOT[1]}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **keys}) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "}\n")
        url = json.loads("".join([*lines, "}"]))["url"]
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 5) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\nhost: localhost\r\n\r\n")
            assert b"location: /sign-in" in connection.recv(1000), "the keys of the environment are not the visitor's"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_pages_name_topics_as_the_user_of_a_namespace_does(mq: ferromq.Embedded) -> None:
    """Whose command started the dashboard."""
    use_namespace("nsA")
    try:
        with served(mq.namesrv, allow_changes=True) as dashboard, Visitor(dashboard) as visitor:
            told = visitor.act("/topic/alter", name="nsA%t", queues="2").text
    finally:
        use_namespace("")
    assert "ferromq topic create t" in told, told


def test_the_command_tells_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The packages are an extra."""
    monkeypatch.setattr(command, "_NEEDED", ("no_such_package",))
    assert main.main(["dashboard", "--namesrv", "127.0.0.1:1"]) == 2
    assert "pip install 'ferromq[dashboard]'" in capsys.readouterr().err


def test_an_address_that_is_taken_is_named(mq: ferromq.Embedded) -> None:
    """With what took it."""
    with served(mq.namesrv) as dashboard:
        taken = dashboard.url.removeprefix("http://")
        with pytest.raises(OSError, match=f"the dashboard cannot listen on {taken}"), served(mq.namesrv, listen=taken):
            pass


def test_what_cannot_be_used_is_told_at_the_start(mq: ferromq.Embedded, tmp_path: Path) -> None:
    """A missing certificate, and a malformed address."""
    files = {"certificate": str(tmp_path / "missing.pem"), "key": str(TLS / "first.key")}
    with pytest.raises(ConfigError, match=r"missing\.pem"), served(mq.namesrv, **files):
        pass
    with pytest.raises(ConfigError, match="no address"), served("no address"):
        pass


def test_it_speaks_https(mq: ferromq.Embedded) -> None:
    """Cookies are then for HTTPS alone."""
    files = {"certificate": str(TLS / "first.pem"), "key": str(TLS / "first.key")}
    with served(mq.namesrv, **files) as dashboard:
        context = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
        context.check_hostname = False
        with httpx.Client(base_url=dashboard.url, verify=context, trust_env=False) as client:
            answer = client.get("/topics")
            assert (answer.status_code, "Secure" in answer.headers["set-cookie"]) == (200, True)


def test_a_changed_certificate_is_shown_to_new_connections(
    mq: ferromq.Embedded, tmp_path: Path, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """Once it fits its key; files that cannot be used change nothing and are logged."""
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"

    def put(path: Path, content: bytes) -> None:
        new = tmp_path / "new"
        new.write_bytes(content)
        new.replace(path)

    first, second = ((TLS / name).read_bytes() for name in ("first.pem", "elsewhere.pem"))
    put(certificate, first)
    put(key, (TLS / "first.key").read_bytes())
    with served(mq.namesrv, certificate=str(certificate), key=str(key)) as dashboard, Visitor(dashboard) as visitor:
        host, port = dashboard.url.removeprefix("https://").split(":")

        def is_shown(content: bytes) -> bool:
            return ssl.get_server_certificate((host, int(port))).strip() == content.decode().strip()

        assert is_shown(first)
        visitor.page("/topics")
        put(certificate, b"no certificate")
        put(key, (TLS / "elsewhere.key").read_bytes())
        assert eventually(lambda: "new tls certificate rejected, the old one stays in use" in caplog.text)
        put(key, (TLS / "encrypted.key").read_bytes())
        put(certificate, second)
        assert eventually(lambda: "the key is encrypted; write it without a password" in caplog.text)
        put(key, b" " * (2 << 20))
        assert eventually(lambda: "a PEM file may have up to 1,048,576" in caplog.text)
        certificate.unlink()
        assert eventually(lambda: "No such file" in caplog.text)
        assert is_shown(first)
        put(key, (TLS / "elsewhere.key").read_bytes())
        put(certificate, second)
        assert eventually(lambda: is_shown(second))
        visitor.page("/topics")
        reasons = [record.getMessage() for record in caplog.records if "rejected" in record.getMessage()]
        assert len(reasons) == len(set(reasons)), "each is logged once"
        put(key, (TLS / "first.key").read_bytes())
        put(certificate, first)
        assert eventually(lambda: is_shown(first))
        renewed = (TLS / "renewed.pem").read_bytes()
        put(certificate, renewed)
        assert eventually(lambda: is_shown(renewed)), "it has the same key"
