"""The cluster, its brokers, and the options of servers."""

import asyncio
import time

from ferromq.admin import BrokerStatus, GroupLag
from ferromq.dashboard.forms import Fields
from ferromq.dashboard.problems import NotFound, ReadOnly
from ferromq.dashboard.view import Action, Done, Page, View, Visit, cluster_names, link, sliced
from ferromq.errors import FerromqError

_WORST = 5
_OPTIONS = 100
_MOST_KNOWN = 500
_REMEMBERED_SECONDS = 3600
NAME_SERVERS = "name servers"
"""What stands in place of a broker's address for all name servers."""


async def _cluster(visit: Visit) -> View:
    names = await cluster_names(visit)
    brokers, answers = await asyncio.gather(
        visit.cluster.ask(lambda admin: admin.cluster()),
        visit.cluster.ask_each(names, lambda admin, name: admin.lags(cluster=name)),
    )
    gone = _gone(visit, brokers)
    answering = [broker for broker in brokers if broker.error is None]
    figures = {
        "stored": sum(broker.sent_per_second or 0 for broker in answering),
        "handed_out": sum(broker.received_per_second or 0 for broker in answering),
    }
    lags: list[tuple[str | None, GroupLag]] = []
    errors: list[tuple[str | None, FerromqError]] = []
    for name, answer in zip(names if len(names) > 1 else (None,), answers, strict=True):
        if isinstance(answer, FerromqError):
            errors.append((name, answer))
        else:
            lags += ((name, group) for group in answer)
    total = None if errors else sum(group.messages for _, group in lags)
    if total is not None:
        figures["lag"] = total
    late = sorted((each for each in lags if each[1].messages), key=lambda each: -each[1].messages)[:_WORST]
    context = {"brokers": brokers, "answering": len(answering), "late": late, "lag": total, "figures": figures}
    return View({**context, "gone": gone, "lag_errors": errors}, figures)


def _gone(visit: Visit, brokers: list[BrokerStatus]) -> list[tuple[BrokerStatus, float]]:
    """Return the brokers that were registered in the last hour and are no more, with the seconds since then."""
    known, now = visit.cluster.known, time.monotonic()
    known |= {(each.cluster, each.name, each.broker_id): (each, now) for each in brokers[:_MOST_KNOWN]}
    for key, (_, seen) in list(known.items()):
        if now - seen > _REMEMBERED_SECONDS or len(known) > 2 * _MOST_KNOWN:
            del known[key]
    return [(each, now - seen) for each, seen in known.values() if seen < now]


async def _broker(visit: Visit) -> View:
    address = visit.query.needed("address")
    brokers = await visit.cluster.ask(lambda admin: admin.cluster())
    found = _found(brokers, address)
    figures: dict[str, float] = {}
    if found.error is None:
        figures = {"stored": found.sent_per_second or 0, "handed_out": found.received_per_second or 0}
    others = [each for each in brokers if each.name == found.name and each.address != found.address]
    return View({"broker": found, "others": others}, figures)


def _found(brokers: list[BrokerStatus], address: str) -> BrokerStatus:
    for broker in brokers:
        if broker.address == address:
            return broker
    raise NotFound(f"no broker is registered at {address:.100}")


async def _configuration(visit: Visit) -> View:
    """Show the options of one server; without one, which servers there are."""
    brokers = await visit.cluster.ask(lambda admin: admin.cluster(figures=False))
    server = visit.query.text("server")
    if not server:
        return View({"brokers": brokers, "server": "", "servers": {}, "names": None, "name_servers": NAME_SERVERS})
    options = await _options(visit, server)
    names = sliced(sorted({name for each in options.values() for name in each}), visit.query, _OPTIONS)
    context = {"brokers": brokers, "server": server, "servers": options, "names": names}
    return View({**context, "name_servers": NAME_SERVERS, "may_change": _may_change(visit, server)})


def _may_change(visit: Visit, server: str) -> bool:
    return visit.may_change_name_servers if server == NAME_SERVERS else visit.may_change


async def _options(visit: Visit, server: str) -> dict[str, dict[str, str]]:
    """Return the options of a broker, or of each name server, by address."""
    if server == NAME_SERVERS:
        return await visit.cluster.ask(lambda admin: admin.name_server_config())
    return {server: await visit.cluster.ask(lambda admin: admin.broker_config(server))}


async def _ask_change(visit: Visit, fields: Fields) -> View:
    server, name = fields.needed("server"), fields.needed("option")
    options = await _options(visit, server)
    old = {address: each.get(name) for address, each in options.items()}
    if all(value is None for value in old.values()):
        raise NotFound(f"{server:.100} has no option {name:.100}")
    first = next(value for value in old.values() if value is not None)
    context = {"server": server, "option": name, "old": old, "value": first}
    return View({**context, "may_change": _may_change(visit, server)})


async def _change(visit: Visit, form: Fields) -> Done:
    server, name, value = form.needed("server"), form.needed("option"), form.raw("value")
    if server == NAME_SERVERS:
        if not _may_change(visit, server):
            raise ReadOnly(
                "name servers may know no users, so a sign-in is not enough: start the dashboard with --allow-changes"
            )
        await visit.cluster.ask(lambda admin: admin.configure_name_servers({name: value}))
    else:
        await visit.cluster.ask(lambda admin: admin.configure_broker(server, {name: value}))
    return Done(f"{name} of {server} is {value} now", link("/configuration", server=server, filter=name))


PAGES = (
    Page("/", "cluster.html", _cluster),
    Page("/broker", "broker.html", _broker),
    Page("/configuration", "configuration.html", _configuration, is_live=False),
)
ACTIONS = (Action("/configuration/change", "configuration_change.html", _ask_change, _change),)
