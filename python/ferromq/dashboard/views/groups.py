"""Consumer groups: a list of any length, one of them, and how they are made, altered, moved and deleted."""

import asyncio
from typing import TYPE_CHECKING, Any

from ferromq.dashboard.forms import Fields, WrongInput
from ferromq.dashboard.view import Action, Choice, Done, Page, View, Visit, chosen_cluster, counted, link, sliced
from ferromq.errors import FerromqError, GroupNotFound
from ferromq.protocol.retry_policy import Customized, RetryPolicy

if TYPE_CHECKING:
    from ferromq.admin import QueueReset, Unreachable

_ROWS = 50
_YES_NO = {"yes": True, "no": False}
_PLACES = ("begin", "end", "time", "offset")


async def _groups(visit: Visit) -> View:
    shows_system = bool(visit.query.text("system"))
    cluster = await chosen_cluster(visit, visit.query)
    unreachable: list[Unreachable] = []
    names, lag = await asyncio.gather(
        visit.cluster.ask(
            lambda admin: admin.groups(system=shows_system, cluster=cluster.name, unreachable=unreachable)
        ),
        visit.cluster.ask_or_error(lambda admin: admin.lags(cluster=cluster.name)),
    )
    known = {} if isinstance(lag, FerromqError) else {each.group: each for each in lag}
    rows = sliced(names, visit.query, _ROWS)
    if not isinstance(lag, FerromqError) and lag:
        unreachable += lag[0].unreachable
    return View(
        {
            "cluster": cluster,
            "rows": rows,
            "groups": [(name, known.get(name)) for name in rows.items],
            "lag_error": str(lag) if isinstance(lag, FerromqError) else "",
            "unreachable": {each.address: each for each in unreachable}.values(),
            "system": shows_system,
        }
    )


async def _cluster_of(visit: Visit, fields: Fields, group: str) -> Choice:
    """Return the cluster that *fields* name, or else the first one that has the group."""
    choice = await chosen_cluster(visit, fields)
    if fields.text("cluster") or not choice.names:
        return choice
    answers = await visit.cluster.ask_each(
        choice.names, lambda admin, cluster: admin.describe_group(group, cluster=cluster)
    )
    # One that does not answer may have it: another is no substitute for it.
    having = (
        cluster for cluster, answer in zip(choice.names, answers, strict=True) if not isinstance(answer, GroupNotFound)
    )
    return Choice(next(having, choice.name), choice.names)


async def _group(visit: Visit) -> View:
    name = visit.query.needed("name")
    cluster = await _cluster_of(visit, visit.query, name)
    found, lag = await asyncio.gather(
        visit.cluster.ask(lambda admin: admin.describe_group(name, cluster=cluster.name)),
        visit.cluster.ask(lambda admin: admin.lag(name, cluster=cluster.name)),
    )
    counters = {
        "stored": counted(((queue.topic, queue.broker), queue.max_offset) for queue in lag.queues),
        "consumed": counted(((queue.topic, queue.broker), queue.committed_offset) for queue in lag.queues),
    }
    context = {"cluster": cluster, "group": found, "lag": lag, "policy": _policy(found.retry_policy)}
    return View(context, {"lag": lag.messages}, counters)


def _policy(policy: RetryPolicy) -> str:
    if isinstance(policy, Customized):
        return f"after {', '.join(f'{delay / 1000:g}' for delay in policy.delays_ms)} s"
    first, longest = policy.initial_ms / 1000, policy.max_ms / 1000
    return f"after {first:g} s, each {policy.multiplier} times the last, up to {longest:g} s"


def _settings(form: Fields) -> dict[str, Any]:
    delays = form.text("delays")
    try:
        seconds = [float(word) for word in delays.replace(",", " ").split()]
    except ValueError as error:
        raise WrongInput(f"delays are {delays!r:.60}; seconds with blanks between them are expected") from error
    return {
        "fifo": form.choice("fifo", _YES_NO),
        "retries": form.number("retries"),
        "retry_delays": seconds or None,
        "cluster": form.text("cluster") or None,
    }


async def _ask_new(_visit: Visit, fields: Fields) -> View:
    return View({"name": fields.text("name"), "cluster": fields.text("cluster")})


async def _new(visit: Visit, form: Fields) -> Done:
    name, settings = form.needed("name"), _settings(form)
    await visit.cluster.ask(lambda admin: admin.create_group(name, **settings))
    return Done(f"created group {name}", link("/group", name=name, cluster=settings["cluster"]))


async def _ask_one(visit: Visit, fields: Fields) -> View:
    name = fields.needed("name")
    cluster = await _cluster_of(visit, fields, name)
    found = await visit.cluster.ask(lambda admin: admin.describe_group(name, cluster=cluster.name))
    return View({"cluster": cluster, "group": found, "policy": _policy(found.retry_policy)})


async def _alter(visit: Visit, form: Fields) -> Done:
    name, settings = form.needed("name"), _settings(form)
    await visit.cluster.ask(lambda admin: admin.alter_group(name, **settings))
    return Done(f"altered group {name}", link("/group", name=name, cluster=settings["cluster"]))


async def _delete(visit: Visit, form: Fields) -> Done:
    name, cluster = form.needed("name"), form.text("cluster") or None
    if form.text("confirm") != name:
        raise WrongInput(f"type the name of the group, {name}, to delete it")
    keeps = form.text("keep_offsets") == "yes"
    await visit.cluster.ask(lambda admin: admin.delete_group(name, keep_offsets=keeps, cluster=cluster))
    return Done(f"deleted group {name}", link("/groups", cluster=cluster))


def _place(fields: Fields) -> dict[str, Any]:
    """Return where a group is to go, as arguments of `reset_offsets`. Raises `WrongInput`."""
    to = fields.choice("to", {place: place for place in _PLACES})
    found: dict[str, Any] = {"queue_id": fields.number("queue"), "broker": fields.text("broker") or None}
    if to == "offset":
        if found["queue_id"] is None:
            raise WrongInput("an offset belongs to one queue; fill in the queue, too")
        return {**found, "offset": fields.needed_number("offset")}
    if to == "time":
        when = fields.time("time")
        if when is None:
            raise WrongInput("the time is missing; fill it in, in UTC")
        return {**found, "to": when}
    return {**found, "to": to or "end"}


async def _ask_reset(visit: Visit, fields: Fields) -> View:
    """Show the form; once a topic is given, show what the move would do."""
    name, topic = fields.needed("name"), fields.text("topic")
    cluster = await _cluster_of(visit, fields, name)
    found = await visit.cluster.ask(lambda admin: admin.describe_group(name, cluster=cluster.name))
    lag = await visit.cluster.ask(lambda admin: admin.lag(name, cluster=cluster.name))
    topics = sorted({queue.topic for queue in lag.queues} | set(found.subscriptions))
    plan: list[QueueReset] | None = None
    if topic:
        place = _place(fields)
        plan = await visit.cluster.ask(
            lambda admin: admin.reset_offsets(name, topic, dry_run=True, cluster=cluster.name, **place)
        )
    given = {each: fields.text(each) for each in ("topic", "to", "time", "offset", "queue", "broker")}
    context = {"cluster": cluster, "group": found, "topics": topics}
    return View({**context, "given": given, "places": _PLACES, "plan": plan})


async def _reset(visit: Visit, form: Fields) -> Done:
    name, topic, place = form.needed("name"), form.needed("topic"), _place(form)
    cluster = form.text("cluster") or None
    moved = await visit.cluster.ask(lambda admin: admin.reset_offsets(name, topic, cluster=cluster, **place))
    return Done(f"moved group {name} in {len(moved)} queues of {topic}", link("/group", name=name, cluster=cluster))


async def _ask_skip(visit: Visit, fields: Fields) -> View:
    name = fields.needed("name")
    topic = fields.text("topic") or None
    cluster = await _cluster_of(visit, fields, name)
    plan = await visit.cluster.ask(
        lambda admin: admin.skip_backlog(name, topic=topic, dry_run=True, cluster=cluster.name)
    )
    return View({"cluster": cluster, "name": name, "topic": topic or "", "plan": plan})


async def _skip(visit: Visit, form: Fields) -> Done:
    name, topic, cluster = form.needed("name"), form.text("topic") or None, form.text("cluster") or None
    moved = await visit.cluster.ask(lambda admin: admin.skip_backlog(name, topic=topic, cluster=cluster))
    skipped = sum(queue.skipped for queue in moved)
    return Done(f"group {name} left out {skipped:,} messages", link("/group", name=name, cluster=cluster))


PAGES = (
    Page("/groups", "groups.html", _groups),
    Page("/group", "group.html", _group),
)
ACTIONS = (
    Action("/group/new", "group_new.html", _ask_new, _new),
    Action("/group/alter", "group_alter.html", _ask_one, _alter),
    Action("/group/delete", "group_delete.html", _ask_one, _delete),
    Action("/group/reset", "group_reset.html", _ask_reset, _reset),
    Action("/group/skip", "group_skip.html", _ask_skip, _skip),
)
