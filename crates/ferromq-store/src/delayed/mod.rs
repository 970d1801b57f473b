//! Messages that consumers see later: delay levels, and times of delivery in [`timer`].

pub(crate) mod delay_levels;
pub(crate) mod due_message;
pub(crate) mod level_offsets;
pub(crate) mod schedule;
pub(crate) mod timer;
pub(crate) mod waiting_message;
