//! Which requests have limits, and how a request over one is refused.
//!
//! Java's clients send again at once to another broker on SYSTEM_BUSY, and pull again after 20 ms on FLOW_CONTROL.

use super::{batch, send::is_batch, send_header::SendHeader};
use crate::{
    limits::{Meter, RateLimits, Usage},
    remoting::{
        RemotingCommand,
        codes::{request, response},
    },
};

/// Charges a request to its limits, or returns its refusal. A read is charged by the meter, with what it hands out.
pub(crate) fn check(
    limits: &RateLimits,
    user: Option<&str>,
    command: &RemotingCommand,
) -> Result<Option<Meter>, Box<RemotingCommand>> {
    if !limits.is_on() {
        return Ok(None);
    }
    let usage = usage(command);
    let is_read = matches!(usage, Some(Usage::Receive { .. }));
    limits.admit(user, usage).map_err(|reached| {
        let code = if is_read { response::FLOW_CONTROL } else { response::SYSTEM_BUSY };
        Box::new(command.respond(code, Some(reached.to_string())))
    })
}

/// Whether a request ends what was begun. Refused, it would have messages delivered again, or keep a half message, a lock
/// or a member.
pub(crate) fn ends_work(code: i32) -> bool {
    matches!(
        code,
        request::ACK_MESSAGE
            | request::BATCH_ACK_MESSAGE
            | request::CHANGE_MESSAGE_INVISIBLETIME
            | request::UPDATE_CONSUMER_OFFSET
            | request::CONSUMER_SEND_MSG_BACK
            | request::END_TRANSACTION
            | request::UNLOCK_BATCH_MQ
            | request::UNREGISTER_CLIENT
    )
}

/// What a request stores or hands out; `None` if nothing, and for a malformed request, which is refused anyway.
fn usage(command: &RemotingCommand) -> Option<Usage<'_>> {
    match command.code {
        request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => {
            let header = SendHeader::parse(command).ok()?;
            let messages = if is_batch(&header, command) { batch::count(&command.body) } else { 1 };
            let bytes = command.body.len() + header.properties.len();
            Some(Usage::Send { topic: header.topic, messages, bytes })
        }
        request::PULL_MESSAGE | request::LITE_PULL_MESSAGE | request::POP_MESSAGE | request::PEEK_MESSAGE => {
            command.field("topic").map(|topic| Usage::Receive { topic })
        }
        _ => None,
    }
}
