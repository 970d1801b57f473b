"""
The table of contents of the control plane: which function answers which cold request.

Hot requests are answered in Rust; naming one here is a `ValueError` at start.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ferromq._ferromq import Request, Response
from ferromq._proto import messages as pb
from ferromq.broker.administration import log_level
from ferromq.broker.administration.catalog import Catalog
from ferromq.broker.administration.offsets import OffsetRequests
from ferromq.broker.administration.settings import SettingsRequests
from ferromq.broker.administration.topics_and_groups import TopicAndGroupChanges
from ferromq.broker.clients import lite_topics
from ferromq.broker.clients.components import ClientComponents
from ferromq.broker.cluster.routes import Routes
from ferromq.broker.grpc_answers import rpc
from ferromq.broker.messages.message_queries import MessageQueries
from ferromq.broker.messages.recalls import Recalls
from ferromq.broker.messages.write_layouts import KEEP_WRITE_LAYOUT, WriteLayouts
from ferromq.broker.reports.consume_progress import ConsumeProgress
from ferromq.broker.reports.runtime_info import RuntimeInfo
from ferromq.broker.reports.statistics import Statistics
from ferromq.broker.transactions.components import TransactionComponents
from ferromq.protocol import remoting as _remoting
from ferromq.protocol.codes import RequestCode, ResponseCode


@dataclass(frozen=True, slots=True)
class Rooms:
    """The parts of the control plane that answer."""

    admin: TopicAndGroupChanges
    catalog: Catalog
    clients: ClientComponents
    layouts: WriteLayouts
    offsets: OffsetRequests
    queries: MessageQueries
    recalls: Recalls
    reports: ConsumeProgress
    routes: Routes
    runtime: RuntimeInfo
    settings: SettingsRequests
    statistics: Statistics
    transactions: TransactionComponents


_CHANGING = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        # The table is the master's, and what it lacks may lie in this log alone.
        RequestCode.CLEAN_UNUSED_TOPIC,
    }
)
"""Requests that change what a slave takes over from its master, which would undo it, or delete by it."""

_OF_THE_LOG = (
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)
"""Questions of consumers about a log. A slave has not its master's: its own offsets would send them back to them."""


_LITE = (
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.LITE_SUBSCRIPTION_CTL,
    RequestCode.ACK_LITE_MESSAGE,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
    RequestCode.GET_BROKER_LITE_INFO,
    RequestCode.GET_PARENT_TOPIC_INFO,
    RequestCode.GET_LITE_TOPIC_INFO,
    RequestCode.GET_LITE_CLIENT_INFO,
    RequestCode.GET_LITE_GROUP_INFO,
    RequestCode.TRIGGER_LITE_DISPATCH,
)
"""Requests about lite topics."""


def _for_masters(handler: _remoting.Handler, refused: Callable[[], str | None]) -> _remoting.Handler:
    def handle(request: Request) -> _remoting.Answer:
        why = refused()
        # Who only asks what is forbidden changes nothing.
        only_asks = request.route == RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN and not request.fields.get("readable")
        if why is None or only_asks:
            return handler(request)
        return _remoting.failure(ResponseCode.SYSTEM_ERROR, why)

    return handle


def _of_the_log(handler: _remoting.Handler, refused: Callable[[], str | None]) -> _remoting.Handler:
    def handle(request: Request) -> _remoting.Answer:
        why = refused()
        return handler(request) if why is None else _remoting.failure(ResponseCode.SYSTEM_BUSY, why)

    return handle


def table(
    rooms: Rooms, changes_refused: Callable[[], str | None], reads_refused: Callable[[], str | None]
) -> Mapping[int | str, Callable[[Request], Response]]:
    """
    Return the function for each remoting code and each gRPC method.

    *changes_refused* says why the tables may not be changed here now, *reads_refused* why consumers are not served;
    None where they may, and are.
    """
    clients, routes, queries = rooms.clients, rooms.routes, rooms.queries
    heartbeats, connections, calls = clients.heartbeats, clients.connections, clients.calls
    remoting = {
        RequestCode.QUERY_MESSAGE: queries.by_key,
        RequestCode.QUERY_CONSUMER_OFFSET: rooms.offsets.committed,
        RequestCode.UPDATE_AND_CREATE_TOPIC: rooms.admin.put_topic,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: rooms.admin.put_topics,
        RequestCode.GET_ALL_TOPIC_CONFIG: rooms.catalog.topics,
        RequestCode.UPDATE_BROKER_CONFIG: rooms.settings.update,
        RequestCode.GET_BROKER_CONFIG: rooms.settings.get,
        RequestCode.GET_BROKER_RUNTIME_INFO: rooms.runtime.info,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: rooms.offsets.by_time,
        RequestCode.GET_MAX_OFFSET: rooms.offsets.max_offset,
        RequestCode.GET_MIN_OFFSET: rooms.offsets.min_offset,
        RequestCode.GET_EARLIEST_MSG_STORETIME: rooms.offsets.earliest_time,
        RequestCode.VIEW_MESSAGE_BY_ID: queries.by_id,
        RequestCode.HEART_BEAT: heartbeats.heartbeat,
        RequestCode.UNREGISTER_CLIENT: heartbeats.unregister,
        RequestCode.END_TRANSACTION: rooms.transactions.ends.end_transaction,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.members.consumer_list,
        RequestCode.LOCK_BATCH_MQ: clients.locking.lock,
        RequestCode.UNLOCK_BATCH_MQ: clients.locking.unlock,
        RequestCode.GET_ALL_CONSUMER_OFFSET: rooms.offsets.all_committed,
        RequestCode.GET_ALL_DELAY_OFFSET: rooms.offsets.all_delayed,
        RequestCode.CHECK_CLIENT_CONFIG: heartbeats.check,
        RequestCode.GET_TIMER_CHECK_POINT: rooms.recalls.check_point,
        RequestCode.GET_TIMER_METRICS: rooms.recalls.metrics,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: rooms.admin.put_group,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: rooms.catalog.groups,
        RequestCode.GET_TOPIC_STATS_INFO: rooms.reports.topic,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: connections.of_consumers,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: connections.of_producers,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: rooms.admin.delete_group,
        RequestCode.GET_CONSUME_STATS: rooms.reports.group,
        RequestCode.DELETE_TOPIC_IN_BROKER: rooms.admin.delete_topic,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: clients.resets.reset,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: calls.consumer_status,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: rooms.admin.put_groups,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: connections.consumers_of,
        RequestCode.QUERY_CONSUME_TIME_SPAN: rooms.reports.time_span,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: rooms.catalog.system_topics,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: rooms.admin.clean_queues,
        RequestCode.GET_CONSUMER_RUNNING_INFO: calls.running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: calls.consume_directly,
        RequestCode.CLONE_GROUP_OFFSET: rooms.offsets.clone,
        RequestCode.VIEW_BROKER_STATS_DATA: rooms.statistics.view,
        RequestCode.CLEAN_UNUSED_TOPIC: rooms.admin.clean_unused,
        RequestCode.GET_BROKER_CONSUME_STATS: rooms.reports.all_groups,
        RequestCode.QUERY_CONSUME_QUEUE: rooms.reports.consume_queue,
        RequestCode.RESUME_CHECK_HALF_MESSAGE: rooms.transactions.checks.resume,
        RequestCode.SEND_REPLY_MESSAGE: clients.replies.reply,
        RequestCode.SEND_REPLY_MESSAGE_V2: clients.replies.short_reply,
        RequestCode.GET_ALL_PRODUCER_INFO: connections.all_producers,
        RequestCode.DELETE_EXPIRED_COMMITLOG: rooms.admin.clean,
        RequestCode.QUERY_TOPICS_BY_CONSUMER: connections.topics_of,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: connections.subscription,
        RequestCode.GET_TOPIC_CONFIG: rooms.catalog.topic,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: rooms.catalog.group,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: rooms.admin.forbid,
        RequestCode.RECALL_MESSAGE: rooms.recalls.recall,
        RequestCode.QUERY_ASSIGNMENT: clients.assignments.query,
        RequestCode.SET_MESSAGE_REQUEST_MODE: clients.assignments.set_mode,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: clients.assignments.all_modes,
        **dict.fromkeys(_LITE, _remoting.refused(lite_topics.REFUSED)),
    }
    grpc: dict[int | str, Callable[[Request], Response]] = {
        "QueryRoute": rpc(pb.QueryRouteRequest, pb.QueryRouteResponse, routes.query_route),
        "QueryAssignment": rpc(pb.QueryAssignmentRequest, pb.QueryAssignmentResponse, routes.query_assignment),
        "Heartbeat": rpc(pb.HeartbeatRequest, pb.HeartbeatResponse, clients.grpc.heartbeat),
        "NotifyClientTermination": rpc(
            pb.NotifyClientTerminationRequest, pb.NotifyClientTerminationResponse, clients.grpc.notify_termination
        ),
        "EndTransaction": rpc(
            pb.EndTransactionRequest, pb.EndTransactionResponse, rooms.transactions.ends.end_over_grpc
        ),
        "SyncLiteSubscription": rpc(
            pb.SyncLiteSubscriptionRequest, pb.SyncLiteSubscriptionResponse, lite_topics.sync_subscription
        ),
        "RecallMessage": rpc(pb.RecallMessageRequest, pb.RecallMessageResponse, rooms.recalls.recall_message),
        "QueryOffset": rpc(pb.QueryOffsetRequest, pb.QueryOffsetResponse, queries.query_offset),
        "GetOffset": rpc(pb.GetOffsetRequest, pb.GetOffsetResponse, queries.get_offset),
        KEEP_WRITE_LAYOUT: rooms.layouts.answer,
        "Admin/ChangeLogLevel": log_level.change_log_level,
    }
    masters = {code: _for_masters(remoting[code], changes_refused) for code in _CHANGING}
    masters |= {code: _of_the_log(remoting[code], reads_refused) for code in _OF_THE_LOG}
    return {**{int(code): _remoting.guarded(handler) for code, handler in {**remoting, **masters}.items()}, **grpc}
