"""
Checks each request: the name that it was sent to, and the origin of a change. Adds headers to each answer.

A page of a foreign site must not reach the dashboard through the visitor's browser. A name that the owner of the site
points to this machine (DNS rebinding) is refused, as are changes whose origin is another page.
"""

import ipaddress
from collections.abc import Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_NO_STORE, _ASK_AGAIN = (b"cache-control", b"no-store"), (b"cache-control", b"no-cache")
_FILES = "/static/"
_WRONG_NAME = "This dashboard has another name. Use its address, or localhost, or start it with --name and this name.\n"
_READING = {"GET", "HEAD"}


class Guard:
    """Refuses requests by foreign names and from foreign pages, and adds headers to all answers."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(message, is_file=scope["path"].startswith(_FILES))
            await send(message)

        refusal = self._refusal(scope)
        app = self._app if refusal is None else PlainTextResponse(*refusal)
        await app(scope, receive, answer)

    def _refusal(self, scope: Scope) -> tuple[str, int] | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._is_known(host):
            return _WRONG_NAME, 421
        if scope["method"] in _READING:
            return None
        site = headers.get("sec-fetch-site", "same-origin")
        origin = headers.get("origin")
        if site not in {"same-origin", "none"} or (origin is not None and urlsplit(origin).netloc != host):
            return "A change must come from a page of this dashboard.\n", 403
        return None

    def _is_known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True  # a page at an address is of the server at this address


def _add_headers(message: MutableMapping[str, Any], *, is_file: bool) -> None:
    message["headers"] = [*message["headers"], _ASK_AGAIN if is_file else _NO_STORE, *_HEADERS]
