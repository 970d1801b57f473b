//! What each request needs: resources and actions, as in RocketMQ's `DefaultAuthorizationContextBuilder` and in the
//! annotations of its request headers.
//!
//! RocketMQ lets some requests pass that have no annotation. Here each of them has an entry, too. A request without one is
//! for super users alone.

use ferromq_protocol::record::names::RETRY_PREFIX;
use serde_json::Value;

use super::{AccessRefused, Actions, Kind};
use crate::{
    protobuf::{Fields, Malformed},
    remoting::{
        RemotingCommand,
        codes::{framed, request},
    },
};

/// Requests about lite topics.
const LITE_FIRST: i32 = 200_070;
const LITE_LAST: i32 = 200_079;

const PUB: Actions = Actions::PUB;
const SUB: Actions = Actions::SUB;
const GET: Actions = Actions::GET;
const UPDATE: Actions = Actions::UPDATE;
const CREATE: Actions = Actions::CREATE;
const DELETE: Actions = Actions::DELETE;
const READ: Actions = SUB.or(GET);
const ROUTED: Actions = PUB.or(READ);
const COMMIT: Actions = SUB.or(UPDATE);
const CATALOG: Actions = GET.or(Actions::LIST);

/// Checks one need: kind and name of a resource, and actions of which one must be allowed.
pub(super) type Check<'a> = &'a mut dyn FnMut(Kind, &str, Actions) -> Result<(), AccessRefused>;

/// A need of a remoting request.
pub(super) enum Need {
    /// The topic in a field.
    Topic(&'static str, Actions),
    /// The topic in a field, if there is one.
    GivenTopic(&'static str, Actions),
    /// The topics in a field, separated by semicolons, if there are any.
    Topics(&'static str, Actions),
    /// The topic in any of these fields: of a request that has several, all count.
    EachTopic(&'static [&'static str], Actions),
    /// The consumer group in a field.
    Group(&'static str, Actions),
    /// The consumer group in a field, if there is one.
    GivenGroup(&'static str, Actions),
    /// The cluster.
    Cluster(Actions),
    /// Names in the body, which is JSON: the members of this path, through lists. `a|b` is a member with two names.
    Body(Kind, &'static [&'static str], Actions),
}

use Need::{Body, Cluster, EachTopic, GivenGroup, GivenTopic, Group, Topic, Topics};

/// The names of the topic of a send, in its two forms.
const SENT: &[Need] = &[EachTopic(&["b", "topic"], PUB)];
const READ_BY_GROUP: &[Need] = &[Topic("topic", SUB), Group("consumerGroup", SUB)];

/// What a remoting request needs; `None` for one that is not listed. An empty list: a signature alone.
#[allow(clippy::too_many_lines)] // one table
pub(super) fn of_code(code: i32) -> Option<&'static [Need]> {
    Some(match code {
        request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => SENT,
        request::PULL_MESSAGE
        | request::LITE_PULL_MESSAGE
        | request::POP_MESSAGE
        | request::PEEK_MESSAGE
        | request::NOTIFICATION
        | request::ACK_MESSAGE
        | request::CHANGE_MESSAGE_INVISIBLETIME => READ_BY_GROUP,
        request::POLLING_INFO | request::QUERY_CONSUMER_OFFSET => {
            &[Topic("topic", READ), Group("consumerGroup", READ)]
        }
        request::BATCH_ACK_MESSAGE => &[
            Body(Kind::Topic, &["acks", "t|topic"], SUB),
            Body(Kind::Group, &["acks", "c|consumerGroup"], SUB),
        ],
        request::UPDATE_CONSUMER_OFFSET => &[Topic("topic", COMMIT), Group("consumerGroup", COMMIT)],
        request::CONSUMER_SEND_MSG_BACK => &[Group("group", SUB)],
        // The broker may store the reply in the topic.
        request::SEND_REPLY_MESSAGE | request::SEND_REPLY_MESSAGE_V2 => SENT,
        request::RECALL_MESSAGE => &[Topic("topic", PUB)],
        // Clients before 5.0 do not name the topic.
        request::END_TRANSACTION => &[GivenTopic("topic", PUB)],
        request::HEART_BEAT => &[
            Body(Kind::Group, &["consumerDataSet", "groupName"], SUB),
            Body(Kind::Topic, &["consumerDataSet", "subscriptionDataSet", "topic"], SUB),
        ],
        request::CHECK_CLIENT_CONFIG => &[Body(Kind::Group, &["group"], SUB)],
        request::UNREGISTER_CLIENT => &[GivenGroup("consumerGroup", SUB)],
        request::GET_CONSUMER_LIST_BY_GROUP => &[Group("consumerGroup", READ)],
        request::LOCK_BATCH_MQ | request::UNLOCK_BATCH_MQ => {
            &[Body(Kind::Group, &["consumerGroup"], SUB), Body(Kind::Topic, &["mqSet", "topic"], SUB)]
        }
        request::QUERY_ASSIGNMENT => {
            &[Body(Kind::Topic, &["topic"], SUB), Body(Kind::Group, &["consumerGroup"], SUB)]
        }
        request::SET_MESSAGE_REQUEST_MODE => {
            &[Body(Kind::Topic, &["topic"], UPDATE), Body(Kind::Group, &["consumerGroup"], UPDATE)]
        }
        request::QUERY_MESSAGE => &[Topic("topic", READ)],
        request::SEARCH_OFFSET_BY_TIMESTAMP
        | request::GET_MAX_OFFSET
        | request::GET_MIN_OFFSET
        | request::GET_EARLIEST_MSG_STORETIME
        | request::GET_TOPIC_STATS_INFO
        | request::GET_TOPIC_CONFIG
        | request::QUERY_TOPIC_CONSUME_BY_WHO
        | request::VIEW_MESSAGE_BY_ID => &[Topic("topic", GET)],
        request::UPDATE_AND_CREATE_TOPIC => &[Topic("topic", CREATE)],
        request::UPDATE_AND_CREATE_TOPIC_LIST => {
            &[Body(Kind::Topic, &["topicConfigList", "topicName"], CREATE)]
        }
        request::DELETE_TOPIC_IN_BROKER => &[Topic("topic", DELETE)],
        request::RESUME_CHECK_HALF_MESSAGE => &[Topic("topic", UPDATE)],
        request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => &[Body(Kind::Group, &["groupName"], CREATE)],
        request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST => {
            &[Body(Kind::Group, &["groupConfigList", "groupName"], CREATE)]
        }
        request::DELETE_SUBSCRIPTIONGROUP => &[Group("groupName", DELETE)],
        request::UPDATE_AND_GET_GROUP_FORBIDDEN => &[Topic("topic", UPDATE), Group("group", UPDATE)],
        request::GET_CONSUMER_CONNECTION_LIST | request::GET_CONSUMER_RUNNING_INFO => {
            &[Group("consumerGroup", GET)]
        }
        request::GET_CONSUME_STATS => {
            &[Group("consumerGroup", GET), GivenTopic("topic", GET), Topics("topicList", GET)]
        }
        request::GET_SUBSCRIPTIONGROUP_CONFIG | request::QUERY_TOPICS_BY_CONSUMER => &[Group("group", GET)],
        request::QUERY_SUBSCRIPTION_BY_CONSUMER
        | request::QUERY_CONSUME_TIME_SPAN
        | request::INVOKE_BROKER_TO_GET_CONSUMER_STATUS => &[Topic("topic", GET), Group("group", GET)],
        request::QUERY_CONSUME_QUEUE => &[Topic("topic", GET), GivenGroup("consumerGroup", GET)],
        request::INVOKE_BROKER_TO_RESET_OFFSET => &[Topic("topic", UPDATE), Group("group", UPDATE)],
        request::CLONE_GROUP_OFFSET => {
            &[Group("srcGroup", GET), Group("destGroup", UPDATE), GivenTopic("topic", UPDATE)]
        }
        request::CONSUME_MESSAGE_DIRECTLY => &[Group("consumerGroup", SUB), GivenTopic("topic", SUB)],
        request::GET_ALL_TOPIC_CONFIG
        | request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        | request::GET_SYSTEM_TOPIC_LIST_FROM_BROKER
        | request::GET_ALL_PRODUCER_INFO
        | request::GET_PRODUCER_CONNECTION_LIST
        | request::GET_ALL_CONSUMER_OFFSET
        | request::GET_ALL_DELAY_OFFSET
        | request::GET_ALL_MESSAGE_REQUEST_MODE
        | request::GET_TIMER_CHECK_POINT
        | request::GET_TIMER_METRICS
        | request::GET_BROKER_CONFIG
        | request::GET_BROKER_RUNTIME_INFO
        | request::GET_BROKER_CONSUME_STATS
        | request::VIEW_BROKER_STATS_DATA => &[Cluster(CATALOG)],
        // Of name servers.
        request::GET_ROUTEINFO_BY_TOPIC => &[Topic("topic", ROUTED)],
        request::GET_KV_CONFIG
        | request::GET_KVLIST_BY_NAMESPACE
        | request::GET_BROKER_CLUSTER_INFO
        | request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        | request::GET_TOPICS_BY_CLUSTER
        | request::GET_SYSTEM_TOPIC_LIST_FROM_NS
        | request::GET_UNIT_TOPIC_LIST
        | request::GET_HAS_UNIT_SUB_TOPIC_LIST
        | request::GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST
        | request::GET_NAMESRV_CONFIG
        | request::GET_BROKER_MEMBER_GROUP => &[Cluster(CATALOG)],
        // A query of the version renews the lease of a broker.
        request::REGISTER_BROKER
        | request::UNREGISTER_BROKER
        | request::BROKER_HEARTBEAT
        | request::QUERY_DATA_VERSION
        | request::PUT_KV_CONFIG
        | request::DELETE_KV_CONFIG
        | request::WIPE_WRITE_PERM_OF_BROKER
        | request::ADD_WRITE_PERM_OF_BROKER
        | request::REGISTER_TOPIC_IN_NAMESRV
        | request::DELETE_TOPIC_IN_NAMESRV
        | request::UPDATE_NAMESRV_CONFIG => &[Cluster(UPDATE)],
        request::UPDATE_BROKER_CONFIG
        | request::RELOAD_CONFIG
        | request::CHANGE_BROKER_STATE
        | request::CLEAN_EXPIRED_CONSUMEQUEUE
        | request::CLEAN_UNUSED_TOPIC
        | request::DELETE_EXPIRED_COMMITLOG
        | request::AUTH_CREATE_USER
        | request::AUTH_UPDATE_USER
        | request::AUTH_DELETE_USER
        | request::AUTH_CREATE_ACL
        | request::AUTH_UPDATE_ACL
        | request::AUTH_DELETE_ACL => &[Cluster(UPDATE)],
        request::AUTH_GET_USER | request::AUTH_LIST_USER | request::AUTH_GET_ACL | request::AUTH_LIST_ACL => {
            &[Cluster(GET)]
        }
        // Lite topics: always refused.
        LITE_FIRST..=LITE_LAST => &[],
        _ => return None,
    })
}

/// Checks the needs of a remoting request.
pub(super) fn check_command(command: &RemotingCommand, check: Check<'_>) -> Result<(), AccessRefused> {
    let Some(needs) = of_code(command.code) else { return check(Kind::Cluster, "", Actions::ALL) };
    let mut body = None;
    for need in needs {
        match *need {
            Topic(field, actions) => topic(command.field(field).unwrap_or(""), actions, check)?,
            GivenTopic(field, actions) => {
                given(command, field).map_or(Ok(()), |name| topic(name, actions, check))?
            }
            Topics(field, actions) => {
                let mut named = command.field(field).unwrap_or("").split(';').filter(|name| !name.is_empty());
                named.try_for_each(|name| topic(name, actions, check))?;
            }
            EachTopic(names, actions) => each_topic(command, names, actions, check)?,
            Group(field, actions) => group(command.field(field).unwrap_or(""), actions, check)?,
            GivenGroup(field, actions) => {
                given(command, field).map_or(Ok(()), |name| group(name, actions, check))?
            }
            Cluster(actions) => check(Kind::Cluster, "", actions)?,
            Body(kind, path, actions) => {
                let body = match &body {
                    Some(body) => body,
                    None => body.insert(json(&command.body)?),
                };
                names(body, path, &mut |name| match kind {
                    Kind::Topic => topic(name, actions, check),
                    _ => group(name, actions, check),
                })?;
            }
        }
    }
    Ok(())
}

fn given<'a>(command: &'a RemotingCommand, field: &str) -> Option<&'a str> {
    command.field(field).filter(|name| !name.trim_ascii().is_empty())
}

fn each_topic(
    command: &RemotingCommand,
    names: &[&str],
    actions: Actions,
    check: Check<'_>,
) -> Result<(), AccessRefused> {
    let mut has_one = false;
    for (_, value) in command.fields.iter().filter(|(name, _)| names.contains(name)) {
        has_one = true;
        // A consumer of an old client sends a message to its own retry topic.
        topic(value, if value.starts_with(RETRY_PREFIX) { SUB } else { actions }, check)?;
    }
    if has_one { Ok(()) } else { topic("", actions, check) }
}

fn topic(name: &str, actions: Actions, check: Check<'_>) -> Result<(), AccessRefused> {
    check(Kind::Topic, name, actions)
}

fn group(name: &str, actions: Actions, check: Check<'_>) -> Result<(), AccessRefused> {
    check(Kind::Group, name.strip_prefix(RETRY_PREFIX).unwrap_or(name), actions)
}

/// A larger body is refused: its values take many times its bytes.
const MAX_JSON: usize = 1 << 20;

fn json(body: &[u8]) -> Result<Value, AccessRefused> {
    if body.len() > MAX_JSON {
        return Err(AccessRefused(format!(
            "the body, which names what the request is about, has {} bytes; it may have {MAX_JSON}",
            body.len()
        )));
    }
    serde_json::from_slice(body).map_err(|error| {
        AccessRefused(format!("the body, which names what the request is about, is no JSON: {error}"))
    })
}

/// Calls `found` with each text at the end of a path through objects and lists; with an empty one where it is missing.
fn names(
    value: &Value,
    path: &[&str],
    found: &mut dyn FnMut(&str) -> Result<(), AccessRefused>,
) -> Result<(), AccessRefused> {
    if let Value::Array(items) = value {
        return items.iter().try_for_each(|item| names(item, path, found));
    }
    let Some((member, rest)) = path.split_first() else {
        return found(value.as_str().unwrap_or(""));
    };
    match member.split('|').find_map(|name| value.get(name)) {
        Some(value) => names(value, rest, found),
        // A list that is missing is empty.
        None if rest.is_empty() => found(""),
        None => Ok(()),
    }
}

/// A need of a gRPC call.
enum CallNeed {
    /// The resource in the field that this path of field numbers leads to; each of them if a field is repeated.
    Name(Kind, &'static [u32], Actions),
    /// As `Name`, if there is one.
    GivenName(Kind, &'static [u32], Actions),
    /// As `GivenName`, for a field of the type string.
    Text(Kind, &'static [u32], Actions),
    /// The member of a message that is JSON.
    Json(Kind, &'static str, Actions),
    /// The cluster.
    Cluster(Actions),
}

const TOPIC_SENT: &[CallNeed] = &[CallNeed::Name(Kind::Topic, &[1], PUB)];
const GROUP_AND_QUEUE: &[CallNeed] =
    &[CallNeed::Name(Kind::Group, &[1], SUB), CallNeed::Name(Kind::Topic, &[2, 1], SUB)];
const GROUP_AND_TOPIC: &[CallNeed] =
    &[CallNeed::Name(Kind::Group, &[1], SUB), CallNeed::Name(Kind::Topic, &[2], SUB)];
/// Needs of a call that is not listed.
const UNLISTED: &[CallNeed] = &[CallNeed::Cluster(Actions::ALL)];

static METHODS: [(&str, &[CallNeed]); 24] = [
    ("SendMessage", &[CallNeed::Name(Kind::Topic, &[1, 1], PUB)]),
    ("ReceiveMessage", GROUP_AND_QUEUE),
    ("AckMessage", GROUP_AND_TOPIC),
    ("AckRecords", &[CallNeed::Text(Kind::Group, &[1], SUB), CallNeed::Text(Kind::Topic, &[2], SUB)]),
    // Readers pull for no group.
    (
        "PullMessage",
        &[CallNeed::GivenName(Kind::Group, &[1], SUB), CallNeed::Name(Kind::Topic, &[2, 1], SUB)],
    ),
    (
        "UpdateOffset",
        &[CallNeed::Name(Kind::Group, &[1], COMMIT), CallNeed::Name(Kind::Topic, &[2, 1], COMMIT)],
    ),
    ("ChangeInvisibleDuration", GROUP_AND_TOPIC),
    ("ForwardMessageToDeadLetterQueue", GROUP_AND_TOPIC),
    ("RecallMessage", TOPIC_SENT),
    ("EndTransaction", TOPIC_SENT),
    // Producers name no group.
    ("Heartbeat", &[CallNeed::GivenName(Kind::Group, &[1], SUB)]),
    ("NotifyClientTermination", &[CallNeed::GivenName(Kind::Group, &[1], SUB)]),
    ("QueryRoute", &[CallNeed::Name(Kind::Topic, &[1], PUB.or(SUB))]),
    ("QueryAssignment", &[CallNeed::Name(Kind::Topic, &[1], SUB), CallNeed::Name(Kind::Group, &[2], SUB)]),
    ("GetOffset", &[CallNeed::Name(Kind::Group, &[1], READ), CallNeed::Name(Kind::Topic, &[2, 1], READ)]),
    ("QueryOffset", &[CallNeed::Name(Kind::Topic, &[1, 1], READ)]),
    (
        super::TELEMETRY,
        &[
            CallNeed::GivenName(Kind::Topic, &[2, 5, 1], PUB),
            CallNeed::GivenName(Kind::Group, &[2, 6, 1], SUB),
            CallNeed::GivenName(Kind::Topic, &[2, 6, 2, 1], SUB),
        ],
    ),
    // Always refused.
    ("SyncLiteSubscription", &[]),
    ("Probe", &[]),
    ("DescribeBroker", &[]),
    ("KeepWriteLayout", &[CallNeed::Json(Kind::Topic, "topic", PUB)]),
    ("Admin/ChangeLogLevel", &[CallNeed::Cluster(UPDATE)]),
    ("AwaitMessages", GROUP_AND_QUEUE),
    ("", UNLISTED),
];

fn entry(name: &str) -> Option<&'static (&'static str, &'static [CallNeed])> {
    METHODS.iter().find(|(known, _)| *known == name)
}

/// What a gRPC method needs; `None` for one that is not listed.
pub(super) fn of_method(name: &str) -> Option<()> {
    entry(name).filter(|(name, _)| !name.is_empty()).map(|_| ())
}

pub(super) fn known_method(name: &str) -> &'static str {
    entry(name).map_or("", |(name, _)| name)
}

/// The method that a framed call names.
pub(crate) fn framed_method(code: i32) -> &'static str {
    match code {
        framed::PROBE => "Probe",
        framed::SEND_MESSAGE => "SendMessage",
        framed::ACK_MESSAGE => "AckMessage",
        framed::ACK_RECORDS => "AckRecords",
        framed::CHANGE_INVISIBLE_DURATION => "ChangeInvisibleDuration",
        framed::UPDATE_OFFSET => "UpdateOffset",
        framed::RECEIVE_MESSAGE => "ReceiveMessage",
        framed::PULL_MESSAGE => "PullMessage",
        framed::AWAIT_MESSAGES => "AwaitMessages",
        _ => "",
    }
}

/// Checks the needs of a call with this message.
pub(super) fn check_message(method: &str, message: &[u8], check: Check<'_>) -> Result<(), AccessRefused> {
    let needs = entry(method).map_or(UNLISTED, |(_, needs)| needs);
    for need in needs {
        match *need {
            CallNeed::Name(kind, path, actions) => {
                let mut has_one = false;
                resources(message, path, &mut |resource| {
                    has_one = true;
                    named(kind, name_of(resource)?, actions, check)
                })?;
                if !has_one {
                    named(kind, "", actions, check)?;
                }
            }
            CallNeed::GivenName(kind, path, actions) => {
                resources(message, path, &mut |resource| match name_of(resource)? {
                    "" => Ok(()),
                    name => named(kind, name, actions, check),
                })?;
            }
            CallNeed::Text(kind, path, actions) => {
                resources(message, path, &mut |text| {
                    let name = std::str::from_utf8(text).map_err(|_| AccessRefused::from(NOT_TEXT))?;
                    named(kind, name, actions, check)
                })?;
            }
            CallNeed::Json(kind, member, actions) => {
                let name = json(message)?.get(member).and_then(Value::as_str).unwrap_or("").to_owned();
                named(kind, &name, actions, check)?;
            }
            CallNeed::Cluster(actions) => check(Kind::Cluster, "", actions)?,
        }
    }
    Ok(())
}

const NOT_TEXT: Malformed = Malformed("a string field is not UTF-8");

impl From<Malformed> for AccessRefused {
    fn from(Malformed(reason): Malformed) -> Self {
        Self(format!("the request cannot be checked, because it is malformed: {reason}"))
    }
}

fn named(kind: Kind, name: &str, actions: Actions, check: Check<'_>) -> Result<(), AccessRefused> {
    if kind == Kind::Topic { topic(name, actions, check) } else { group(name, actions, check) }
}

/// Calls `found` with the bytes of each field at the end of a path.
fn resources(
    message: &[u8],
    path: &[u32],
    found: &mut dyn FnMut(&[u8]) -> Result<(), AccessRefused>,
) -> Result<(), AccessRefused> {
    let Some((number, rest)) = path.split_first() else { return found(message) };
    for field in Fields::new(message) {
        let (field, value) = field?;
        if field == *number {
            resources(value.bytes()?, rest, found)?;
        }
    }
    Ok(())
}

/// The name of an encoded `Resource`.
fn name_of(resource: &[u8]) -> Result<&str, Malformed> {
    let mut name = "";
    for field in Fields::new(resource) {
        if let (2, value) = field? {
            name = value.text()?;
        }
    }
    Ok(name)
}
