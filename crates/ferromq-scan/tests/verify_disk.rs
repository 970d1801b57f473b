//! Inspection of a store whose log spans several directories, or whose disk cannot be read.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

#[path = "../../ferromq-store/tests/common/mod.rs"]
mod common;

use std::{fs, io, path::Path, sync::Mutex};

use common::{
    asynchronous,
    fake_disk::{FakeDisk, Op},
    message, named, settle,
};
use ferromq_scan::inspect::{
    Finding, FindingKind as Kind, InspectOptions, VerifyEvent, VerifyReport, inspect, verify_on,
};
use ferromq_store::{MessageStore, StoreConfig, files::Disk, time::Clock};

fn fill<D: Disk>(store: &MessageStore<D>) {
    for number in 0..300u32 {
        let named = named(&format!("k{number}"), "a");
        store.log().append(&[message("t", (number % 2) as i32, &[7; 700], &named)]).unwrap();
    }
    settle(store);
    store.close().unwrap();
}

fn look<D: Disk>(disk: D, directory: &Path, options: &InspectOptions) -> (VerifyReport, Vec<Finding>) {
    let findings = Mutex::new(Vec::new());
    let report = verify_on(disk, directory, options, &|event| {
        if let VerifyEvent::Finding(finding) = event {
            findings.lock().unwrap().push(finding.clone());
        }
        true
    });
    (report.unwrap(), findings.into_inner().unwrap())
}

#[test]
fn a_log_in_several_directories_is_one_row() {
    let directory = tempfile::tempdir().unwrap();
    let paths = vec![directory.path().join("a"), directory.path().join("b")];
    let root = directory.path().join("store");
    let config = StoreConfig { commit_log_paths: paths.clone(), ..asynchronous() };
    fill(&MessageStore::open(&root, config, Clock::system()).unwrap());
    assert!(paths.iter().all(|path| fs::read_dir(path).unwrap().count() > 1));

    let options = InspectOptions { commit_log_paths: paths.clone(), ..InspectOptions::default() };
    let (report, findings) = look(ferromq_store::files::RealDisk, &root, &options);
    assert_eq!((findings, report.records), (vec![], 300));
    let summary = inspect(&root, &options).unwrap();
    assert_eq!((summary.log.paths, summary.log.gaps), (paths.clone(), vec![]));
    // With one directory alone, every other file is missing.
    let options = InspectOptions { commit_log_paths: paths[..1].to_vec(), ..options };
    let (_, findings) = look(ferromq_store::files::RealDisk, &root, &options);
    assert!(findings.iter().any(|finding| finding.kind == Kind::MissingFile));
    assert!(!inspect(&root, &options).unwrap().log.gaps.is_empty());
}

#[test]
fn a_file_that_cannot_be_read_is_found_and_the_rest_is_looked_at() {
    let disk = FakeDisk::new();
    let root = Path::new("/store");
    fill(&MessageStore::open_on(disk.clone(), root, asynchronous(), Clock::system()).unwrap());
    assert_eq!(look(disk.clone(), root, &InspectOptions::default()).1, []);
    for broken in ["/store/commitlog/00000000000000065536", "/store/consumequeue/t/0/00000000000000001000"] {
        for op in [Op::Open, Op::ReadAt] {
            disk.set_hook(move |asked, path| match asked == op && path == Path::new(broken) {
                true => Err(io::Error::other("broken disk")),
                false => Ok(()),
            });
            let (report, findings) = look(disk.clone(), root, &InspectOptions::default());
            let unreadable: Vec<&Finding> = findings.iter().filter(|f| f.kind == Kind::Unreadable).collect();
            assert!(!unreadable.is_empty(), "{op:?} {broken}: {findings:#?}");
            assert!(
                unreadable.iter().all(|f| f.file == Path::new(broken) && f.found.contains("broken disk"))
            );
            assert!(report.records >= 200);
        }
    }
}
