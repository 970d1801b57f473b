"""
Reads the messages of a store as consumers would see them, without a group, a lease or a connection.

It only reads. A read waits until the store has dispatched everything that was stored before it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ferromq._ferromq import MessageView, Store, StoredMessage, decode_received
from ferromq._proto import messages as pb
from ferromq.core.pull_plans import NoLease
from ferromq.protocol import naming
from ferromq.testing.waiting import until

_PATIENCE = 5.0
_AT_ONCE = 256
_REAL_TOPIC, _REAL_QUEUE, _RETRY_TOPIC = "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC"
_DELIVER_MS, _DELAY_MS, _DELAY_SECONDS = "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"
_ROLLED, _LEFT_WHEEL, _RECALLS = "TIMER_ROLL_TIMES", "TIMER_DEQUEUE_MS", "TIMER_DEL_UNIQKEY"
_NO_LEASE = NoLease()


@dataclass(frozen=True)
class Marks:
    """The ends of the queues of waiting messages at one moment, by topic and queue id; unknown queues begin at 0."""

    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store) -> "Marks":
        """Return the present ends, behind everything that is stored."""
        wait_for_dispatch(store)
        topics = (naming.TIMER_TOPIC, naming.SCHEDULE_TOPIC)
        places = [(topic, queue_id) for topic in topics for queue_id in _queues(store, topic)]
        return cls({place: store.max_offset(*place) for place in places})


FROM_THE_START = Marks()


def wait_for_dispatch(store: Store) -> None:
    """Wait until every message that is stored now can be read from its queue. Raises `TimeoutError`."""
    end = store.stats()["max_physical_offset"]
    if not until(lambda: store.stats()["dispatched_offset"] >= end, _PATIENCE):
        raise TimeoutError(
            f"within {_PATIENCE:g} s the store has not put what was stored before the physical offset {end} into its "
            f"queues; the broker's log says why: {store.stats()}"
        )


def messages(store: Store, topic: str) -> list[MessageView]:
    """Return the messages of all queues of a topic, in the order in which they were stored."""
    wait_for_dispatch(store)
    return _views(_of_topic(store, topic))


def sent(store: Store, topic: str, since: Marks) -> list[MessageView]:
    """
    Return the messages of a topic and those that wait for their time, in the order in which producers sent them.

    Looks for waiting messages from *since* on. A recalled message is not among them.
    """
    wait_for_dispatch(store)
    entered = [record for record in _entered(store, since) if record.properties.get(_REAL_TOPIC) == topic]
    # A delayed message is stored twice: when it is sent, and when it is delivered.
    first = {record.message_id: record.physical_offset for record in reversed(entered)}
    return _views([*_of_topic(store, topic), *_waiting(store, since, entered)], first)


def is_due(store: Store, now_ms: int, since: Marks) -> bool:
    """Return whether a message that entered *since* waits although its time has come at *now_ms*."""
    return any(_due_ms(store, record) <= now_ms for record in _waiting(store, since, _entered(store, since)))


def has_entered(store: Store) -> bool:
    """Return whether every timed message that is stored now is in the wheel."""
    return store.timed_waiting()[1] == 0


def unfinished(store: Store, group: str, topic: str) -> list[MessageView]:
    """
    Return the messages of a topic that a group has not finished, in the order in which they were stored.

    A group finishes a queue in order: behind its first unfinished message there may be finished ones. A message that a
    client of RocketMQ 4 gave back is in the group's retry topic, or waits for its delay.
    """
    wait_for_dispatch(store)
    return _views([*_from_commit(store, group, topic), *_given_back(store, group, topic)])


def failed(store: Store, group: str, topic: str, attempt: int) -> list[MessageView]:
    """
    Return the messages of a topic that wait for a group after a failed attempt, in the order in which they were stored.

    Those in a later attempt are among them.
    """
    wait_for_dispatch(store)
    leases = {
        queue_id: {
            offset
            for offset, deliveries, is_changed in store.in_flight(group, topic, queue_id)
            if deliveries > attempt or (deliveries == attempt and is_changed)
        }
        for queue_id in _queues(store, topic)
    }
    held = (record for record in _from_commit(store, group, topic) if record.queue_offset in leases[record.queue_id])
    given_back = (record for record in _given_back(store, group, topic) if record.reconsume_times >= attempt)
    return _views([*held, *given_back])


def record_of(store: Store, message: MessageView) -> StoredMessage | None:
    """Return the stored record of a message; None if the store does not have it."""
    wait_for_dispatch(store)
    if message.queue_id not in _queues(store, message.topic):
        return None
    found = store.get(message.topic, message.queue_id, message.queue_offset, 1)[1]
    return next((record for record in found if record.message_id == message.message_id), None)


def _views(records: Iterable[StoredMessage], first: Mapping[str, int] | None = None) -> list[MessageView]:
    """Return views in the order of storage; *first*: where a message id was stored first, if that is not its record."""
    places = first or {}
    in_order = sorted(
        records, key=lambda record: (places.get(record.message_id, record.physical_offset), record.physical_offset)
    )
    return [_view(record) for record in in_order]


def _view(record: StoredMessage) -> MessageView:
    message = pb.Message.FromString(record.grpc_message())
    properties = record.properties
    if record.topic in {naming.TIMER_TOPIC, naming.SCHEDULE_TOPIC}:
        message.topic.name = properties[_REAL_TOPIC]
        message.system_properties.queue_id = int(properties.get(_REAL_QUEUE, "0"))
    answer = pb.ReceiveMessageResponse(message=message).SerializeToString()
    _, (view,), _ = decode_received([answer], False, _NO_LEASE, "")  # noqa: FBT003 (the binding takes no keywords)
    return view


def _queues(store: Store, topic: str) -> list[int]:
    return store.queues().get(topic, [])


def _of_topic(store: Store, topic: str) -> Iterator[StoredMessage]:
    for queue_id in _queues(store, topic):
        yield from _of_queue(store, topic, queue_id)


def _of_queue(store: Store, topic: str, queue_id: int, begin: int = 0) -> Iterator[StoredMessage]:
    offset, end = max(begin, store.min_offset(topic, queue_id)), store.max_offset(topic, queue_id)
    while offset < end:
        _, found, following = store.get(topic, queue_id, offset, _AT_ONCE)
        yield from found
        if following <= offset:
            return
        offset = following


def _from_commit(store: Store, group: str, topic: str) -> Iterator[StoredMessage]:
    for queue_id in _queues(store, topic):
        yield from _of_queue(store, topic, queue_id, store.committed_offset(group, topic, queue_id) or 0)


def _given_back(store: Store, group: str, topic: str) -> Iterator[StoredMessage]:
    """Yield the messages of a topic that clients of RocketMQ 4 gave back and the group has not finished."""
    retries = f"{naming.RETRY_PREFIX}{group}"
    delayed = (each for each in _entered(store, FROM_THE_START) if each.properties.get(_REAL_TOPIC) == retries)
    again = [*_from_commit(store, group, retries), *_waiting(store, FROM_THE_START, delayed)]
    yield from (record for record in again if record.properties.get(_RETRY_TOPIC) == topic)


def _entered(store: Store, since: Marks) -> Iterator[StoredMessage]:
    """Yield the messages that began to wait since then: in the timer's topic, and in those of the delay levels."""
    for topic in (naming.TIMER_TOPIC, naming.SCHEDULE_TOPIC):
        for queue_id in _queues(store, topic):
            for record in _of_queue(store, topic, queue_id, since.ends.get((topic, queue_id), 0)):
                if not {_ROLLED, _RECALLS} & record.properties.keys():
                    yield record


def _waiting(store: Store, since: Marks, entered: Iterable[StoredMessage]) -> Iterator[StoredMessage]:
    """Yield those of the messages that still wait: neither delivered nor recalled."""
    done, offsets = _left_the_wheel(store, since), store.delay_offsets()
    for record in entered:
        if record.topic == naming.SCHEDULE_TOPIC:
            # The queue of level 1 has the id 0.
            if record.queue_offset >= offsets.get(record.queue_id + 1, 0):
                yield record
        elif done[record.message_id] > 0:
            done[record.message_id] -= 1
        else:
            yield record


def _left_the_wheel(store: Store, since: Marks) -> Counter[str]:
    """Return how often each message id was delivered or recalled, of those that entered the wheel since then."""
    done = Counter[str]()
    topics = set[str]()
    queue_id = 0
    begin = since.ends.get((naming.TIMER_TOPIC, queue_id), 0)
    if queue_id in _queues(store, naming.TIMER_TOPIC):
        for record in _of_queue(store, naming.TIMER_TOPIC, queue_id, begin):
            topics.add(record.properties.get(_REAL_TOPIC, ""))
            recalled = record.properties.get(_RECALLS)
            if recalled is not None:
                # Later versions of RocketMQ put the topic before the id.
                done[recalled.rpartition("+")[2]] += 1
    for topic in topics:
        done.update(record.message_id for record in _of_topic(store, topic) if _LEFT_WHEEL in record.properties)
    return done


def _due_ms(store: Store, record: StoredMessage) -> int:
    """Return when a waiting message is delivered, in milliseconds since 1970."""
    if record.topic == naming.SCHEDULE_TOPIC:
        # In these queues the third number of an entry is the time, as in RocketMQ.
        entries = store.queue_entries(record.topic, record.queue_id, record.queue_offset, 1) or [(0, 0, 0)]
        return entries[0][2]
    properties = record.properties
    if _DELIVER_MS in properties:
        return int(properties[_DELIVER_MS])
    after = properties.get(_DELAY_MS) or f"{properties.get(_DELAY_SECONDS, '0')}000"
    return record.store_timestamp + int(after)
