"""A dashboard for tests, and a visitor of it over HTTP."""

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from ferromq import Tls
from ferromq.aio import Admin
from ferromq.dashboard import Dashboard, Settings

TIMEOUT = 5.0
_TOKEN = re.compile(r'name="token" value="([0-9a-f]+)"')


@contextlib.contextmanager
def served(
    namesrv: str | None,
    *,
    endpoint: str | None = None,
    timeout: float = TIMEOUT,
    now: Callable[[], float] = time.monotonic,
    tls: bool | Tls = False,
    **settings: Any,
) -> Iterator[Dashboard]:
    """Serve a dashboard of a cluster on a free port."""

    def connect(keys: tuple[str, str]) -> Admin:
        return Admin(namesrv, endpoint=endpoint, timeout=timeout, tls=tls, access_key=keys[0], secret_key=keys[1])

    with contextlib.closing(
        Dashboard(Settings(**{"listen": "127.0.0.1:0", **settings}), connect, timeout=timeout, now=now)
    ) as dashboard:
        yield dashboard


class Visitor(httpx.Client):
    """A browser without a screen: keeps cookies, and fills in the token of forms."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(base_url=dashboard.url, timeout=30.0, trust_env=False, verify=False)

    def page(self, path: str, **fields: Any) -> str:
        """Return a page that is there."""
        answer = self.get(path, params=fields or None)
        assert answer.status_code == 200, answer.text
        return answer.text

    def token(self) -> str:
        """Return the token of this visitor."""
        found = _TOKEN.search(self.page("/sign-in"))
        assert found is not None
        return found[1]

    def act(self, path: str, **fields: Any) -> httpx.Response:
        """Send a form, and return the answer as it is."""
        return self.post(path, data={"token": self.token(), **fields})

    def done(self, path: str, **fields: Any) -> str:
        """Send a form that changes something, and return the page that follows."""
        answer = self.act(path, **fields)
        assert answer.status_code == 303, answer.text
        return self.page(answer.headers["location"])

    def sign_in(self, user: str, secret: str, path: str = "/sign-in") -> httpx.Response:
        """Send the form of the page of sign-in."""
        return self.act(path, user=user, secret=secret)

    def samples(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a live page."""
        with self.stream("GET", path, headers={"accept": "text/event-stream"}) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))
