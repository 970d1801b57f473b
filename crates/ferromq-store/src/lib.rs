//! The message store of ferromq: one commit log, the files derived from it, and consumers' progress.
//!
//! Everything that holds messages or consumers' progress lives here, and every crash promise is made
//! here. The crate is synchronous: it knows neither sockets nor Python. [`MessageStore`] is the door.
#![cfg_attr(test, allow(missing_docs))]

mod clock;
mod config;
mod disk;
mod error;
mod lease;
mod lease_file;
mod message;
mod offset_file;
mod progress;
mod receive;
mod store;

pub use clock::Clock;
pub use config::{FlushMode, StoreConfig};
pub use disk::{Allocation, Disk, MappedRegion, RealDisk, Region};
pub use error::{Result, StoreError};
pub use message::{MessageView, NewMessage, properties};
pub use store::{
    Appended, Arrival, GetResult, GetStatus, Leased, Location, MessageStore, ReceiptHandle, ReceiveRequest, Received,
    Record, StoreStats, TagFilter,
};
