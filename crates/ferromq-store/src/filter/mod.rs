//! Which messages a reader wants: by tag or by an SQL92 expression.

pub(crate) mod filter_error;
pub(crate) mod message_filter;
pub(crate) mod sql;
