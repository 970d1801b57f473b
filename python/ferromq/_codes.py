"""The request and response codes of the remoting protocol that the control plane uses; the numbers are RocketMQ's."""

from enum import IntEnum


class RequestCode(IntEnum):
    """What a remoting request asks for."""

    QUERY_MESSAGE = 12
    UPDATE_AND_CREATE_TOPIC = 17
    VIEW_MESSAGE_BY_ID = 33
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_KVLIST_BY_NAMESPACE = 219
    CLEAN_UNUSED_TOPIC = 316
    QUERY_DATA_VERSION = 322
    DELETE_EXPIRED_COMMITLOG = 329
    BROKER_HEARTBEAT = 904


class ResponseCode(IntEnum):
    """How a remoting request ended."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    TOPIC_NOT_EXIST = 17
    QUERY_NOT_FOUND = 22
    INVALID_PARAMETER = 29
