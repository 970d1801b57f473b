"""
The name server over sockets: its table of requests and its life cycle.

What is known is in `route_info` and `kv_config`; this file translates requests for them and watches the time.
"""

import logging
from datetime import timedelta
from pathlib import Path

from ferromq import _json, _remoting
from ferromq._codes import RequestCode, ResponseCode
from ferromq._ferromq import Request, Server
from ferromq._fork import Owner
from ferromq._remoting import Answer, Handler, failure, flag, integer, required, success
from ferromq._time import Clock, Timer
from ferromq.config import NameServerConfig
from ferromq.namesrv import registration
from ferromq.namesrv.kv_config import ORDER_NAMESPACE, KvConfig
from ferromq.namesrv.route_info import BrokerAddress, Registration, RouteInfoManager
from ferromq.route import DataVersion

_log = logging.getLogger("ferromq.namesrv")
_MILLISECOND = timedelta(milliseconds=1)


class NamesrvController:
    """A running name server; ready when the constructor returns. Raises `OSError` where the address is taken."""

    def __init__(self, config: NameServerConfig | None = None, *, clock: Clock | None = None) -> None:
        config = config or NameServerConfig()
        self._owner = Owner("name server")
        self._clock = clock or Clock.system()
        self.routes = RouteInfoManager(config.lease // _MILLISECOND)
        self.kv_config = KvConfig(Path(config.kv_config_path) if config.kv_config_path else None)
        self._server = Server(self._clock.raw, handler_threads=config.handler_threads)
        for code, handler in self._table().items():
            self._server.register(code, _remoting.guarded(handler))
        self._server.on_close(self.routes.close_connection)
        host, _, _ = config.listen.rpartition(":")
        self.address = f"{host}:{self._server.listen_remoting(config.listen)}"
        """`host:port` of the listener."""
        self._timer = Timer("ferromq-namesrv", self._clock, config.scan_interval, self.expire)
        self._timer.start()
        _log.info("name server ready address=%s", self.address)

    def expire(self, now: int) -> None:
        """Forget the brokers whose lease ended before *now* (milliseconds), and close their connections."""
        for connection in self.routes.expire(now):
            self._server.close_connection(connection)

    def close(self) -> None:
        """Stop; what was registered is forgotten, the key-value file stays. Idempotent; nothing in a forked child."""
        if self._owner.is_here:
            self._timer.stop()
            self._server.stop(timeout=0.5)

    def _table(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.QUERY_DATA_VERSION: self._query_version,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
        }

    def _put_kv(self, request: Request) -> Answer:
        fields = request.fields
        self.kv_config.put(required(fields, "namespace"), required(fields, "key"), required(fields, "value"))
        return success()

    def _get_kv(self, request: Request) -> Answer:
        namespace, key = required(request.fields, "namespace"), required(request.fields, "key")
        value = self.kv_config.get(namespace, key)
        if value is None:
            return failure(ResponseCode.QUERY_NOT_FOUND, f"there is no value for {key} in the namespace {namespace}")
        return success({"value": value})

    def _delete_kv(self, request: Request) -> Answer:
        self.kv_config.delete(required(request.fields, "namespace"), required(request.fields, "key"))
        return success()

    def _list_kv(self, request: Request) -> Answer:
        namespace = required(request.fields, "namespace")
        table = self.kv_config.namespace(namespace)
        if not table:
            return failure(ResponseCode.QUERY_NOT_FOUND, f"there is nothing in the namespace {namespace}")
        return success(body=_json.dumps({"table": table}))

    def _register(self, request: Request) -> Answer:
        fields = request.fields
        if not registration.is_intact(request.body, integer(fields, "bodyCrc32", 0)):
            return failure(ResponseCode.SYSTEM_ERROR, "the CRC32 of the body does not match; register again")
        broker = _registration(fields)
        try:
            topics = registration.decode(request.body, broker.broker_name, compressed=flag(fields, "compressed"))
        except ValueError as error:
            raise _remoting.BadRequest(str(error)) from error
        answer = self.routes.register(broker, topics, self._clock.now_ms(), request.connection)
        if answer is None:
            return failure(ResponseCode.SYSTEM_ERROR, "registration refused; register with all topics first")
        header = {"haServerAddr": answer.ha_address, "masterAddr": answer.master_address}
        return success({name: value for name, value in header.items() if value is not None})

    def _unregister(self, request: Request) -> Answer:
        self.routes.unregister(_registration(request.fields))
        return success()

    def _route(self, request: Request) -> Answer:
        topic = required(request.fields, "topic")
        route = self.routes.lookup(topic)
        if route is None:
            return failure(
                ResponseCode.TOPIC_NOT_EXIST,
                f"no registered broker has the topic {topic}: create it (ferromq.Admin(...).create_topic({topic!r}), "
                f"or mqadmin updateTopic -c CLUSTER -t {topic}), or let a broker create topics on first use",
            )
        return success(body=route.with_order(self.kv_config.get(ORDER_NAMESPACE, topic)).encode())

    def _cluster_info(self, _request: Request) -> Answer:
        return success(body=_json.dumps(self.routes.cluster_info()))

    def _topics(self, _request: Request) -> Answer:
        return success(body=_json.dumps({"topicList": self.routes.topics()}))

    def _delete_topic(self, request: Request) -> Answer:
        topic = required(request.fields, "topic")
        self.routes.delete_topic(topic, request.fields.get("clusterName") or None)
        _log.info("topic deleted topic=%s peer=%s", topic, request.peer)
        return success()

    def _query_version(self, request: Request) -> Answer:
        key = BrokerAddress(required(request.fields, "clusterName"), required(request.fields, "brokerAddr"))
        try:
            version = DataVersion.from_json(_json.loads_object(request.body or b"{}"))
        except (ValueError, TypeError) as error:
            raise _remoting.BadRequest(f"the body is no data version: {error}") from error
        known = self.routes.version(key)
        self.routes.renew(key, self._clock.now_ms())
        body = _json.dumps(known.to_json()) if known else b""
        return success({"changed": "false" if known == version else "true"}, body)

    def _heartbeat(self, request: Request) -> Answer:
        key = BrokerAddress(required(request.fields, "clusterName"), required(request.fields, "brokerAddr"))
        self.routes.renew(key, self._clock.now_ms())
        return success()


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
