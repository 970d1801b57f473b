"""Connected clients: members of consumer groups, and producers."""

import asyncio
from typing import TYPE_CHECKING

from ferromq.dashboard.view import Page, View, Visit, chosen_cluster, sliced
from ferromq.errors import FerromqError

if TYPE_CHECKING:
    from ferromq.admin import Unreachable

_GROUPS = 25
_MOST_PRODUCERS = 200


async def _clients(visit: Visit) -> View:
    cluster = await chosen_cluster(visit, visit.query)
    unreachable: list[Unreachable] = []
    names, sending = await asyncio.gather(
        visit.cluster.ask(lambda admin: admin.groups(system=False, cluster=cluster.name, unreachable=unreachable)),
        visit.cluster.ask_or_error(lambda admin: admin.producers(unreachable=unreachable)),
    )
    rows = sliced(names, visit.query, _GROUPS)
    members = await visit.cluster.ask_each(
        rows.items, lambda admin, name: admin.members(name, cluster=cluster.name, unreachable=unreachable)
    )
    consumers = [
        (name, [] if isinstance(each, FerromqError) else each, str(each) if isinstance(each, FerromqError) else "")
        for name, each in zip(rows.items, members, strict=True)
    ]
    known = {} if isinstance(sending, FerromqError) else sending
    pairs = [(group, member) for group, each in known.items() for member in each]
    return View(
        {
            "cluster": cluster,
            "rows": rows,
            "unreachable": {each.address: each for each in unreachable}.values(),
            "consumers": consumers,
            "producers": pairs[:_MOST_PRODUCERS],
            "all_producers": len(pairs),
            "producers_error": str(sending) if isinstance(sending, FerromqError) else "",
        }
    )


PAGES = (Page("/clients", "clients.html", _clients),)
