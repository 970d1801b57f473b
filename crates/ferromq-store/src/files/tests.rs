//! Tests of file queues, their directories and the limit on open files. `tests/files.rs` tests whole stores.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
};

use proptest::prelude::*;

use crate::{
    config::StoreConfig,
    error::StoreError,
    fake_disk::{FakeDisk, Op, Random},
    files::{
        directories::{DirectoryNames, FileDirectories},
        disk::{Allocation, Disk, Region},
        mapped_file_queue::{FileFormat, MappedFileQueue},
        open_files::{FileKind, OpenFileLimits, OpenFiles},
        real_disk::RealDisk,
    },
};

const ROOT: &str = "/store";
const SIZE: u64 = 256;

fn log_of(disk: &FakeDisk, config: &StoreConfig, allocation: Allocation) -> MappedFileQueue<FakeDisk> {
    let names = DirectoryNames::of(Path::new(ROOT));
    let form = FileFormat { size: SIZE, allocation, kind: FileKind::Log };
    let places = FileDirectories::of_log(disk, &names, config).unwrap();
    MappedFileQueue::new(disk.clone(), places, form, OpenFiles::new(OpenFileLimits::of(config)))
}

fn config(files: usize, log_files: u64) -> StoreConfig {
    StoreConfig {
        open_files: files,
        mapped_bytes: log_files * SIZE,
        disk_reserve: 0,
        ..StoreConfig::default()
    }
}

/// A queue of `count` flushed files, each filled with its number plus one.
fn filled(disk: &FakeDisk, config: &StoreConfig, count: u64) -> MappedFileQueue<FakeDisk> {
    let row = log_of(disk, config, Allocation::Reserved);
    for number in 0..count {
        row.write(number * SIZE, &[number as u8 + 1; SIZE as usize]).unwrap();
    }
    row.flush(0..count * SIZE).unwrap();
    row
}

fn loaded(disk: &FakeDisk, config: &StoreConfig) -> MappedFileQueue<FakeDisk> {
    let mut row = log_of(disk, config, Allocation::Reserved);
    row.load().unwrap();
    row
}

fn path_of(directory: &str, base: u64) -> PathBuf {
    Path::new(directory).join(format!("{base:020}"))
}

fn own(base: u64) -> PathBuf {
    path_of("/store/commitlog", base)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn readers_find_the_bytes_written_and_no_more_is_open_than_the_budget_and_what_they_hold(
        files in 3usize..8,
        log_files in 0u64..4,
        seed in any::<u64>(),
        appends in proptest::collection::vec(1usize..400, 1..60),
    ) {
        const READERS: usize = 3;
        const READS: usize = 16;
        let disk = FakeDisk::new();
        let row = log_of(&disk, &config(files, log_files), Allocation::Reserved);
        // The written bytes, and whether they are complete.
        let written: Mutex<(Vec<u8>, bool)> = Mutex::default();
        let grown = Condvar::new();
        std::thread::scope(|scope| {
            for reader in 0..READERS as u64 {
                let (row, written, grown) = (&row, &written, &grown);
                scope.spawn(move || {
                    let mut random = Random(seed ^ reader);
                    let (mut bytes, mut is_all) = (Vec::new(), false);
                    while !is_all {
                        // A polling reader would keep the lock from the writer for minutes on a busy machine.
                        let held = written.lock().unwrap();
                        (bytes, is_all) =
                            grown.wait_while(held, |(now, is_all)| now.len() == bytes.len() && !*is_all).unwrap().clone();
                        for _ in 0..READS {
                            let at = random.below(bytes.len() as u64);
                            let file = row.find(at).unwrap();
                            let end = file.end().min(bytes.len() as u64);
                            assert_eq!(file.read(at..end), &bytes[at as usize..end as usize]);
                        }
                    }
                });
            }
            let mut random = Random(seed);
            let mut at = 0;
            for len in appends {
                let part: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                row.write(at, &part).unwrap();
                written.lock().unwrap().0.extend_from_slice(&part);
                grown.notify_all();
                row.flush(at..at + len as u64).unwrap();
                at += len as u64;
            }
            written.lock().unwrap().1 = true;
            grown.notify_all();
        });
        let (bytes, _) = written.into_inner().unwrap();
        // Each thread may have opened a file that is not counted yet, and the writer one more.
        let (_, most) = disk.open_files();
        prop_assert!(most <= files + READERS + 2, "{most} open of {files}");
        // Without readers, the next open shrinks to the limit and the newest files.
        row.ensure(row.spans().last().map_or(0, |span| span.end)).unwrap();
        for at in (0..bytes.len() as u64).step_by(SIZE as usize) {
            prop_assert!(row.find(at).is_some());
        }
        let (now, _) = disk.open_files();
        prop_assert!(now <= files.min(log_files.max(1) as usize + 2), "{now} open of {files}, {log_files} of the log");
        let read: Vec<u8> = row.spans().iter().flat_map(|span| row.find(span.start).unwrap().read(span.clone()).to_vec()).collect();
        prop_assert_eq!(&read[..bytes.len()], &bytes[..]);
    }

    #[test]
    fn removing_old_files_leaves_no_gap_and_all_that_was_to_stay_wherever_it_crashes(
        op in 1u64..30,
        seed in any::<u64>(),
        offset in 0..9 * SIZE,
        directories in 1usize..4,
    ) {
        let disk = FakeDisk::new();
        let paths = (0..directories).map(|number| PathBuf::from(format!("/disk{number}"))).collect();
        let config = StoreConfig { commit_log_paths: paths, ..config(8, 1) };
        let row = filled(&disk, &config, 8);
        disk.crash_at(op, seed);
        let removed = row.remove_below(offset);
        let was_done = removed.is_ok() && !disk.has_crashed();
        let left = loaded(&disk.crash(seed), &config);
        let spans = left.spans();
        prop_assert!(left.gaps().is_empty(), "{:?}", spans);
        let first = (offset / SIZE).min(7);
        let begin = spans[0].start / SIZE;
        prop_assert!(begin <= first && (!was_done || begin == first), "{begin} {first} {was_done}");
        prop_assert_eq!(spans.last().unwrap().end, 8 * SIZE);
        for span in spans {
            let file = left.find(span.start).unwrap();
            prop_assert!(file.read(span.clone()).iter().all(|byte| u64::from(*byte) == span.start / SIZE + 1));
        }
        if was_done {
            prop_assert_eq!(removed.unwrap(), first * SIZE);
        }
    }
}

#[test]
fn a_missing_file_is_a_gap_that_is_neither_found_nor_filled() {
    let disk = FakeDisk::new();
    drop(filled(&disk, &config(8, 8), 5));
    disk.forget(&own(SIZE));
    disk.forget(&own(2 * SIZE));
    let row = loaded(&disk, &config(8, 8));
    assert_eq!(row.gaps(), vec![SIZE..3 * SIZE]);
    assert_eq!(row.spans(), [0..SIZE, 3 * SIZE..4 * SIZE, 4 * SIZE..5 * SIZE]);
    assert_eq!(row.span(), Some(0..5 * SIZE));
    assert!(row.find(SIZE).is_none() && row.open(3 * SIZE - 1).unwrap().is_none());
    match row.ensure(2 * SIZE).map(drop) {
        Err(StoreError::Corrupt { file, .. }) => assert_eq!(file, own(2 * SIZE)),
        other => panic!("{other:?}"),
    }
    assert_eq!(row.find(3 * SIZE).unwrap().read(3 * SIZE..4 * SIZE), [4; SIZE as usize]);
    assert_eq!(row.ensure(5 * SIZE).unwrap().base(), 5 * SIZE, "the row goes on at its end");
}

#[test]
fn a_last_file_cut_short_does_not_give_its_size_to_new_ones() {
    let disk = FakeDisk::new();
    drop(filled(&disk, &config(8, 8), 2));
    drop(disk.create(&own(2 * SIZE), 100, Allocation::Sparse).unwrap());
    drop(disk.create(&own(9 * SIZE), 0, Allocation::Sparse).unwrap());
    let row = loaded(&disk, &config(8, 8));
    assert_eq!(row.file_size(), SIZE);
    assert_eq!(row.span(), Some(0..2 * SIZE + 100), "a file without bytes holds nothing");
}

#[test]
fn two_files_for_the_same_bytes_are_refused() {
    let disk = FakeDisk::new();
    drop(filled(&disk, &config(8, 8), 2));
    drop(disk.create(&own(SIZE / 2), SIZE, Allocation::Sparse).unwrap());
    let mut row = log_of(&disk, &config(8, 8), Allocation::Reserved);
    assert!(matches!(row.load(), Err(StoreError::Corrupt { .. })));
}

#[test]
fn who_holds_a_removed_file_keeps_its_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let names = DirectoryNames::of(directory.path());
    let form = FileFormat { size: 8192, allocation: Allocation::Reserved, kind: FileKind::Log };
    let places = FileDirectories::one(&names, directory.path().join("commitlog"));
    let row = MappedFileQueue::new(RealDisk, places, form, OpenFiles::new(OpenFileLimits::of(&config(1, 0))));
    for number in 0..4u8 {
        row.write(u64::from(number) * 8192, &[number + 1; 8192]).unwrap();
    }
    row.flush(0..4 * 8192).unwrap();
    let held = row.find(0).unwrap();
    assert_eq!(row.remove_below(3 * 8192).unwrap(), 3 * 8192);
    assert_eq!(held.read(0..8192), [1; 8192]);
    assert!(row.find(0).is_none());
    assert_eq!(row.remove_below(u64::MAX).unwrap(), 0, "the last file stays");
    assert_eq!(row.spans(), vec![3 * 8192..4 * 8192]);
}

#[test]
fn what_is_not_flushed_stays_open_and_readable_over_the_budget() {
    let disk = FakeDisk::new();
    let row = filled(&disk, &config(100, 0), 2);
    row.keep_open_from(2 * SIZE);
    for number in 2..9u64 {
        row.write(number * SIZE, &[number as u8 + 1; SIZE as usize]).unwrap();
    }
    assert_eq!(disk.open_files().0, 7, "those from the flushed end on");
    for number in 0..9u64 {
        let at = number * SIZE;
        assert_eq!(row.find(at).unwrap().read(at..at + SIZE), [number as u8 + 1; SIZE as usize]);
    }
    row.flush(0..9 * SIZE).unwrap();
    row.keep_open_from(9 * SIZE);
    row.ensure(9 * SIZE).unwrap();
    assert!(disk.open_files().0 <= 3, "{:?}", disk.open_files());
}

#[test]
fn a_row_that_is_only_read_never_writes_and_makes_nothing() {
    let disk = FakeDisk::new();
    drop(filled(&disk, &config(8, 1), 5));
    disk.set_hook(|op, path| {
        let changes =
            !matches!(op, Op::Open | Op::List | Op::ReadAt | Op::ReadFile | Op::FreeSpace | Op::CreateDir);
        assert!(!changes, "{op:?} of {}", path.display());
        Ok(())
    });
    let mut row = log_of(&disk, &config(8, 1), Allocation::ReadOnly);
    row.load().unwrap();
    for number in 0..5 {
        let file = row.find(number * SIZE).unwrap();
        assert_eq!(file.read(file.base()..file.end()), [number as u8 + 1; SIZE as usize]);
        assert!(file.write(file.base(), &[b"x"]).is_err());
    }
    assert!(disk.opened().iter().all(|(_, allocation)| *allocation == Allocation::ReadOnly));
}

#[test]
fn a_real_file_opened_to_be_read_refuses_every_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    drop(RealDisk.create(&path, 4096, Allocation::Reserved).unwrap());
    let region = RealDisk.open(&path, Allocation::ReadOnly).unwrap();
    assert_eq!(region.write_at(0, &[b"x"]).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    region.prefault(0..4096);
    region.begin_flush(0..4096);
    region.release();
    assert_eq!(region.read(0..4096), [0; 4096]);
    assert!(RealDisk.create(&directory.path().join("b"), 4096, Allocation::ReadOnly).is_err());
    assert!(!directory.path().join("b").exists());
}

#[test]
fn new_files_go_to_each_directory_in_turn_but_to_no_full_one() {
    let disk = FakeDisk::new();
    let paths = ["/c", "/a", "/b", "/a"].map(PathBuf::from).to_vec();
    let config = StoreConfig { commit_log_paths: paths, ..config(8, 1) };
    let row = filled(&disk, &config, 3);
    for (number, directory) in ["/a", "/b", "/c"].into_iter().enumerate() {
        let base = number as u64 * SIZE;
        assert_eq!(
            row.path_at(base),
            Some(path_of(directory, base)),
            "as RocketMQ: in the order of their names"
        );
    }
    disk.set_free_of(Path::new("/a"), SIZE - 1);
    row.ensure(3 * SIZE).unwrap();
    row.ensure(4 * SIZE).unwrap();
    assert_eq!(row.path_at(3 * SIZE), Some(path_of("/c", 3 * SIZE)));
    assert_eq!(row.path_at(4 * SIZE), Some(path_of("/b", 4 * SIZE)));
    drop(row);
    let read_only = StoreConfig {
        commit_log_paths: vec!["/b".into()],
        read_only_commit_log_paths: vec!["/a".into(), "/c".into()],
        ..config
    };
    let row = loaded(&disk, &read_only);
    assert_eq!(row.spans().len(), 5);
    row.ensure(5 * SIZE).unwrap();
    assert_eq!(row.path_at(5 * SIZE), Some(path_of("/b", 5 * SIZE)));
    let none = StoreConfig { read_only_commit_log_paths: vec!["/b".into()], ..read_only };
    let refused = FileDirectories::of_log(&disk, &DirectoryNames::of(Path::new(ROOT)), &none).map(drop);
    assert!(matches!(refused, Err(StoreError::Invalid { what: "commit_log_paths", .. })));
}

#[test]
fn a_file_that_cannot_be_opened_is_not_taken_for_missing() {
    let disk = FakeDisk::new();
    let row = filled(&disk, &config(8, 0), 6);
    disk.set_hook(|op, _| if op == Op::Open { Err(std::io::Error::from_raw_os_error(24)) } else { Ok(()) });
    assert!(matches!(row.open(0), Err(StoreError::Io { operation: "open", .. })));
    assert!(
        matches!(row.flush(0..6 * SIZE), Err(StoreError::Io { .. })),
        "a flush that could not look is none"
    );
    disk.clear_hook();
    assert!(row.find(0).is_some());
}

#[test]
fn a_file_whose_size_changed_is_reported_and_not_read() {
    let disk = FakeDisk::new();
    let row = filled(&disk, &config(8, 0), 6);
    disk.forget(&own(0));
    drop(disk.create(&own(0), SIZE / 2, Allocation::Sparse).unwrap());
    match row.open(0).map(drop) {
        Err(StoreError::Corrupt { file, offset, .. }) => assert_eq!((file, offset), (own(0), SIZE / 2)),
        other => panic!("{other:?}"),
    }
    let held: Vec<Arc<_>> = (1..6).filter_map(|number| row.find(number * SIZE)).collect();
    assert_eq!(held.len(), 5);
}
