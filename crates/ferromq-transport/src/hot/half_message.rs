//! Half messages: stored in a hidden topic until their transaction ends.
//!
//! ```text
//! topic RMQ_SYS_TRANS_HALF_TOPIC, queue 0; the message's own properties, followed by
//! __transactionId__ = its unique key | REAL_TOPIC, REAL_QID = its topic and queue after the commit
//! ```

use ferromq_store::{
    Result,
    log::Appended,
    record::{NewMessage, names::HALF_TOPIC, properties},
};

use super::Sends;

/// Properties of a half message that only the broker sets; a producer's values are dropped.
pub const HALF_NAMES: [&str; 3] = ["REAL_TOPIC", "REAL_QID", "__transactionId__"];
/// Bits of the system flag that hold the state of a transaction.
pub const TRANSACTION_BITS: i32 = 12;

impl Sends {
    /// Stores `message`, with the properties `text`, as a half message, which remembers its topic and queue.
    /// `has_timer`: the properties name a delivery time.
    ///
    /// The caller checks whether the broker accepts transactions.
    ///
    /// # Errors
    /// Those of [`Self::append`], and `TooFarAhead` at once instead of at the commit.
    pub fn append_half(
        &self,
        message: &NewMessage<'_>,
        unique_key: &str,
        has_timer: bool,
        text: &mut Vec<u8>,
    ) -> Result<Appended> {
        let sys_flag = message.sys_flag & !TRANSACTION_BITS;
        if has_timer {
            self.store.log().delayed(&NewMessage { sys_flag, properties: text, ..*message })?;
        }
        properties::push(text, "__transactionId__", unique_key);
        properties::push(text, "REAL_TOPIC", message.topic);
        properties::push(text, "REAL_QID", &message.queue_id.to_string());
        self.append(&[NewMessage { topic: HALF_TOPIC, queue_id: 0, sys_flag, properties: text, ..*message }])
    }
}
