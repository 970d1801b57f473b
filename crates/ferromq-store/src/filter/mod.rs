//! Filters of readers: by tag or by an SQL92 expression.

pub(crate) mod filter_error;
pub(crate) mod message_filter;
pub(crate) mod sql;

pub use filter_error::FilterError;
pub use message_filter::MessageFilter;
pub use sql::SqlFilter;
