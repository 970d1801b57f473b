//! Reads store directories from outside, without the engine that serves them.
//!
//! [`inspect`] summarizes, verifies and dumps a directory, and scans its log. [`columns`] turns records into the column
//! buffers of Arrow, for Spark and the client.
#![cfg_attr(test, allow(missing_docs))]

pub mod columns;
pub mod inspect;
