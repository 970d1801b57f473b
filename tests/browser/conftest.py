"""Chromium for tests, and a cluster with something to see."""

import os
from collections.abc import Iterator
from datetime import timedelta

import pytest
from chromium import CACHED, FLAGS, PATIENCE, SCRIPT, Browser, found
from dashboards import served
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import ferromq
from ferromq.dashboard import Dashboard


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Start Chromium, with an empty profile."""
    options = webdriver.ChromeOptions()
    options.binary_location = found("chromium", "usr/lib/chromium/chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    library = {"LD_LIBRARY_PATH": str(CACHED / "usr/lib/x86_64-linux-gnu")} if CACHED.exists() else {}
    service = Service(found("chromedriver", "usr/bin/chromedriver"), env={**os.environ, **library})
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def mq() -> Iterator[ferromq.Embedded]:
    """Yield a broker with topics, a group that is behind, dead letters, and messages that wait."""
    with ferromq.embedded() as embedded, ferromq.Admin(embedded.namesrv) as admin:
        admin.create_topic("orders", 4)
        admin.create_topic("payments", 2, message_type="TRANSACTION")
        admin.create_topic("reminders", 2, message_type="DELAY")
        admin.create_group("billing", retries=3, retry_delays=[1, 5, 30])
        with embedded.producer() as producer, embedded.consumer("billing", "orders") as consumer:
            for number in range(3):
                producer.send("orders", b'{"order": %d, "price": -1}' % number, keys=f"order-{number}", tag="new")
                (message,) = consumer.receive(wait=PATIENCE)
                consumer.forward_to_dead_letter(message, "the price is negative")
            for number in range(3, 40):
                producer.send("orders", b'{"order": %d, "price": 12.5}' % number, keys=f"order-{number}", tag="new")
            consumer.ack(consumer.receive_many(12, wait=PATIENCE / 2))
            producer.send("scripts", SCRIPT.encode(), keys="script")
            for hours in (1, 3, 30):
                producer.send("reminders", b"call back", delay=timedelta(hours=hours))
        yield embedded


@pytest.fixture(scope="session")
def half(mq: ferromq.Embedded) -> Iterator[None]:
    """Leave a transaction open."""

    def unknown(_message: object) -> ferromq.Resolution:
        return ferromq.Resolution.UNKNOWN

    with mq.producer("payments", checker=unknown) as producer:
        transaction = producer.transaction()
        transaction.send("payments", b'{"payment": 7}', keys="payment-7")
        yield
        transaction.rollback()


@pytest.fixture(scope="session")
def dashboard(mq: ferromq.Embedded, half: None) -> Iterator[Dashboard]:
    """Yield a dashboard that takes changes."""
    with served(mq.namesrv, allow_changes=True) as served_one:
        yield served_one


@pytest.fixture
def browser(driver: webdriver.Chrome, dashboard: Dashboard) -> Iterator[Browser]:
    """Yield a window; fail if the browser complains."""
    browser = Browser(driver, dashboard.url)
    browser.complaints()
    yield browser
    assert browser.complaints() == []
    driver.get("about:blank")
