//! A store whose directory is relative to the working directory. It has its own file, because the working directory
//! belongs to the process.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::path::Path;

use common::{bodies, message, settle, synchronous};
use ferromq_store::{MessageStore, time::Clock};

#[test]
fn a_directory_of_one_component_is_a_store_like_any_other() {
    let (home, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::env::set_current_dir(home.path()).unwrap();
    let store = MessageStore::open(Path::new("store"), synchronous(), Clock::system()).unwrap();
    let first = store.log().append(&[message("t", 0, b"first", b"")]).unwrap();
    store.log().wait_durable(first.end).unwrap();
    // The store keeps its directory.
    std::env::set_current_dir(elsewhere.path()).unwrap();
    let second = store.log().append(&[message("u", 0, b"second", b"")]).unwrap();
    store.log().wait_durable(second.end).unwrap();
    settle(&store);
    store.close().unwrap();
    let store = MessageStore::open(&home.path().join("store"), synchronous(), Clock::system()).unwrap();
    assert_eq!(bodies(&store, "t", 0), [b"first".to_vec()]);
    assert_eq!(bodies(&store, "u", 0), [b"second".to_vec()]);
}
