//! Which gRPC calls have limits.

use super::message::SendRequest;
use crate::{
    access::{AccessRefused, Admission, UserName},
    grpc::convert::Refusal,
    limits::{ConnectionUsers, Usage},
    protobuf::{Fields, Malformed},
};

/// What a call with this encoded message stores or hands out; `None` if nothing, and for a malformed send, which is
/// refused anyway.
pub(in crate::grpc) fn usage<'a>(method: &str, message: &'a [u8]) -> Option<Usage<'a>> {
    match method {
        "SendMessage" => {
            let topic = SendRequest::first_topic(message).ok()?;
            let messages = SendRequest::count(message).ok()?;
            Some(Usage::Send { topic, messages, bytes: message.len() })
        }
        // Its user is charged all the same if the topic is not found.
        "ReceiveMessage" | "PullMessage" => Some(Usage::Receive { topic: topic_read(message).unwrap_or("") }),
        _ => None,
    }
}

/// Returns the user of a call with this encoded message, unless access control or the user's limit of connections refuses
/// it.
pub(in crate::grpc) fn admit(
    admission: Result<Admission, AccessRefused>,
    users: &ConnectionUsers,
    method: &str,
    message: &[u8],
) -> Result<UserName, Refusal> {
    let admission = admission?;
    admission.check(message)?;
    let user = admission.user();
    users.admit(user.as_ref(), || ends_work(method))?;
    Ok(user)
}

/// Whether a call ends what was begun. Refused, it would have messages delivered again, or keep a half message or a client.
fn ends_work(method: &str) -> bool {
    matches!(
        method,
        "AckMessage"
            | "AckRecords"
            | "ChangeInvisibleDuration"
            | "UpdateOffset"
            | "ForwardMessageToDeadLetterQueue"
            | "EndTransaction"
            | "NotifyClientTermination"
    )
}

/// The topic of a receive or pull: the name (2) in the topic (1) of the queue (2). The last one counts, as in protobuf.
fn topic_read(message: &[u8]) -> Result<&str, Malformed> {
    let mut name = "";
    each(message, 2, &mut |queue| {
        each(queue, 1, &mut |topic| {
            for field in Fields::new(topic) {
                if let (2, value) = field? {
                    name = value.text()?;
                }
            }
            Ok(())
        })
    })?;
    Ok(name)
}

fn each<'a>(
    message: &'a [u8],
    number: u32,
    found: &mut dyn FnMut(&'a [u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    for field in Fields::new(message) {
        let (field, value) = field?;
        if field == number {
            found(value.bytes()?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::grpc::proto::ReceiveMessageRequest;

    #[test]
    fn the_topic_of_a_read_is_found() {
        // Group "g", queue 7 of topic "orders".
        let request = b"\x0a\x03\x12\x01g\x12\x0c\x0a\x08\x12\x06orders\x10\x07";
        assert_eq!(usage("ReceiveMessage", request), Some(Usage::Receive { topic: "orders" }));
        assert_eq!(usage("PullMessage", request), Some(Usage::Receive { topic: "orders" }));
        assert_eq!(usage("AckMessage", request), None);
    }

    proptest! {
        /// Whatever the bytes: the topic is the one that the verb reads from them.
        #[test]
        fn the_verb_reads_the_same_topic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let found = usage("ReceiveMessage", &bytes);
            if let Ok(request) = ReceiveMessageRequest::decode(bytes.as_slice()) {
                let topic = request.message_queue.and_then(|queue| queue.topic).map(|topic| topic.name);
                prop_assert_eq!(found, Some(Usage::Receive { topic: topic.as_deref().unwrap_or("") }));
            }
        }

        #[test]
        fn any_bytes_are_a_send_or_none(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = usage("SendMessage", &bytes);
        }
    }
}
