//! Parses the headers of hot requests, except for sends (see `send_header`). No I/O.

use std::str::FromStr;

use crate::{TransportError, remoting::RemotingCommand};

/// Bits of a pull's `sysFlag`.
pub(super) mod pull_flag {
    pub const COMMIT_OFFSET: u32 = 1;
    pub const SUSPEND: u32 = 1 << 1;
    pub const SUBSCRIPTION: u32 = 1 << 2;
    pub const CLASS_FILTER: u32 = 1 << 3;
}

/// A field of ferromq's own: the client requests responses beyond the limits of the broker's options.
const LARGE_RESPONSE: &str = "ferromqLarge";

/// Header of requests 11 and 361.
#[derive(Debug)]
pub(super) struct PullHeader<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    pub queue_id: u32,
    /// Negative if the client lost its offset.
    pub offset: i64,
    pub max_count: i32,
    /// 0 if the broker chooses.
    pub max_bytes: i32,
    pub is_large: bool,
    /// See [`pull_flag`].
    pub flags: u32,
    /// Offset to commit, if the flags request it.
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
            is_large: is_set(command, LARGE_RESPONSE),
            flags,
            commit_offset: if commits { Some(number(command, "commitOffset")?) } else { None },
            suspend_ms: number_or(command, "suspendTimeoutMillis", 0)?,
            expression_type: text(command, "expressionType"),
            expression: text(command, "subscription"),
            subscription_version: number_or(command, "subVersion", 0)?,
        })
    }
}

/// Group, topic and queue, common to the pop requests.
#[derive(Debug)]
pub(super) struct ConsumerHeader<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    /// Negative for all queues.
    pub queue_id: i32,
}

impl<'a> ConsumerHeader<'a> {
    /// Request 200055 has only these fields.
    pub(super) fn parse(command: &'a RemotingCommand) -> Result<Self, TransportError> {
        Ok(Self {
            group: required(command, "consumerGroup")?,
            topic: required(command, "topic")?,
            queue_id: number(command, "queueId")?,
        })
    }
}

/// Header of request 200050.
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

/// Header of request 200052.
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

/// Header of request 200054.
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

/// Header of request 200051, and a part of 200053.
#[derive(Debug)]
pub(super) struct AckHeader<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    pub queue_id: u32,
    pub offset: i64,
    /// See [`super::extra_info`]. Parsed after topic and queue are checked, as in RocketMQ.
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

/// Header of request 200053.
#[derive(Debug)]
pub(super) struct ChangeInvisibleHeader<'a> {
    pub ack: AckHeader<'a>,
    pub invisible_ms: i64,
    /// The message is unused: its delivery does not count as an attempt. RocketMQ 5.5.0 has the field, 5.3.3 does not.
    pub is_suspended: bool,
}

impl<'a> ChangeInvisibleHeader<'a> {
    pub(super) fn parse(command: &'a RemotingCommand) -> Result<Self, TransportError> {
        Ok(Self {
            ack: AckHeader::parse(command)?,
            invisible_ms: number(command, "invisibleTime")?,
            is_suspended: is_set(command, "suspend"),
        })
    }
}

/// Header of request 36.
#[derive(Debug)]
pub(super) struct SendBackHeader<'a> {
    pub group: &'a str,
    /// Physical offset of the message.
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

/// Header of request 15.
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

/// The value of a field; empty if it is absent.
fn text<'a>(command: &'a RemotingCommand, name: &str) -> &'a str {
    command.field(name).unwrap_or("")
}

/// The value of a required field.
fn required<'a>(command: &'a RemotingCommand, name: &'static str) -> Result<&'a str, TransportError> {
    let value = command.field(name).filter(|value| !value.is_empty());
    value.ok_or(TransportError::BadField { name, reason: "it is missing" })
}

/// The number of a required field.
fn number<T: FromStr>(command: &RemotingCommand, name: &'static str) -> Result<T, TransportError> {
    parse_number(required(command, name)?, name)
}

/// The number of a field, or `default` if it is absent or empty.
fn number_or<T: FromStr>(
    command: &RemotingCommand,
    name: &'static str,
    default: T,
) -> Result<T, TransportError> {
    Ok(number_or_none(text(command, name), name)?.unwrap_or(default))
}

/// Whether a field is `true` in any case of letters, as in Java.
fn is_set(command: &RemotingCommand, name: &str) -> bool {
    text(command, name).eq_ignore_ascii_case("true")
}

/// Parses an optional number. Some clients send an empty text for an absent value.
pub(super) fn number_or_none<T: FromStr>(
    text: &str,
    name: &'static str,
) -> Result<Option<T>, TransportError> {
    if text.is_empty() { Ok(None) } else { parse_number(text, name).map(Some) }
}

/// Parses the number of the field `name`.
pub(super) fn parse_number<T: FromStr>(text: &str, name: &'static str) -> Result<T, TransportError> {
    text.parse().map_err(|_| TransportError::BadField { name, reason: "it is not a number in range" })
}
