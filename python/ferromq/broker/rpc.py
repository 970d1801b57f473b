"""
The cold requests of the broker, and the function that answers each.

Hot requests are answered in Rust; registering a function for one is a `ValueError` at start.
"""

from collections.abc import Callable, Mapping

from ferromq._ferromq import Request, Response
from ferromq._proto import messages as pb
from ferromq.broker.administration import log_level
from ferromq.broker.clients import lite_topics
from ferromq.broker.components import Components
from ferromq.broker.grpc_answers import rpc
from ferromq.broker.messages.write_layouts import KEEP_WRITE_LAYOUT
from ferromq.protocol import audit
from ferromq.protocol import remoting as _remoting
from ferromq.protocol.broker_description import DESCRIBE_BROKER
from ferromq.protocol.codes import RequestCode, ResponseCode

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
        # A topic that the master's table lacks may have messages in this log alone.
        RequestCode.CLEAN_UNUSED_TOPIC,
    }
)
"""Changes of state that a slave takes over from its master, which would undo them. Refused on a slave."""

_OF_THE_LOG = (
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)
"""Queries of a log's offsets. Refused on a slave, whose own offsets would send consumers back."""


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
        # Without `readable` the request is a query.
        is_query = request.route == RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN and not request.fields.get("readable")
        if why is None or is_query:
            return handler(request)
        return _remoting.failure(ResponseCode.SYSTEM_ERROR, why)

    return handle


def _of_the_log(handler: _remoting.Handler, refused: Callable[[], str | None]) -> _remoting.Handler:
    def handle(request: Request) -> _remoting.Answer:
        why = refused()
        return handler(request) if why is None else _remoting.failure(ResponseCode.SYSTEM_BUSY, why)

    return handle


def table(
    components: Components, changes_refused: Callable[[], str | None], reads_refused: Callable[[], str | None]
) -> Mapping[int | str, Callable[[Request], Response]]:
    """
    Return the function for each remoting code and each gRPC method.

    *changes_refused* and *reads_refused* return why a slave refuses changes and reads; None on a master.
    """
    clients, routes, messages = components.clients, components.routes, components.messages
    heartbeats, connections, calls = clients.heartbeats, clients.connections, clients.calls
    remoting = {
        RequestCode.QUERY_MESSAGE: messages.by_key,
        RequestCode.QUERY_CONSUMER_OFFSET: components.offsets.committed,
        RequestCode.UPDATE_AND_CREATE_TOPIC: components.topics_and_groups.put_topic,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: components.topics_and_groups.put_topics,
        RequestCode.GET_ALL_TOPIC_CONFIG: components.catalog.topics,
        RequestCode.UPDATE_BROKER_CONFIG: components.settings.update,
        RequestCode.GET_BROKER_CONFIG: components.settings.get,
        RequestCode.GET_BROKER_RUNTIME_INFO: components.runtime.info,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: components.offsets.by_time,
        RequestCode.GET_MAX_OFFSET: components.offsets.max_offset,
        RequestCode.GET_MIN_OFFSET: components.offsets.min_offset,
        RequestCode.GET_EARLIEST_MSG_STORETIME: components.offsets.earliest_time,
        RequestCode.VIEW_MESSAGE_BY_ID: messages.by_id,
        RequestCode.HEART_BEAT: heartbeats.heartbeat,
        RequestCode.UNREGISTER_CLIENT: heartbeats.unregister,
        RequestCode.END_TRANSACTION: components.transactions.ends.end_transaction,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.members.consumer_list,
        RequestCode.LOCK_BATCH_MQ: clients.locking.lock,
        RequestCode.UNLOCK_BATCH_MQ: clients.locking.unlock,
        RequestCode.GET_ALL_CONSUMER_OFFSET: components.offsets.all_committed,
        RequestCode.GET_ALL_DELAY_OFFSET: components.offsets.all_delayed,
        RequestCode.CHECK_CLIENT_CONFIG: heartbeats.check,
        RequestCode.GET_TIMER_CHECK_POINT: components.recalls.check_point,
        RequestCode.GET_TIMER_METRICS: components.recalls.metrics,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: components.topics_and_groups.put_group,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: components.catalog.groups,
        RequestCode.GET_TOPIC_STATS_INFO: components.progress.topic,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: connections.of_consumers,
        RequestCode.GET_PRODUCER_CONNECTION_LIST: connections.of_producers,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: components.topics_and_groups.delete_group,
        RequestCode.GET_CONSUME_STATS: components.progress.group,
        RequestCode.DELETE_TOPIC_IN_BROKER: components.topics_and_groups.delete_topic,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: components.offset_resets.reset,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: calls.consumer_status,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: components.topics_and_groups.put_groups,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: connections.consumers_of,
        RequestCode.QUERY_CONSUME_TIME_SPAN: components.progress.time_span,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: components.catalog.system_topics,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: components.topics_and_groups.clean_queues,
        RequestCode.GET_CONSUMER_RUNNING_INFO: calls.running_info,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: calls.consume_directly,
        RequestCode.CLONE_GROUP_OFFSET: components.offsets.clone,
        RequestCode.VIEW_BROKER_STATS_DATA: components.statistics.view,
        RequestCode.CLEAN_UNUSED_TOPIC: components.topics_and_groups.clean_unused,
        RequestCode.GET_BROKER_CONSUME_STATS: components.progress.all_groups,
        RequestCode.QUERY_CONSUME_QUEUE: components.progress.consume_queue,
        RequestCode.RESUME_CHECK_HALF_MESSAGE: components.transactions.checks.resume,
        RequestCode.SEND_REPLY_MESSAGE: clients.replies.reply,
        RequestCode.SEND_REPLY_MESSAGE_V2: clients.replies.short_reply,
        RequestCode.GET_ALL_PRODUCER_INFO: connections.all_producers,
        RequestCode.DELETE_EXPIRED_COMMITLOG: components.topics_and_groups.clean,
        RequestCode.QUERY_TOPICS_BY_CONSUMER: connections.topics_of,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: connections.subscription,
        RequestCode.GET_TOPIC_CONFIG: components.catalog.topic,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: components.catalog.group,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: components.topics_and_groups.forbid,
        RequestCode.RECALL_MESSAGE: components.recalls.recall,
        RequestCode.QUERY_ASSIGNMENT: clients.assignments.query,
        RequestCode.SET_MESSAGE_REQUEST_MODE: clients.assignments.set_mode,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: clients.assignments.all_modes,
        RequestCode.CHANGE_BROKER_STATE: components.own_machine.guarded(components.states.change),
        RequestCode.RELOAD_CONFIG: components.own_machine.guarded(components.settings.reload),
        **components.access.handlers(),
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
            pb.EndTransactionRequest, pb.EndTransactionResponse, components.transactions.ends.end_over_grpc
        ),
        "SyncLiteSubscription": rpc(
            pb.SyncLiteSubscriptionRequest, pb.SyncLiteSubscriptionResponse, lite_topics.sync_subscription
        ),
        "RecallMessage": rpc(pb.RecallMessageRequest, pb.RecallMessageResponse, components.recalls.recall_message),
        "QueryOffset": rpc(pb.QueryOffsetRequest, pb.QueryOffsetResponse, components.grpc_offsets.query_offset),
        "GetOffset": rpc(pb.GetOffsetRequest, pb.GetOffsetResponse, components.grpc_offsets.get_offset),
        KEEP_WRITE_LAYOUT: components.layouts.answer,
        DESCRIBE_BROKER: components.description.answer,
        "Admin/ChangeLogLevel": log_level.change_log_level,
    }
    masters = {code: _for_masters(remoting[code], changes_refused) for code in _CHANGING}
    masters |= {code: _of_the_log(remoting[code], reads_refused) for code in _OF_THE_LOG}
    answered: dict[int | str, Callable[[Request], Response]] = {
        int(code): audit.audited(code, _remoting.guarded(handler)) for code, handler in {**remoting, **masters}.items()
    }
    return {**answered, **grpc}
