//! How a message that must wait is stored, at a delay level or for a delivery time.

use crate::{
    config::StoreConfig,
    delayed::{
        delay_levels::{Delayed, at_level},
        timer::timed_message,
    },
    error::Result,
};

/// How to store a message with a delay level or a delivery time; `None` for one that does not wait.
///
/// Rolled-back and half messages never wait. A level above the highest becomes the highest, and takes precedence over a
/// delivery time. Errors: `Invalid` if the level or time is not a number, `TooFarAhead`.
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
