//! How a message is stored that must wait, at a delay level or for a time of its own.

use crate::{
    config::StoreConfig,
    delayed::{
        delay_levels::{Delayed, at_level},
        timer::timed_message,
    },
    error::Result,
};

/// Says how a message must be stored that has a delay level or a time of delivery; `None` for one that does not wait.
///
/// Rolled-back and half messages never wait. A level above the highest becomes the highest; times for a single message
/// give way to it. Errors: `Invalid` for a level or a time that is no number, `TooFarAhead`.
pub fn rewrite(
    config: &StoreConfig,
    now_ms: i64,
    topic: &str,
    queue_id: i32,
    sys_flag: i32,
    properties: &[u8],
) -> Result<Option<Delayed>> {
    if !crate::record::message::is_consumable(sys_flag) {
        return Ok(None);
    }
    match config.delay_levels.of(properties)? {
        Some(level) => Ok(Some(at_level(level, topic, queue_id, properties))),
        None => timed_message::rewrite(&config.timer, now_ms, (topic, queue_id), properties),
    }
}
