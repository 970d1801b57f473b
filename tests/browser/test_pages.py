"""Each page of the dashboard in Chromium, an action on each, and what happens when a server dies."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import PATIENCE, SCRIPT, Browser
from dashboards import served
from ports import kept_port
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.protocol.codes import RequestCode, ResponseCode

PAGES = (
    ("/", "Cluster"),
    ("/broker?address={broker}", "broker-a"),
    ("/topics", "Topics"),
    ("/topic?name=orders", "orders"),
    ("/groups", "Groups"),
    ("/group?name=billing", "billing"),
    ("/messages?topic=orders", "Messages"),
    ("/dead-letters", "Dead letters"),
    ("/dead-letters/group?group=billing", "Dead letters of billing"),
    ("/transactions", "Transactions"),
    ("/delayed", "Delayed messages"),
    ("/clients", "Clients"),
    ("/configuration?server=name+servers", "Configuration"),
)


@pytest.fixture
def admin(mq: ferromq.Embedded) -> Iterator[ferromq.Admin]:
    """Yield an administrator, which sees what the pages changed."""
    with ferromq.Admin(mq.namesrv) as admin:
        yield admin


@pytest.mark.parametrize(("path", "title"), PAGES)
def test_each_page_is_shown_without_a_complaint(browser: Browser, mq: ferromq.Embedded, path: str, title: str) -> None:
    """Nor does it need another host: the policy of the pages would make Chromium complain."""
    browser.open(path.format(broker=mq.remoting))
    assert browser.one("h1").text == title
    if not path.startswith("/broker"):  # it is in no menu
        assert browser.one("nav a[aria-current], nav a.inside").is_displayed()


def test_charts_draw_what_comes(browser: Browser) -> None:
    """After two samples."""
    browser.open("/")
    browser.until(lambda: len(browser.all(".charts canvas")) == 2)
    browser.shows("handed out")


def test_a_table_changes_by_itself(browser: Browser, mq: ferromq.Embedded) -> None:
    """A message that is sent while the page is open."""
    with mq.producer() as producer:
        producer.send("watched", b"one")
        browser.open("/topic?name=watched")
        browser.shows("1\nmessages kept")
        producer.send("watched", b"two")
        browser.shows("2\nmessages kept")


def test_a_topic_is_made_altered_and_deleted(browser: Browser, admin: ferromq.Admin) -> None:
    """By its buttons; a wrong name deletes nothing."""
    browser.open("/topics")
    browser.press("New topic")
    browser.fill(name="invoices", queues="2")
    browser.press("Create")
    browser.shows("created topic invoices")
    browser.press("Alter")
    browser.fill(queues="3")
    browser.press("Alter")
    browser.shows("altered topic invoices")
    assert admin.describe_topic("invoices").brokers[0].write_queues == 3
    browser.press("Delete")
    browser.fill(confirm="invoices")
    browser.press("Delete")
    browser.shows("deleted topic invoices")
    assert "invoices" not in admin.topics()


def test_a_group_is_made_moved_and_deleted(browser: Browser, admin: ferromq.Admin) -> None:
    """What the move would do is shown first."""
    browser.open("/groups")
    browser.press("New group")
    browser.fill(name="audit", retries="2")
    browser.press("Create")
    browser.shows("created group audit")
    browser.press("Move")
    browser.fill(topic="orders", to="end")
    browser.press("Show what would change")
    browser.shows("This would change")
    assert admin.lag("audit").messages == 0
    browser.press("Move the group")
    browser.shows("moved group audit in 4 queues of orders")
    browser.press("Delete")
    browser.fill(confirm="audit")
    browser.press("Delete")
    browser.shows("deleted group audit")


def test_a_group_is_altered_and_its_backlog_skipped(
    browser: Browser, mq: ferromq.Embedded, admin: ferromq.Admin
) -> None:
    """By the buttons of its page."""
    admin.create_topic("backlog", 1)
    admin.create_group("slow")
    with mq.producer() as producer, mq.consumer("slow", "backlog") as consumer:
        for _ in range(3):
            producer.send("backlog", b"unread")
        consumer.ack(consumer.receive(1, wait=PATIENCE))
    browser.open("/group?name=slow")
    browser.shows("2\nmessages behind")
    browser.press("Alter")
    browser.fill(retries="7", fifo="yes")
    browser.press("Alter")
    browser.shows("altered group slow")
    found = admin.describe_group("slow")
    assert (found.retries, found.fifo) == (7, True)
    browser.press("Skip backlog")
    browser.shows("Skip the backlog of slow?")
    assert admin.lag("slow").messages == 2
    browser.press("Skip the backlog")
    browser.shows("group slow left out 2 messages")
    assert admin.lag("slow").messages == 0


def test_a_user_signs_in_and_out(driver: webdriver.Chrome, tmp_path: Path, browser: Browser) -> None:
    """A wrong key is told; the page that was wanted follows the sign-in."""
    with (
        ferromq.embedded(
            tmp_path, initial_user="root:secret", authentication_enabled=True, authorization_enabled=True
        ) as mq,
        served(mq.namesrv, sign_in=True) as dashboard,
    ):
        page = Browser(driver, dashboard.url)
        page.open(f"/broker?address={mq.remoting}")
        page.fill(user="root", secret="wrong")
        page.press("Sign in")
        page.until(lambda: page.all("[role=alert]"))
        page.complaints()  # an answer with 403 is one
        page.fill(user="root", secret="secret")
        page.press("Sign in")
        page.shows("Disk in use")
        page.one("form[action='/sign-out'] button").click()
        page.shows("With a user of the cluster's access control.")


def test_a_message_is_found_and_its_script_is_text(browser: Browser) -> None:
    """The body is shown as it is, and does not run."""
    browser.open("/messages")
    browser.fill(topic="scripts")
    browser.press("Search")
    browser.shows(SCRIPT)
    browser.one("td a.id").click()
    assert browser.one("pre.body").text == SCRIPT
    assert browser.driver.title == "Message · ferromq"


def test_dead_letters_are_sent_again(browser: Browser) -> None:
    """Those that are chosen, after a question."""
    browser.open("/dead-letters")
    browser.one("td a.name").click()
    browser.one("[data-all]").click()
    assert all(box.is_selected() for box in browser.all("[name=letter]"))
    browser.one("[data-all]").click()
    browser.one("[name=letter]").click()
    browser.press("Send the chosen ones again…")
    browser.shows("Send 1 dead letter again?")
    browser.press("Send again")
    browser.shows("sent 1 of 1 dead letters again")


def test_an_option_is_changed(browser: Browser, mq: ferromq.Embedded, admin: ferromq.Admin) -> None:
    """From the list of a broker's options."""
    browser.open(f"/configuration?server={mq.remoting}&filter=autoCreateTopicEnable")
    browser.press("Change")
    browser.fill(value="false")
    browser.press("Change")
    browser.shows("autoCreateTopicEnable")
    assert admin.broker_config(mq.remoting)["autoCreateTopicEnable"] == "false"
    admin.configure_broker(mq.remoting, {"autoCreateTopicEnable": "true"})


def test_keys_lead_through_the_pages(browser: Browser) -> None:
    """And nothing happens to what is typed into a field."""
    browser.open("/")
    browser.keys("g", "t")
    browser.until(lambda: browser.driver.current_url.endswith("/topics"))
    browser.keys("/")
    browser.driver.switch_to.active_element.send_keys("gt?" + Keys.ENTER)
    browser.until(lambda: "filter=gt" in browser.driver.current_url)
    browser.keys("?")
    assert browser.one("dialog[open] h2").text == "Keys"
    browser.keys(Keys.ESCAPE)
    browser.until(lambda: not browser.all("dialog[open]"))
    browser.driver.execute_script("document.activeElement.blur()")
    browser.open("/topics")
    browser.keys(Keys.TAB)
    assert browser.driver.switch_to.active_element.text == "Skip to the content"


def test_the_choice_of_dark_is_kept(browser: Browser) -> None:
    """On the next page, too."""
    browser.open("/")
    browser.one("#theme").click()
    chosen = browser.one("html").get_attribute("data-theme")
    assert chosen in {"dark", "light"}
    browser.open("/topics")
    assert browser.one("html").get_attribute("data-theme") == chosen
    browser.driver.delete_cookie("ferromq_theme")


def test_ten_thousand_topics_are_read_page_by_page(driver: webdriver.Chrome, tmp_path: Path, browser: Browser) -> None:
    """The server filters and cuts the list."""
    with ferromq.embedded(tmp_path) as mq, served(mq.namesrv, timeout=30) as dashboard:
        many = Browser(driver, dashboard.url)
        names = [f"topic-{number:05}" for number in range(10_000)]
        create_all(mq, names)
        many.open("/topics")
        many.shows("10,000 in all")
        assert len(many.all("tbody tr")) == 25
        many.press("Next →")
        many.shows("page 2 of 400")
        many.fill(filter="09999")
        many.press("Filter")
        many.shows("topic-09999")
        assert len(many.all("tbody tr")) == 1
        many.open("/")
        many.shows("brokers answer")


def create_all(mq: ferromq.Embedded, names: list[str]) -> None:
    """Create topics with one request."""
    settings = [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in names]
    body = json.dumps({"topicConfigList": settings}).encode()
    client = RemotingClient()
    code, *_ = client.call(mq.remoting, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body, timeout=30)
    client.close()
    assert code == ResponseCode.SUCCESS


def test_a_broker_that_hangs_or_dies_is_told_and_comes_back(
    driver: webdriver.Chrome, tmp_path: Path, mq: ferromq.Embedded, browser: Browser
) -> None:
    """While it is looked at; the page goes on with the other one."""
    with kept_port() as address, served(mq.namesrv, timeout=2.0) as dashboard:
        words = [sys.executable, "-m", "ferromq", "broker", "--namesrv", mq.namesrv, "--name", "second"]
        words += ["--store", str(tmp_path), "--listen", address, "--grpc-listen", "127.0.0.1:0"]
        page = Browser(driver, dashboard.url)
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            page.open("/")
            page.shows("2 of 2")
            process.send_signal(signal.SIGSTOP)
            page.shows("1 of 2")
            page.shows("does not answer")
            process.send_signal(signal.SIGCONT)
            page.shows("2 of 2")
            process.kill()
        page.shows("1 of 1")
        page.shows("not registered any more")
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            page.shows("2 of 2")
            assert "not registered any more" not in page.text()
            process.terminate()


def test_a_dashboard_that_ends_is_told(driver: webdriver.Chrome, mq: ferromq.Embedded, browser: Browser) -> None:
    """The page says that it may be old."""
    with served(mq.namesrv) as dashboard:
        page = Browser(driver, dashboard.url)
        page.open("/")
        page.shows("1 of 1")
    page.shows("The dashboard does not answer.")
    page.complaints()
