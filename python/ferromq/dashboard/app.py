"""The application: routes requests to pages and actions, and tells their errors."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ferromq.dashboard.cluster import NO_KEYS, Cluster, Connect, Slots, StillRunning
from ferromq.dashboard.forms import Fields, WrongInput
from ferromq.dashboard.guard import Guard
from ferromq.dashboard.live import MOST_STREAMS, Feeds, Rendered, Stream
from ferromq.dashboard.load import RETRY_AFTER, Admission, Load
from ferromq.dashboard.problems import HANDLED, NotFound, ReadOnly, problem
from ferromq.dashboard.rendering import STATIC, Pages
from ferromq.dashboard.sessions import Attempts, Now, Sessions, new_id
from ferromq.dashboard.settings import Settings
from ferromq.dashboard.signing import check_user, has_access_control
from ferromq.dashboard.view import Action, Done, Page, View, Visit, link
from ferromq.dashboard.views import ACTIONS, PAGES
from ferromq.errors import Forbidden, OutcomeUnknown

_LARGEST_FORM = 256 * 1024
_FORM_SECONDS = 10.0
_LONGEST_COOKIE = 128
_THEMES = ("light", "dark")
_LONGEST_SAID = 400
_UNAVAILABLE = 503
_Answer = Callable[[Request, Visit], Awaitable[Response]]


class App:
    """Serves one cluster to all visitors."""

    def __init__(self, settings: Settings, connect: Connect, timeout: float, now: Now, load: Load) -> None:
        self._settings = settings
        self._load = load
        self._connect = connect
        self._timeout = timeout
        self._pages = Pages()
        self._sessions = Sessions(now)
        self._attempts = Attempts(now)
        self._cookie = "ferromq"
        self._slots: Slots
        self._anyone: Cluster
        self.feeds: Feeds
        self.loop: asyncio.AbstractEventLoop
        self.started: Future[None] = Future()
        """Ends once it serves, or with why it cannot."""

    def application(self, port: int) -> Starlette:
        """Return the application. Browsers share cookies of all ports of a host, so theirs has the *port*."""
        self._cookie = f"ferromq_{port}"
        routes = [Route(page.path, self._page(page), methods=["GET"]) for page in PAGES]
        routes += [Route(action.path, self._action(action), methods=["GET", "POST"]) for action in ACTIONS]
        routes += [
            Route("/sign-in", self._visited(self._sign_in, is_open=True), methods=["GET", "POST"]),
            Route("/sign-out", self._visited(self._sign_out, is_open=True), methods=["POST"]),
        ]
        return Starlette(
            routes=[*routes, Mount("/static", StaticFiles(directory=STATIC))],
            middleware=[
                Middleware(Guard, names=self._settings.names),
                Middleware(Admission, load=self._load),
            ],
            exception_handlers={HTTPException: self._http_error},
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self.loop = asyncio.get_running_loop()
        self.feeds = Feeds()
        self._slots = Slots(self._timeout)
        self.loop.set_default_executor(self._slots.threads)
        try:
            self._anyone = Cluster(self._connect, self._slots, NO_KEYS)
        except Exception as error:
            await self._slots.close()
            self.started.set_exception(error)
            raise
        self.started.set_result(None)
        yield
        self._sessions.end_all()
        self._anyone.close()
        await self._slots.close()

    def _visit(self, request: Request) -> Visit:
        identity = self._identity(request)
        session = self._sessions.find(identity, is_use=not _wants_events(request))
        theme = request.cookies.get("ferromq_theme", "")
        query = request.url.query
        may_change = session is not None or (self._settings.allow_changes and not self._settings.sign_in)
        return Visit(
            url=request.url.path + (f"?{query}" if query else ""),
            query=Fields.parse(query.encode()),
            cluster=self._anyone if session is None else session.cluster,
            session=session,
            token=self._sessions.token(identity),
            may_change=may_change,
            may_change_name_servers=may_change and self._settings.allow_changes,
            theme=theme if theme in _THEMES else "",
            said=unquote(request.cookies.get(f"{self._cookie}_said", ""))[:_LONGEST_SAID],
        )

    def _identity(self, request: Request) -> str:
        """Return the id in the cookie of a visitor; without a cookie, an id that the answer sets."""
        found: str = request.cookies.get(self._cookie, "")
        if not found or len(found) > _LONGEST_COOKIE:
            found = getattr(request.state, "identity", "") or new_id()
            request.state.identity = found
        return found

    def _visited(self, answer: _Answer, *, is_open: bool = False, is_live: bool = False) -> Callable[[Request], Any]:
        """Return a route: *answer* with the visit of a request, or the page of its error; *is_open*: to strangers."""

        async def route(request: Request) -> Response:
            try:
                visit = self._visit(request)
            except WrongInput as error:
                return PlainTextResponse(f"{error}\n", 400)
            if self._settings.sign_in and visit.session is None and not is_open:
                return self._to_sign_in(visit)
            try:
                return await answer(request, visit)
            except HANDLED as error:
                return await self._failed(request, visit, error, is_live=is_live)

        return route

    def _page(self, page: Page) -> Callable[[Request], Any]:
        async def answer(request: Request, visit: Visit) -> Response:
            if page.is_live and _wants_events(request):
                return self._stream(page, visit)
            view = await page.load(visit)
            context = {"template_is_live": page.is_live, **view.context}
            return self._html(request, self._pages.whole(page.template, visit, context))

        return self._visited(answer, is_live=page.is_live)

    def _stream(self, page: Page, visit: Visit) -> Response:
        if self.feeds.streams >= MOST_STREAMS:
            return PlainTextResponse(f"{MOST_STREAMS} pages are looked at already; close one\n", 503, RETRY_AFTER)
        # Visitors share the feed, so it must not have the token of one of them.
        shared = replace(visit, token="", said="")
        feed = self.feeds.find(visit.cluster.number, visit.url, lambda: self._look(page, shared))
        session = visit.session
        return Stream(self.feeds, feed, lambda: session is None or session.is_open)

    async def _look(self, page: Page, visit: Visit) -> Rendered:
        """Return what a page shows now, or the error in its place."""
        try:
            view = await page.load(visit)
        except HANDLED as error:
            view = View({"problem": problem(error), "is_fragment": True})
            return Rendered(self._pages.live("problem.html", visit, view), {}, {})
        return Rendered(self._pages.live(page.template, visit, view), view.figures, view.counters)

    def _action(self, action: Action) -> Callable[[Request], Any]:
        async def answer(request: Request, visit: Visit) -> Response:
            if request.method == "POST":
                return await self._do(action, request, visit)
            view = await action.ask(visit, visit.query)
            return self._html(request, self._pages.whole(action.template, visit, view.context))

        return self._visited(answer)

    async def _do(self, action: Action, request: Request, visit: Visit) -> Response:
        form = await self._form(request)
        if not visit.may_change:
            raise ReadOnly(
                "this dashboard is read-only: sign in, if the cluster has access control, or start the dashboard with "
                "--allow-changes"
            )
        try:
            done = await action.do(visit, form)
        except (OutcomeUnknown, StillRunning) as error:
            error.add_note("The change may have been made, or may still be made. Look before you repeat it.")
            raise
        return self._told(request, done)

    async def _form(self, request: Request) -> Fields:
        """Read a form of a page of this visitor. Raises `WrongInput`."""
        content = bytearray()
        try:
            async with asyncio.timeout(_FORM_SECONDS):
                async for part in request.stream():
                    content += part
                    if len(content) > _LARGEST_FORM:
                        raise WrongInput(f"the form has more than {_LARGEST_FORM:,} bytes")
        except TimeoutError:
            raise WrongInput(f"the form did not arrive within {_FORM_SECONDS:g} s") from None
        form = Fields.parse(bytes(content))
        if not self._sessions.is_token(self._identity(request), form.raw("token")):
            raise WrongInput("the form is not of this visit, or the dashboard was started anew; load the page again")
        return form

    def _told(self, request: Request, done: Done) -> Response:
        answer = RedirectResponse(done.location, 303)
        self._set(
            request, answer, f"{self._cookie}_said", quote(done.said[:_LONGEST_SAID], errors="replace"), seconds=60
        )
        return answer

    async def _failed(self, request: Request, visit: Visit, error: Exception, *, is_live: bool) -> Response:
        """Tell an error. If the cluster's access control refused an unsigned request, ask the visitor to sign in."""
        if isinstance(error, Forbidden) and visit.session is None and await has_access_control(visit.cluster):
            return self._to_sign_in(visit)
        told = problem(error)
        context = {"problem": told, "is_fragment": False, "template_is_live": is_live}
        return self._html(request, self._pages.whole("problem.html", visit, context), told.status)

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code != 404:  # noqa: PLR2004
            return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)

        async def missing(_request: Request, _visit: Visit) -> Response:
            raise NotFound(f"there is no page {request.url.path:.100}")

        answer: Response = await self._visited(missing, is_open=True)(request)
        return answer

    def _to_sign_in(self, visit: Visit) -> Response:
        return RedirectResponse(link("/sign-in", next=visit.url if visit.url != "/" else None), 303)

    async def _sign_in(self, request: Request, visit: Visit) -> Response:
        if request.method == "GET":
            return self._sign_in_page(request, visit, "", 200)
        address = request.client.host if request.client else ""
        if not self._attempts.take(address):
            return self._sign_in_page(request, visit, "There were too many attempts. Wait a minute.", 429)
        try:
            form = await self._form(request)
            user, secret = form.needed("user"), form.raw("secret")
            refusal = await check_user(self._connect, self._slots, user, secret)
        except HANDLED as error:
            told = problem(error)
            return self._sign_in_page(request, visit, f"{told.title}: {told.text}", told.status)
        if refusal:
            return self._sign_in_page(request, visit, refusal, 403)
        self._sessions.end(self._identity(request))
        identity = self._sessions.begin(user, Cluster(self._connect, self._slots, (user, secret)))
        answer = RedirectResponse(_local(visit.query.text("next")), 303)
        self._set(request, answer, self._cookie, identity)
        return answer

    def _sign_in_page(self, request: Request, visit: Visit, wrong: str, status: int) -> Response:
        return self._html(request, self._pages.whole("sign_in.html", visit, {"wrong": wrong}), status)

    async def _sign_out(self, request: Request, visit: Visit) -> Response:
        if visit.session is None:
            return RedirectResponse("/sign-in", 303)
        await self._form(request)
        self._sessions.end(self._identity(request))
        answer = RedirectResponse("/sign-in", 303)
        self._set(request, answer, self._cookie, new_id())
        return answer

    def _html(self, request: Request, text: str, status: int = 200) -> Response:
        headers = {"vary": "Accept", **(RETRY_AFTER if status == _UNAVAILABLE else {})}
        answer = HTMLResponse(text, status, headers)
        fresh = getattr(request.state, "identity", "")
        if fresh:
            self._set(request, answer, self._cookie, fresh)
        if f"{self._cookie}_said" in request.cookies:
            answer.delete_cookie(f"{self._cookie}_said", samesite="lax")
        return answer

    def _set(self, request: Request, answer: Response, name: str, value: str, seconds: int | None = None) -> None:
        # `lax`: a link from another site brings the cookie, so it does not begin a new visit. Changes are POST.
        is_secure = request.url.scheme == "https"
        answer.set_cookie(name, value, max_age=seconds, httponly=True, samesite="lax", secure=is_secure)


def _wants_events(request: Request) -> bool:
    """Whether a script asks for the stream of a page."""
    return "text/event-stream" in request.headers.get("accept", "")


def _local(location: str) -> str:
    """Return a path of this dashboard; `/` for anything else, such as the address of another site."""
    is_path = location.startswith("/") and not location.startswith("//") and "\\" not in location
    return location if is_path and location.isprintable() else "/"
