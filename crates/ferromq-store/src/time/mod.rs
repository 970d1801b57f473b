//! The store's clock, the rules for clock steps, and local time.

pub(crate) mod clock;
pub(crate) mod local_time;
pub(crate) mod wall_time;

pub use clock::Clock;
pub use local_time::LocalTime;
pub use wall_time::Reading;
