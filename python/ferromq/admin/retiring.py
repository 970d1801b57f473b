"""
Takes a broker out of a cluster for good: what its groups have yet to read, and the steps that follow.

Requests 21, 43, 201, 202 and 300 tell what is left, with Java's bodies; ferromq's 9876001 changes the state of the
broker. `broker_removal` has the last step, at the name servers.
"""

from collections.abc import Sequence

from ferromq.admin import inventory, progress, waiting
from ferromq.admin.asking import Ask, each
from ferromq.admin.calls import Calls
from ferromq.admin.name_servers import NameServers
from ferromq.admin.results import BrokerStatus, Retirement, Unread
from ferromq.errors import FerromqError, RequestError, TopicNotFound
from ferromq.protocol import java_json, naming
from ferromq.protocol.broker_removal import start_or_take_out
from ferromq.protocol.codes import RequestCode
from ferromq.protocol.route import MASTER, Permission

_RETIRING, _RETIRED = "retiring", "retired"
_MOST_HALVES = 1000
_OF_GROUPS = (naming.RETRY_PREFIX, naming.DLQ_PREFIX)
_NAMED = 5
"""Topics that an error names."""


def retire(calls: Calls, servers: NameServers, wanted: str, *, quiet: float, force: bool, stop: bool) -> Retirement:
    """Take the next steps with a broker, and return what is left; *quiet* in seconds."""
    known = servers.brokers(None)
    if not any(wanted in {broker.name, broker.address} for broker in known):
        marks = servers.marks_of(wanted)
        if any(marks):
            # An earlier call failed at some name servers.
            servers.take_out_broker(wanted)
            return Retirement(wanted, is_retired=True)
        if marks:
            raise RequestError(f"the broker {wanted} is away, and its messages with it; {start_or_take_out(wanted)}")
    address = inventory.found_broker(known, wanted)
    broker = next(each for each in known if each.address == address)
    _check_slaves(broker, known)
    if not force:
        _check_others(calls, broker, known)
    state, quiet_ms = _change(calls, address, _RETIRING)
    if state == _RETIRING:
        found = _look(calls, servers, broker, quiet_ms / 1000)
        if not found.is_empty or quiet_ms < quiet * 1000:
            return found
    else:
        found = Retirement(broker.name, is_retired=False)
    _leave(calls, servers, broker, stop=stop)
    return Retirement(
        broker.name, is_retired=True, dead_letters=found.dead_letters, without_readers=found.without_readers
    )


def _leave(calls: Calls, servers: NameServers, broker: BrokerStatus, *, stop: bool) -> None:
    _change(calls, broker.address, _RETIRED)
    try:
        if stop:
            _change(calls, broker.address, "stopped")
        servers.take_out_broker(broker.name, force=True)
    except FerromqError as error:
        error.add_note(
            f"{broker.name} has nothing left and has left the name servers that answer; the rest is "
            f"ferromq.Admin(...).take_out_broker({broker.name!r}), and to stop it"
        )
        raise


def _change(calls: Calls, address: str, state: str, topics: Sequence[str] = ()) -> tuple[str, int]:
    """Change the state of a broker; return the state and the milliseconds since its last send."""
    body = java_json.dumps({"topics": list(topics)}) if topics else b""
    _, fields, _ = calls.exchange(address, RequestCode.CHANGE_BROKER_STATE, {"state": state}, body=body)
    ask = Ask(calls, address, 1)
    return ask.decoded("the fields of a state", lambda: (fields["state"], int(fields.get("quietMs", "0"))))


def _check_slaves(broker: BrokerStatus, known: Sequence[BrokerStatus]) -> None:
    slaves = [other.address for other in known if other.name == broker.name and other.broker_id != MASTER]
    if slaves or broker.broker_id != MASTER:
        raise RequestError(
            f"{broker.name} has slaves: {', '.join(slaves)}; stop them first, because they keep it in the routes"
        )


def _check_others(calls: Calls, broker: BrokerStatus, known: Sequence[BrokerStatus]) -> None:
    """Raise `RequestError` if a topic that is written has no other broker that takes messages and stays."""

    def writable(ask: Ask) -> set[str]:
        return _written_at(ask) if progress.runtime(ask).get("brokerState") in {None, "serving"} else set()

    others = [other.address for other in known if other.broker_id == MASTER and other.address != broker.address]
    answers, _ = each(calls, others, writable) if others else ([], ())
    elsewhere = {name for _, names in answers for name in names}
    alone = _written_at(Ask(calls, broker.address, 1)) - elsewhere
    alone = inventory.without_system(calls, [broker], alone)
    if alone:
        names = sorted(alone)
        more = f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else ""
        raise RequestError(
            f"no other broker takes messages of {', '.join(names[:_NAMED])}{more}; create them there with "
            "create_topic, or retire the broker all the same with force"
        )


def _written_at(ask: Ask) -> set[str]:
    topics = inventory.topics_at(ask)
    return ask.decoded(
        "topics", lambda: {name for name, topic in topics.items() if int(topic["perm"]) & Permission.WRITE}
    )


def _look(calls: Calls, servers: NameServers, broker: BrokerStatus, quiet_seconds: float) -> Retirement:
    """Return what is left on a broker, after ordered topics that are read have left."""
    ask = Ask(calls, broker.address, 1)
    # What leaves a place between two of these looks has arrived at the next place, or still counts as on its way.
    behind = _on_their_way(ask)
    waits = _waits(calls, broker.address)
    undispatched, untimed = map(max, behind, _on_their_way(ask))
    topics = inventory.topics_at(ask)
    masters = servers.masters(broker.cluster)
    groups = set(inventory.groups(calls, masters))
    committed = inventory.offsets_at(ask)
    known: dict[str, set[str]] = {}
    # A group that has read a topic on another broker reads it here, too.
    for _, places in each(calls, masters, inventory.offsets_at)[0]:
        for name, reader in places:
            known.setdefault(name, set()).add(reader)
    unread: list[Unread] = []
    dead: dict[str, int] = {}
    rest: dict[str, int] = {}
    own = inventory.without_system(calls, [broker], topics)
    for topic in sorted(name for name in topics if name in own or name.startswith(_OF_GROUPS)):
        kept = _kept(ask, topic)
        messages = sum(end - begin for begin, end in kept.values())
        if not messages:
            continue
        if topic.startswith(naming.DLQ_PREFIX):
            dead[topic.removeprefix(naming.DLQ_PREFIX)] = messages
            continue
        readers = groups & {*inventory.readers(ask, topic), *known.get(topic, ())}
        for group in sorted(readers):
            offsets = committed.get((topic, group), {})
            left = sum(max(0, end - max(offsets.get(queue, 0), begin)) for queue, (begin, end) in kept.items())
            if left:
                unread.append(Unread(topic, group, left))
        if not readers:
            rest[topic] = messages
    still_ordered = _let_go(calls, servers, broker, topics.keys() - {one.topic for one in unread})
    # Meanwhile a message may have moved from one place to the other, as for a retry.
    delayed, half = map(max, waits, _waits(calls, broker.address))
    delayed += untimed
    return Retirement(
        broker.name,
        is_retired=False,
        unread=tuple(unread),
        delayed=delayed,
        half=half,
        undispatched=undispatched,
        ordered=still_ordered,
        quiet_seconds=quiet_seconds,
        dead_letters=dead,
        without_readers=rest,
    )


def _on_their_way(ask: Ask) -> tuple[int, int]:
    """Return the bytes of the log that are not in queues yet, and the delayed messages that the timer has not taken."""
    figures = progress.runtime(ask)
    return ask.decoded("figures", lambda: (int(figures["dispatchBehindBytes"]), int(figures["timerOffsetBehind"])))


def _waits(calls: Calls, address: str) -> tuple[int, int]:
    """Return how many delayed messages and half messages wait on a broker."""
    delayed = waiting.delayed(calls, [address], "")
    halves = waiting.transactions(calls, [address], "", _MOST_HALVES).messages
    return sum(delayed.topics.values()) + sum(delayed.levels.values()), len(halves)


def _let_go(calls: Calls, servers: NameServers, broker: BrokerStatus, read: set[str]) -> tuple[str, ...]:
    """Let the broker leave the order configurations of topics that are read; return the topics that it is still in."""
    ordered = {topic for topic, queues in servers.order_configurations().items() if broker.name in queues}
    if ordered & read:
        _change(calls, broker.address, _RETIRING, sorted(ordered & read))
    return tuple(sorted(ordered))


def _kept(ask: Ask, topic: str) -> dict[int, tuple[int, int]]:
    """Return the first and last offset of each queue; none of a topic that was deleted meanwhile."""
    try:
        return {queue.queue_id: (begin, end) for queue, (begin, end, _) in progress.extents(ask, topic).items()}
    except TopicNotFound:
        return {}
