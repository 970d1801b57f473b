"""
The table of contents of the control plane: which function answers which cold request.

Hot requests are answered in Rust; naming one here is a `ValueError` at start.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ferromq import _remoting
from ferromq._codes import RequestCode
from ferromq._ferromq import Request, Response
from ferromq._proto import messages as pb
from ferromq.broker._grpc import rpc
from ferromq.broker.admin import Administration
from ferromq.broker.clients import Clients
from ferromq.broker.query import Queries
from ferromq.broker.routes import Routes


@dataclass(frozen=True, slots=True)
class Rooms:
    """The parts of the control plane that answer."""

    admin: Administration
    clients: Clients
    queries: Queries
    routes: Routes


def table(rooms: Rooms) -> Mapping[int | str, Callable[[Request], Response]]:
    """Return the function for each remoting code and each gRPC method."""
    clients, routes, queries = rooms.clients, rooms.routes, rooms.queries
    remoting = {
        RequestCode.QUERY_MESSAGE: queries.by_key,
        RequestCode.VIEW_MESSAGE_BY_ID: queries.by_id,
        RequestCode.UPDATE_AND_CREATE_TOPIC: rooms.admin.put_topic,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: rooms.admin.put_group,
        RequestCode.DELETE_TOPIC_IN_BROKER: rooms.admin.delete_topic,
        RequestCode.CLEAN_UNUSED_TOPIC: rooms.admin.clean_unused,
        RequestCode.DELETE_EXPIRED_COMMITLOG: rooms.admin.clean,
    }
    grpc: dict[int | str, Callable[[Request], Response]] = {
        "QueryRoute": rpc(pb.QueryRouteRequest, pb.QueryRouteResponse, routes.query_route),
        "QueryAssignment": rpc(pb.QueryAssignmentRequest, pb.QueryAssignmentResponse, routes.query_assignment),
        "Heartbeat": rpc(pb.HeartbeatRequest, pb.HeartbeatResponse, clients.heartbeat),
        "NotifyClientTermination": rpc(
            pb.NotifyClientTerminationRequest, pb.NotifyClientTerminationResponse, clients.notify_termination
        ),
        "QueryOffset": rpc(pb.QueryOffsetRequest, pb.QueryOffsetResponse, queries.query_offset),
        "GetOffset": rpc(pb.GetOffsetRequest, pb.GetOffsetResponse, queries.get_offset),
    }
    return {**{int(code): _remoting.guarded(handler) for code, handler in remoting.items()}, **grpc}
