//! The message store of ferromq: one commit log, the files derived from it, and consumers' progress.
//!
//! Everything that holds messages or consumers' progress lives here, and every crash promise is made
//! here. The crate is synchronous: it knows neither sockets nor Python. [`MessageStore`] opens a store; its handles
//! append ([`log::Log`]), read ([`read::Reader`]), receive for groups ([`progress::Groups`]), deliver what waits
//! ([`delayed::DelayedDelivery`]) and administer ([`Admin`]).
#![cfg_attr(test, allow(missing_docs))]

#[cfg(test)]
extern crate self as ferromq_store;

mod config;
pub mod dedup;
pub mod delayed;
pub mod derive;
mod error;
#[cfg(test)]
#[path = "../tests/common/fake_disk.rs"]
mod fake_disk;
pub mod files;
pub mod filter;
pub mod formats;
mod index;
pub mod log;
mod platform;
pub mod progress;
pub mod queues;
pub mod read;
pub mod record;
pub mod recovery;
pub mod retention;
mod store;
mod sync;
pub mod time;

pub use config::StoreConfig;
pub use error::{Result, StoreError};
pub use store::{admin::Admin, message_store::MessageStore, stats::StoreStats};
