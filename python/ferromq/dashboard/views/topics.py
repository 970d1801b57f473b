"""Topics: a list of any length, one of them, and how they are made, altered and deleted."""

from typing import get_args

from ferromq.admin import MessageType, TopicDescription
from ferromq.dashboard.forms import Fields, WrongInput
from ferromq.dashboard.view import Action, Done, Page, View, Visit, counted, link, sliced
from ferromq.errors import FerromqError, TopicNotFound

_ROWS = 25
TYPES: dict[str, MessageType] = {each.lower(): each for each in get_args(MessageType)}
PERMISSIONS = {"rw": "read and write", "r": "read", "w": "write", "none": "none"}


async def _topics(visit: Visit) -> View:
    shows_system = bool(visit.query.text("system"))
    names = await visit.cluster.ask(lambda admin: admin.topics(system=shows_system))
    rows = sliced(names, visit.query, _ROWS)
    found = await visit.cluster.ask_each(rows.items, lambda admin, name: admin.describe_topic(name))
    return View({"rows": rows, "topics": list(zip(rows.items, map(_row, found), strict=True)), "system": shows_system})


def _row(found: TopicDescription | FerromqError) -> dict[str, object]:
    if isinstance(found, FerromqError):
        # The name servers may still route a topic that its brokers deleted.
        return {"error": "deleted" if isinstance(found, TopicNotFound) else str(found)}
    return {
        "error": "",
        "queues": len(found.queues),
        "messages": found.messages,
        "groups": len(found.groups),
        "type": _type(found),
        "updated": max((queue.updated or 0 for queue in found.queues), default=0),
    }


def _type(found: TopicDescription) -> str:
    return next((each.message_type.lower() for each in found.brokers if each.message_type), "not set")


async def _topic(visit: Visit) -> View:
    name = visit.query.needed("name")
    found = await visit.cluster.ask(lambda admin: admin.describe_topic(name))
    counters = {"stored": counted((queue.broker, queue.max_offset) for queue in found.queues)}
    return View({"topic": found, "type": _type(found), "permissions": PERMISSIONS}, {}, counters)


async def _ask_new(_visit: Visit, fields: Fields) -> View:
    return View({"name": fields.text("name"), "types": TYPES})


async def _new(visit: Visit, form: Fields) -> Done:
    name, queues, kind = form.needed("name"), form.number("queues", least=1), form.choice("type", TYPES)
    cluster = form.text("cluster") or None
    await visit.cluster.ask(lambda admin: admin.create_topic(name, queues, message_type=kind, cluster=cluster))
    return Done(f"created topic {name}", link("/topic", name=name))


async def _ask_alter(visit: Visit, fields: Fields) -> View:
    name = fields.needed("name")
    found = await visit.cluster.ask(lambda admin: admin.describe_topic(name))
    return View({"topic": found, "types": TYPES, "type": _type(found), "permissions": PERMISSIONS})


async def _alter(visit: Visit, form: Fields) -> Done:
    name, queues, kind = form.needed("name"), form.number("queues", least=1), form.choice("type", TYPES)
    permission = form.choice("permission", {each: each for each in PERMISSIONS})
    if queues is None and kind is None and permission is None:
        raise WrongInput("nothing is to be altered; change a field")
    cluster = form.text("cluster") or None
    await visit.cluster.ask(
        lambda admin: admin.alter_topic(name, queues=queues, message_type=kind, permission=permission, cluster=cluster)
    )
    return Done(f"altered topic {name}", link("/topic", name=name))


async def _ask_delete(visit: Visit, fields: Fields) -> View:
    name = fields.needed("name")
    return View({"topic": await visit.cluster.ask(lambda admin: admin.describe_topic(name))})


async def _delete(visit: Visit, form: Fields) -> Done:
    name, cluster = form.needed("name"), form.text("cluster") or None
    if form.text("confirm") != name:
        raise WrongInput(f"type the name of the topic, {name}, to delete it")
    await visit.cluster.ask(lambda admin: admin.delete_topic(name, cluster=cluster))
    return Done(f"deleted topic {name}", "/topics")


PAGES = (
    Page("/topics", "topics.html", _topics, is_live=False),
    Page("/topic", "topic.html", _topic),
)
ACTIONS = (
    Action("/topic/new", "topic_new.html", _ask_new, _new),
    Action("/topic/alter", "topic_alter.html", _ask_alter, _alter),
    Action("/topic/delete", "topic_delete.html", _ask_delete, _delete),
)
