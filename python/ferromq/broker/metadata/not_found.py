"""Error texts for topics and groups that do not exist; each says how to create one."""


def missing_topic(name: str) -> str:
    """Return the error for an administrator's request about a missing topic."""
    return f"the topic {name} does not exist on this broker; topicRoute says where it is, updateTopic creates it"


def missing_group(name: str) -> str:
    """Return the error for an administrator's request about a missing group."""
    return f"the consumer group {name} does not exist on this broker; updateSubGroup creates it"


def unknown_topic(name: str) -> str:
    """Return the error for a client's request about a topic that first use may not create."""
    return (
        f"the topic {name} does not exist, and topics are not created on first use here (auto_create_topics or "
        f"grpc_creates_topics is off, or compat is rocketmq); "
        f"create it: ferromq.Admin(...).create_topic({name!r}), or mqadmin updateTopic -c CLUSTER -t {name}"
    )


def unknown_group(name: str) -> str:
    """Return the error for a client's request about a group that first use may not create."""
    return (
        f"the consumer group {name} does not exist, and groups are not created on first use here "
        f"(auto_create_groups is off); create it: ferromq.Admin(...).create_group({name!r}), "
        f"or mqadmin updateSubGroup -c CLUSTER -g {name}"
    )
