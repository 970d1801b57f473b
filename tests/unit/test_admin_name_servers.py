"""Which of several name servers an administrator asks: the one that answered last goes first."""

from collections.abc import Mapping
from typing import Any

import pytest

import ferromq

SUCCESS, TOPIC_NOT_EXIST = 0, 17
TIMEOUT = 9.0


class NameServers:
    """Stands for an administrator's client and its name servers."""

    def __init__(self) -> None:
        self.hung: set[str] = set()
        self.code = SUCCESS
        self.asked: list[str] = []

    def call(
        self, address: str, _code: int, _fields: Mapping[str, str], _body: bytes, *, timeout: float
    ) -> tuple[int, str | None, dict[str, str], bytes]:
        """Answer, or not."""
        assert timeout <= TIMEOUT
        self.asked.append(address)
        if address in self.hung:
            raise ferromq.RequestTimeout("no answer")
        return self.code, None, {}, b"{}"

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def name_servers() -> NameServers:
    """Return three name servers."""
    return NameServers()


@pytest.fixture
def admin(name_servers: NameServers) -> ferromq.Admin:
    """Return an administrator that asks them."""
    admin = ferromq.Admin("a:1;b:1;c:1", timeout=TIMEOUT)
    client: Any = name_servers
    admin._calls._client = client
    return admin


def test_name_servers_that_hang_are_asked_once(name_servers: NameServers, admin: ferromq.Admin) -> None:
    """For any number of look-ups; if the one that answered hangs later, the others are asked in their order."""
    name_servers.hung = {"a:1", "b:1"}
    admin.topics()
    admin.topics()
    assert name_servers.asked == ["a:1", "b:1", "c:1", "c:1"]
    name_servers.asked.clear()
    name_servers.hung = {"a:1", "c:1"}
    admin.topics()
    admin.order_configurations()
    assert name_servers.asked == ["c:1", "a:1", "b:1", "b:1"]


def test_a_refusal_is_an_answer(name_servers: NameServers, admin: ferromq.Admin) -> None:
    """For example for a missing topic."""
    name_servers.hung = {"a:1"}
    name_servers.code = TOPIC_NOT_EXIST
    for _ in range(2):
        with pytest.raises(ferromq.TopicNotFound):
            admin.topics()
    assert name_servers.asked == ["a:1", "b:1", "b:1"]


def test_name_servers_that_all_hang_are_asked_in_their_order(name_servers: NameServers, admin: ferromq.Admin) -> None:
    """The error is that of the last one."""
    name_servers.hung = {"a:1", "b:1", "c:1"}
    for _ in range(2):
        with pytest.raises(ferromq.RequestTimeout):
            admin.topics()
    assert name_servers.asked == ["a:1", "b:1", "c:1"] * 2
