//! Replays the fuzzers' kept inputs: each once caused a failure, or reaches code of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::path::Path;

use common::fuzz_targets;

fn replay(target: &str, run: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        run(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "no input for {target}");
}

#[test]
fn inputs_kept_for_records_are_harmless() {
    replay("record", fuzz_targets::record);
}

#[test]
fn inputs_kept_for_recovery_are_harmless() {
    replay("recovery", fuzz_targets::recovery);
}

#[test]
fn inputs_kept_for_index_files_are_harmless() {
    replay("index", fuzz_targets::index);
}
