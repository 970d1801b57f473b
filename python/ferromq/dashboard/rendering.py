"""Templates: each value is escaped, and an unknown name is an error."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from ferromq import _ferromq
from ferromq.dashboard.view import View, Visit, link
from ferromq.terminal.formatting import age, instant, size

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
_NOTHING = "\N{EN DASH}"
NAVIGATION = (
    ("/", "Cluster", "c"),
    ("/topics", "Topics", "t"),
    ("/groups", "Groups", "g"),
    ("/messages", "Messages", "m"),
    ("/dead-letters", "Dead letters", "d"),
    ("/transactions", "Transactions", "x"),
    ("/delayed", "Delayed", "l"),
    ("/clients", "Clients", "n"),
    ("/configuration", "Configuration", "o"),
)
"""Path, title, and the key that follows `g`."""


class Pages:
    """Renders templates, whole or the live part alone."""

    def __init__(self) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "age": age,
            "instant": instant,
            "size": size,
            "count": count,
            "rate": rate,
            "percent": percent,
            "clock": clock,
        }
        self._environment.globals |= {"link": link, "navigation": NAVIGATION, "version": _ferromq.__version__}
        self._environment.globals["ui"] = self._environment.get_template("macros.html").module

    def whole(self, template: str, visit: Visit, context: Mapping[str, Any]) -> str:
        """Return a whole page."""
        return _encodable(self._environment.get_template(template).render(visit=visit, **context))

    def live(self, template: str, visit: Visit, view: View) -> str:
        """Return the part of a page that changes by itself."""
        found = self._environment.get_template(template)
        return _encodable("".join(found.blocks["live"](found.new_context({"visit": visit, **view.context}))))


def _encodable(text: str) -> str:
    """Return text without halves of characters, which JSON can bring and UTF-8 has not: each as its escape."""
    return text.encode(errors="backslashreplace").decode()


def count(number: int | None) -> str:
    """Return a whole number with separators; a dash for None."""
    return _NOTHING if number is None else f"{number:,}"


def rate(number: float | None) -> str:
    """Return a rate per second; a dash for None."""
    return _NOTHING if number is None else f"{number:,.1f}" if number < 100 else f"{number:,.0f}"  # noqa: PLR2004


def percent(share: float | None) -> str:
    """Return a share as a percentage; a dash for None."""
    return _NOTHING if share is None else f"{share:.0%}"


def clock(time: int | None) -> str:
    """Return a time in milliseconds since 1970 without parts of a second, in UTC; a dash for none."""
    return instant(time).partition(".")[0] if time else _NOTHING
