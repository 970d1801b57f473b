//! Delayed messages: delay levels, and delivery times of their own in [`timer`].

pub(crate) mod delay_levels;
pub(crate) mod delivery;
pub(crate) mod due_message;
pub(crate) mod level_offsets;
pub(crate) mod level_progress;
pub(crate) mod schedule;
pub(crate) mod timer;
pub(crate) mod waiting_message;

pub use delay_levels::{DelayLevels, Delayed};
pub use delivery::DelayedDelivery;
pub use schedule::ScheduleStats;
pub use timer::state::TimerStats;
pub use timer::timed_message::TimerConfig;
