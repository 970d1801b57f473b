//! The headers of hot requests, each parsed once. Those of sends are in `send_header`. No I/O.

use std::str::FromStr;

use crate::{TransportError, remoting::RemotingCommand};

/// Bits of a pull's `sysFlag`.
pub(super) mod pull_flag {
    pub const COMMIT_OFFSET: u32 = 1;
    pub const SUSPEND: u32 = 1 << 1;
    pub const SUBSCRIPTION: u32 = 1 << 2;
    pub const CLASS_FILTER: u32 = 1 << 3;
}

/// The field, not one of RocketMQ's, by which a client asks for answers beyond the limits that the broker's options set.
const LARGE: &str = "ferromqLarge";

/// Requests 11 and 361.
#[derive(Debug)]
pub(super) struct PullHeader<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    pub queue_id: u32,
    /// Negative in clients that lost what they knew.
    pub offset: i64,
    pub max_count: i32,
    /// 0 where the client leaves it to the broker.
    pub max_bytes: i32,
    pub is_large: bool,
    /// See [`pull_flag`].
    pub flags: u32,
    /// The offset to commit, where the flags ask for it.
    pub commit_offset: Option<u64>,
    pub suspend_ms: i64,
    pub expression_type: &'a str,
    pub expression: &'a str,
    pub subscription_version: i64,
}

impl<'a> PullHeader<'a> {
    pub(super) fn parse(command: &'a RemotingCommand) -> Result<Self, TransportError> {
        let flags: u32 = number(command, "sysFlag")?;
        let commits = flags & pull_flag::COMMIT_OFFSET != 0;
        Ok(Self {
            group: required(command, "consumerGroup")?,
            topic: required(command, "topic")?,
            queue_id: number(command, "queueId")?,
            offset: number(command, "queueOffset")?,
            max_count: number(command, "maxMsgNums")?,
            max_bytes: number_or(command, "maxMsgBytes", 0)?,
            is_large: is_set(command, LARGE),
            flags,
            commit_offset: if commits { Some(number(command, "commitOffset")?) } else { None },
            suspend_ms: number_or(command, "suspendTimeoutMillis", 0)?,
            expression_type: text(command, "expressionType"),
            expression: text(command, "subscription"),
            subscription_version: number_or(command, "subVersion", 0)?,
        })
    }
}

/// The group, topic and queue that requests of the pop family name.
#[derive(Debug)]
pub(super) struct ConsumerHeader<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    /// Negative stands for all queues.
    pub queue_id: i32,
}

impl<'a> ConsumerHeader<'a> {
    /// All that request 200055 has.
    pub(super) fn parse(command: &'a RemotingCommand) -> Result<Self, TransportError> {
        Ok(Self {
            group: required(command, "consumerGroup")?,
            topic: required(command, "topic")?,
            queue_id: number(command, "queueId")?,
        })
    }
}

/// Request 200050.
#[derive(Debug)]
pub(super) struct PopHeader<'a> {
    pub consumer: ConsumerHeader<'a>,
    pub max_count: i32,
    pub invisible_ms: i64,
    pub poll_ms: i64,
    pub init_mode: i32,
    pub expression_type: &'a str,
    pub expression: &'a str,
    pub is_ordered: bool,
    pub attempt_id: Option<&'a str>,
}

impl<'a> PopHeader<'a> {
    pub(super) fn parse(command: &'a RemotingCommand) -> Result<Self, TransportError> {
        Ok(Self {
            consumer: ConsumerHeader::parse(command)?,
            max_count: number(command, "maxMsgNums")?,
            invisible_ms: number(command, "invisibleTime")?,
            poll_ms: number_or(command, "pollTime", 0)?,
            init_mode: number_or(command, "initMode", 0)?,
            expression_type: text(command, "expType"),
            expression: text(command, "exp"),
            is_ordered: is_set(command, "order"),
            attempt_id: command.field("attemptId"),
        })
    }
}

/// Request 200052.
#[derive(Debug)]
pub(super) struct PeekHeader<'a> {
    pub consumer: ConsumerHeader<'a>,
    pub max_count: i32,
}

impl<'a> PeekHeader<'a> {
    pub(super) fn parse(command: &'a RemotingCommand) -> Result<Self, TransportError> {
        Ok(Self { consumer: ConsumerHeader::parse(command)?, max_count: number(command, "maxMsgNums")? })
    }
}

/// Request 200054.
#[derive(Debug)]
pub(super) struct NotificationHeader<'a> {
    pub consumer: ConsumerHeader<'a>,
    pub poll_ms: i64,
    pub is_ordered: bool,
}

impl<'a> NotificationHeader<'a> {
    pub(super) fn parse(command: &'a RemotingCommand) -> Result<Self, TransportError> {
        Ok(Self {
            consumer: ConsumerHeader::parse(command)?,
            poll_ms: number_or(command, "pollTime", 0)?,
            is_ordered: is_set(command, "order"),
        })
    }
}

/// Request 200051, and most of 200053.
#[derive(Debug)]
pub(super) struct AckHeader<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    pub queue_id: u32,
    pub offset: i64,
    /// See [`super::extra_info`]. It is parsed once topic and queue are known, as RocketMQ does.
    pub extra_info: &'a str,
}

impl<'a> AckHeader<'a> {
    pub(super) fn parse(command: &'a RemotingCommand) -> Result<Self, TransportError> {
        Ok(Self {
            group: required(command, "consumerGroup")?,
            topic: required(command, "topic")?,
            queue_id: number(command, "queueId")?,
            offset: number(command, "offset")?,
            extra_info: required(command, "extraInfo")?,
        })
    }
}

/// Request 200053.
#[derive(Debug)]
pub(super) struct ChangeInvisibleHeader<'a> {
    pub ack: AckHeader<'a>,
    pub invisible_ms: i64,
}

impl<'a> ChangeInvisibleHeader<'a> {
    pub(super) fn parse(command: &'a RemotingCommand) -> Result<Self, TransportError> {
        Ok(Self { ack: AckHeader::parse(command)?, invisible_ms: number(command, "invisibleTime")? })
    }
}

/// Request 36.
#[derive(Debug)]
pub(super) struct SendBackHeader<'a> {
    pub group: &'a str,
    /// The message's place in the commit log.
    pub physical_offset: u64,
    pub delay_level: i32,
    pub max_reconsume_times: Option<i32>,
    pub is_unit: bool,
}

impl<'a> SendBackHeader<'a> {
    pub(super) fn parse(command: &'a RemotingCommand) -> Result<Self, TransportError> {
        Ok(Self {
            group: required(command, "group")?,
            physical_offset: number(command, "offset")?,
            delay_level: number(command, "delayLevel")?,
            max_reconsume_times: number_or_none(text(command, "maxReconsumeTimes"), "maxReconsumeTimes")?,
            is_unit: is_set(command, "unitMode"),
        })
    }
}

/// Request 15.
#[derive(Debug)]
pub(super) struct UpdateOffsetHeader<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    pub queue_id: u32,
    pub offset: u64,
}

impl<'a> UpdateOffsetHeader<'a> {
    pub(super) fn parse(command: &'a RemotingCommand) -> Result<Self, TransportError> {
        Ok(Self {
            group: required(command, "consumerGroup")?,
            topic: required(command, "topic")?,
            queue_id: number(command, "queueId")?,
            offset: number(command, "commitOffset")?,
        })
    }
}

/// The value of a field, empty where it is absent.
fn text<'a>(command: &'a RemotingCommand, name: &str) -> &'a str {
    command.field(name).unwrap_or("")
}

/// The value of a field that must be there.
fn required<'a>(command: &'a RemotingCommand, name: &'static str) -> Result<&'a str, TransportError> {
    let value = command.field(name).filter(|value| !value.is_empty());
    value.ok_or(TransportError::BadField { name, reason: "it is missing" })
}

/// A number that must be there.
fn number<T: FromStr>(command: &RemotingCommand, name: &'static str) -> Result<T, TransportError> {
    parse_number(required(command, name)?, name)
}

/// A number, or `default` where the field is absent or empty.
fn number_or<T: FromStr>(
    command: &RemotingCommand,
    name: &'static str,
    default: T,
) -> Result<T, TransportError> {
    Ok(number_or_none(text(command, name), name)?.unwrap_or(default))
}

/// Java's `true`; everything else is false.
fn is_set(command: &RemotingCommand, name: &str) -> bool {
    text(command, name).eq_ignore_ascii_case("true")
}

/// Some clients write an empty text for what they leave out.
pub(super) fn number_or_none<T: FromStr>(
    text: &str,
    name: &'static str,
) -> Result<Option<T>, TransportError> {
    if text.is_empty() { Ok(None) } else { parse_number(text, name).map(Some) }
}

/// Reads the number of the field `name`.
pub(super) fn parse_number<T: FromStr>(text: &str, name: &'static str) -> Result<T, TransportError> {
    text.parse().map_err(|_| TransportError::BadField { name, reason: "it is no number in range" })
}
