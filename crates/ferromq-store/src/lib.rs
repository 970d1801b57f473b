//! The message store of ferromq: one commit log, the files derived from it, and consumers' progress.
//!
//! Everything that holds messages or consumers' progress lives here, and every crash promise is made
//! here. The crate is synchronous: it knows neither sockets nor Python. [`MessageStore`] is the door.
#![cfg_attr(test, allow(missing_docs))]

mod checkpoint;
mod clock;
mod commit_log;
mod config;
mod consume_queue;
mod disk;
mod dispatch;
mod error;
mod flush;
mod index;
mod index_file;
mod lease;
mod lease_file;
mod lookup;
#[allow(unsafe_code)]
mod mapped_file;
mod mapped_file_queue;
mod message;
mod offset_file;
mod prepare;
mod progress;
pub mod properties;
mod queue_list;
mod receive;
mod record;
mod recovery;
mod signal;
mod stop;
mod store;
mod types;

pub use clock::Clock;
pub use config::{FlushMode, StoreConfig};
pub use disk::{Allocation, DirectoryLock, Disk, RealDisk, Region};
pub use error::{Result, StoreError};
pub use mapped_file::MappedRegion;
pub use message::{MessageView, NewMessage};
pub use record::Record;
pub use store::MessageStore;
pub use types::{
    Appended, Arrival, GetResult, GetStatus, Leased, Location, ReceiptHandle, ReceiveRequest, Received,
    StoreStats, TagFilter,
};
