"""
The handlers of a name server's request codes.

They translate the protocol for `route_info`, `kv_config` and `settings`, which decide.
"""

import logging
from dataclasses import replace
from datetime import timedelta

from ferromq._ferromq import Request, Server
from ferromq.access.own_machine import reload_answer
from ferromq.config.file_edit import ProtectedKey
from ferromq.errors import ConfigError
from ferromq.namesrv import registration_body
from ferromq.namesrv.kv_config import KvConfig
from ferromq.namesrv.route_info import RouteInfoManager
from ferromq.namesrv.route_types import BrokerAddress, Registration
from ferromq.namesrv.settings import Settings
from ferromq.process.clock import Clock
from ferromq.protocol import java_json, naming, remoting
from ferromq.protocol.broker_removal import GONE
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.namespaces import GRPC_NAMESPACE, ORDER_NAMESPACE
from ferromq.protocol.order_configuration import all_parts, canonical, parts
from ferromq.protocol.registration_extension import IS_CHANGE, TAKES_CHANGES
from ferromq.protocol.remoting import Answer, Handler, failure, flag, integer, required, success
from ferromq.protocol.route import DataVersion, TopicRoute

_log = logging.getLogger("ferromq.namesrv")

_MILLISECOND = timedelta(milliseconds=1)
_FIRST_STANDARD_VERSION = 401
"""RocketMQ's number of 4.9.4."""
_UNIT = 1
_UNIT_SUBSCRIPTION = 2
_LISTS_ARE_OFF = "this list is switched off by the name server's option {}"


class Requests:
    """The handlers of a name server."""

    def __init__(
        self, server: Server, routes: RouteInfoManager, kv_config: KvConfig, settings: Settings, clock: Clock
    ) -> None:
        self._server = server
        self._routes = routes
        self._kv_config = kv_config
        self._settings = settings
        self._clock = clock
        self._started_ms = clock.now_ms()

    def table(self) -> dict[RequestCode, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_subscription_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_subscription_only_topics,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_settings,
            RequestCode.GET_NAMESRV_CONFIG: self._show_settings,
            RequestCode.QUERY_DATA_VERSION: self._query_version,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._members,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
        }

    def is_routine(self, request: Request) -> bool:
        """Return whether a broker sends this at each start or stop: its first gRPC address, or that it leaves."""
        fields = request.fields
        if request.route == RequestCode.UNREGISTER_BROKER:
            leaving = BrokerAddress(fields.get("clusterName", ""), fields.get("brokerAddr", ""))
            return leaving in self._routes.brokers_of(request.connection)
        if request.route == RequestCode.PUT_KV_CONFIG and fields.get("namespace") == GRPC_NAMESPACE:
            value = fields.get("value")
            return value != GONE and self._kv_config.get(GRPC_NAMESPACE, fields.get("key", "")) in {None, GONE, value}
        return False

    def _put_kv(self, request: Request) -> Answer:
        fields = request.fields
        namespace, key, value = required(fields, "namespace"), required(fields, "key"), required(fields, "value")
        # RocketMQ's tools write brokers in any order, but its clients choose queues by position.
        try:
            self._kv_config.put(namespace, key, canonical(value) if namespace == ORDER_NAMESPACE else value)
        except OSError as error:
            return _not_written(error)
        self._order_changed(namespace, key)
        return success()

    def _get_kv(self, request: Request) -> Answer:
        namespace, key = required(request.fields, "namespace"), required(request.fields, "key")
        value = self._kv_config.get(namespace, key)
        if value is None:
            return failure(ResponseCode.QUERY_NOT_FOUND, f"there is no value for {key} in the namespace {namespace}")
        return success({"value": value})

    def _delete_kv(self, request: Request) -> Answer:
        namespace, key = required(request.fields, "namespace"), required(request.fields, "key")
        try:
            self._kv_config.delete(namespace, key)
        except OSError as error:
            return _not_written(error)
        self._order_changed(namespace, key)
        return success()

    def _order_changed(self, namespace: str, key: str) -> None:
        if namespace == ORDER_NAMESPACE:
            self._server.drop_routes([key])

    def _list_kv(self, request: Request) -> Answer:
        namespace = required(request.fields, "namespace")
        table = self._kv_config.namespace(namespace)
        if table is None:
            return failure(ResponseCode.QUERY_NOT_FOUND, f"there is no namespace {namespace}")
        return success(body=java_json.dumps({"table": table}))

    def _register(self, request: Request) -> Answer:
        fields = request.fields
        if not registration_body.is_intact(request.body, integer(fields, "bodyCrc32", 0)):
            return failure(ResponseCode.SYSTEM_ERROR, "the CRC32 of the body does not match; register again")
        broker = _registration(fields)
        try:
            topics = registration_body.decode(request.body, broker.broker_name, compressed=flag(fields, "compressed"))
            topics = replace(topics, is_change=flag(fields, IS_CHANGE))
        except ValueError as error:
            raise remoting.BadRequest(str(error)) from error
        answer = self._routes.register(broker, topics, self._clock.now_ms(), request.connection)
        if answer is None:
            return failure(ResponseCode.SYSTEM_ERROR, "registration refused; register with all topics first")
        header = {"haServerAddr": answer.ha_address, "masterAddr": answer.master_address, TAKES_CHANGES: "true"}
        only = topics.queues if topics.is_change else None
        order = self._kv_config.namespace(ORDER_NAMESPACE, only) if self._settings.config.return_order else None
        body = b"" if order is None else java_json.dumps({"table": order})
        return success({name: value for name, value in header.items() if value}, body)

    def _unregister(self, request: Request) -> Answer:
        self._routes.unregister(_registration(request.fields))
        return success()

    def waits_for_brokers(self) -> bool:
        """Whether routes are refused, so that all brokers can register first."""
        config = self._settings.config
        end = self._started_ms + config.service_wait // _MILLISECOND
        return config.wait_for_service and self._clock.now_ms() < end

    def _route(self, request: Request) -> Answer:
        topic = required(request.fields, "topic")
        config = self._settings.config
        if self.waits_for_brokers():
            remark = f"name server not ready: it waits {config.service_wait} for brokers after its start; try again"
            return failure(ResponseCode.SYSTEM_ERROR, remark)
        # Read before the route: if the routes change meanwhile, the server ignores the put below.
        generation = self._server.routes_generation()
        route = self._routes.lookup(topic)
        if route is None:
            return failure(ResponseCode.TOPIC_NOT_EXIST, _unknown_topic(topic))
        if config.order_messages:
            order = self._kv_config.get(ORDER_NAMESPACE, topic)
            # If no broker has queues in it, RocketMQ's clients would find no queue at all.
            is_drained = bool(all_parts(order)) and not parts(order)
            route = route.with_order(None if is_drained else order or None)
        self._server.put_route(topic, generation, route.encode(), route.encode_legacy())
        zone = request.fields.get("__ZONE_NAME", "").strip()
        if zone and flag(request.fields, "__ZONE_MODE"):
            route = route.in_zone(zone)
        return success(body=route.encode() if _reads_standard_json(request) else route.encode_legacy())

    def _cluster_info(self, _request: Request) -> Answer:
        return success(body=java_json.dumps(self._routes.cluster_info()))

    def _wipe_write_permission(self, request: Request) -> Answer:
        name = required(request.fields, "brokerName")
        count = self._routes.wipe_write_permission(name)
        _log.info("write permission removed broker=%s topics=%d peer=%s", name, count, request.peer)
        return success({"wipeTopicCount": str(count)})

    def _add_write_permission(self, request: Request) -> Answer:
        name = required(request.fields, "brokerName")
        count = self._routes.add_write_permission(name)
        _log.info("write permission added broker=%s topics=%d peer=%s", name, count, request.peer)
        return success({"addTopicCount": str(count)})

    def _topics(self, _request: Request) -> Answer:
        if not self._settings.config.list_all_topics:
            return failure(ResponseCode.SYSTEM_ERROR, _LISTS_ARE_OFF.format("list_all_topics (enableAllTopicList)"))
        return _topic_list(self._routes.topics())

    def _delete_topic(self, request: Request) -> Answer:
        topic = required(request.fields, "topic")
        self._routes.delete_topic(topic, request.fields.get("clusterName") or None)
        _log.info("topic deleted topic=%s peer=%s", topic, request.peer)
        return success()

    def _register_topic(self, request: Request) -> Answer:
        topic = required(request.fields, "topic")
        try:
            queues = TopicRoute.decode(request.body or b"{}").queues
        except ValueError as error:
            raise remoting.BadRequest(f"the body has no queues: {error}") from error
        try:
            self._routes.register_topic(topic, queues)
        except KeyError as error:
            remark = f"the broker {error.args[0]} is not registered; register it with all its topics first"
            return failure(ResponseCode.SYSTEM_ERROR, remark)
        return success()

    def _topics_by_cluster(self, request: Request) -> Answer:
        cluster = required(request.fields, "cluster")
        return self._listed(self._routes.topics(cluster=cluster))

    def _system_topics(self, _request: Request) -> Answer:
        names, address = self._routes.system_topics()
        return _topic_list(names, address)

    def _unit_topics(self, _request: Request) -> Answer:
        return self._listed(self._routes.topics_flagged(lambda flags: bool(flags & _UNIT)))

    def _unit_subscription_topics(self, _request: Request) -> Answer:
        return self._listed(self._routes.topics_flagged(lambda flags: bool(flags & _UNIT_SUBSCRIPTION)))

    def _unit_subscription_only_topics(self, _request: Request) -> Answer:
        both = _UNIT | _UNIT_SUBSCRIPTION
        return self._listed(self._routes.topics_flagged(lambda flags: flags & both == _UNIT_SUBSCRIPTION))

    def _listed(self, topics: list[str]) -> Answer:
        if not self._settings.config.list_topics:
            return failure(ResponseCode.SYSTEM_ERROR, _LISTS_ARE_OFF.format("list_topics (enableTopicList)"))
        return _topic_list(topics)

    def _update_settings(self, request: Request) -> Answer:
        try:
            self._settings.update(request.body.decode())
        except ProtectedKey as error:
            return failure(ResponseCode.NO_PERMISSION, str(error))
        except (ConfigError, UnicodeDecodeError) as error:
            return failure(ResponseCode.INVALID_PARAMETER, str(error))
        except OSError as error:
            return _not_written(error)
        return success()

    def _show_settings(self, _request: Request) -> Answer:
        return success(body=self._settings.text().encode())

    def reload(self, request: Request) -> Answer:
        """Answer request 9876002."""
        return reload_answer(request, self._settings, _log)

    def _query_version(self, request: Request) -> Answer:
        key = _address(request)
        try:
            version = DataVersion.from_json(java_json.loads_object(request.body or b"{}"))
        except (ValueError, TypeError, OverflowError) as error:
            raise remoting.BadRequest(f"the body is not a data version: {error}") from error
        known = self._routes.version(key)
        self._routes.renew(key, self._clock.now_ms())
        body = java_json.dumps(known.to_json()) if known else b""
        return success({"changed": "false" if known == version else "true"}, body)

    def _members(self, request: Request) -> Answer:
        cluster, name = required(request.fields, "clusterName"), required(request.fields, "brokerName")
        addresses = {str(broker_id): address for broker_id, address in sorted(self._routes.members(name).items())}
        group = {"brokerAddrs": addresses, "brokerName": name, "cluster": cluster}
        return success(body=java_json.dumps({"brokerMemberGroup": group}))

    def _heartbeat(self, request: Request) -> Answer:
        self._routes.renew(_address(request), self._clock.now_ms())
        return success()


def _address(request: Request) -> BrokerAddress:
    return BrokerAddress(required(request.fields, "clusterName"), required(request.fields, "brokerAddr"))


def _reads_standard_json(request: Request) -> bool:
    return request.version >= _FIRST_STANDARD_VERSION or flag(request.fields, "acceptStandardJsonOnly")


def _topic_list(topics: list[str], broker_address: str | None = None) -> Answer:
    value = {"topicList": topics} if broker_address is None else {"brokerAddr": broker_address, "topicList": topics}
    return success(body=java_json.dumps(value))


def _registration(fields: dict[str, str]) -> Registration:
    return Registration(
        cluster=required(fields, "clusterName"),
        address=required(fields, "brokerAddr"),
        broker_name=required(fields, "brokerName"),
        broker_id=integer(fields, "brokerId"),
        ha_address=fields.get("haServerAddr", ""),
        zone=fields.get("__ZONE_NAME"),
        lease_ms=integer(fields, "heartbeatTimeoutMillis", 0) or None,
        enable_acting_master=flag(fields, "enableActingMaster"),
    )


def _unknown_topic(topic: str) -> str:
    """Return how to create an unknown topic, for an error text."""
    if naming.is_system_topic(topic):
        return (
            f"no registered broker has the system topic {topic}, which updateTopic cannot create: a broker creates it "
            "when a client first writes to it, if topics are created on first use, or at its start "
            f"(trace_topic; traceTopicEnable=true, msgTraceTopicName={topic})"
        )
    return (
        f"no registered broker has the topic {topic}: create it (ferromq.Admin(...).create_topic({topic!r}), "
        f"or mqadmin updateTopic -c CLUSTER -t {topic}), or let a broker create topics on first use"
    )


def _not_written(error: OSError) -> Answer:
    text = f"nothing changed: the file cannot be written: {error}"
    _log.error("%s", text)
    return failure(ResponseCode.SYSTEM_ERROR, text)
