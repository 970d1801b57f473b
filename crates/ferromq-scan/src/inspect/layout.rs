//! Lists the files of a store directory and finds how the last broker left it. Read-only, without a lock.

use std::path::{Path, PathBuf};

use super::{
    InspectOptions,
    finding::{Finding, FindingKind, Sink},
    parallel::{on_each, threads},
    queue_slots::{QueueFiles, SegmentFile, last_entry},
};
use ferromq_store::{
    Result, StoreError,
    files::{Allocation, Disk, Region},
    formats::{checkpoint::CheckpointMarks, last_shutdown::ABORT_MARK},
};

/// How the last broker left a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreState {
    /// Closed cleanly: everything is on disk.
    Closed,
    /// A broker has the store open.
    Open,
    /// The broker was killed.
    Killed,
}

impl StoreState {
    /// `closed`, `open` or `killed`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::Killed => "killed",
        }
    }
}

/// The files and the state of a store directory.
pub(crate) struct StoreLayout<D: Disk> {
    pub(crate) disk: D,
    pub(crate) root: PathBuf,
    pub(crate) state: StoreState,
    /// Content of the abort file, if it exists.
    pub(crate) abort: Option<String>,
    /// The checkpoint, read before the other files.
    pub(crate) marks: Option<CheckpointMarks>,
    pub(crate) log_paths: Vec<PathBuf>,
    pub(crate) log: Vec<SegmentFile>,
    pub(crate) queues: Vec<QueueFiles>,
    pub(crate) index: Vec<SegmentFile>,
    /// Records before this physical offset had queue entries when the queues were listed. Set for a Java broker's store
    /// that is not closed.
    pub(crate) dispatched: u64,
    /// Files that are missing, overlap or cannot be opened.
    pub(crate) findings: Vec<Finding>,
}

impl<D: Disk> StoreLayout<D> {
    /// Lists the files of a store directory. Errors: `Io` if the directory does not exist or cannot be read, `NoStore`
    /// if it is not a store.
    pub(crate) fn read(disk: D, directory: &Path, options: &InspectOptions) -> Result<Self> {
        let root = disk.absolute(directory).map_err(|source| StoreError::io("open", directory, source))?;
        let entries = disk.list(&root).map_err(|source| StoreError::io("list", &root, source))?;
        let own_log = root.join("commitlog");
        if options.commit_log_paths.is_empty() && !entries.contains(&own_log) {
            return Err(StoreError::NoStore { path: root, missing: "a directory commitlog" });
        }
        let log_paths = if options.commit_log_paths.is_empty() {
            vec![own_log]
        } else {
            options.commit_log_paths.clone()
        };
        let abort = match disk.read_file(&root.join("abort")) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).trim().to_owned()),
            Err(_) => None,
        };
        let is_locked = disk.is_locked(&root.join("lock")).unwrap_or(false);
        let state = match (is_locked, &abort) {
            (true, _) => StoreState::Open,
            (false, Some(_)) => StoreState::Killed,
            (false, None) => StoreState::Closed,
        };
        let marks =
            disk.read_file(&root.join("checkpoint")).ok().and_then(|bytes| CheckpointMarks::read(&bytes));
        let mut layout = Self {
            disk,
            root,
            state,
            abort,
            marks,
            log_paths,
            log: Vec::new(),
            queues: Vec::new(),
            index: Vec::new(),
            dispatched: 0,
            findings: Vec::new(),
        };
        layout.queues = layout.list_queues()?;
        if layout.state != StoreState::Closed && !layout.is_ours() {
            layout.dispatched = layout.find_dispatched(threads(options));
            // A second listing holds every file that was dispatched by then.
            layout.findings.clear();
            layout.queues = layout.list_queues()?;
        }
        layout.index = layout.list_index()?;
        layout.log = layout.list_log()?;
        if layout.is_open() {
            layout.leave_out_prepared();
        }
        Ok(layout)
    }

    /// Whether ferromq wrote the abort file.
    pub(crate) fn is_ours(&self) -> bool {
        self.abort.as_deref().is_none_or(|text| text.starts_with(ABORT_MARK.trim()))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == StoreState::Open
    }

    pub(crate) fn open(&self, path: &Path) -> std::io::Result<D::Region> {
        self.disk.open(path, Allocation::ReadOnly)
    }

    fn list(&self, directory: &Path) -> Result<Vec<PathBuf>> {
        self.disk.list(directory).map_err(|source| StoreError::io("list", directory, source))
    }

    pub(crate) fn log_start(&self) -> u64 {
        self.log.first().map_or(0, |file| file.base)
    }

    /// The file of the log that holds this physical offset.
    pub(crate) fn log_file(&self, physical_offset: u64) -> Option<(usize, &SegmentFile)> {
        let after = self.log.partition_point(|file| file.base <= physical_offset);
        let number = after.checked_sub(1)?;
        let file = self.log.get(number)?;
        (physical_offset < file.end()).then_some((number, file))
    }

    /// A Java broker dispatches in the order of the log, so the newest entry may be the last one dispatched.
    fn find_dispatched(&self, threads: usize) -> u64 {
        let last = on_each(threads, &self.queues, || (), |(), _, queue| last_entry(&self.disk, queue));
        last.into_iter().flatten().map(|entry| entry.physical_offset).max().unwrap_or(0)
    }

    /// Leaves out empty files at the end, which an open broker may be filling.
    fn leave_out_prepared(&mut self) {
        while let Some(file) = self.log.last() {
            let mut head = [0; 8];
            let read = self.open(&file.path).and_then(|region| region.read_at(0, &mut head));
            if read.is_err() || head != [0; 8] || self.log.len() == 1 {
                break;
            }
            self.log.pop();
        }
    }

    pub(crate) fn log_end(&self) -> u64 {
        self.log.last().map_or(0, SegmentFile::end)
    }

    fn list_log(&mut self) -> Result<Vec<SegmentFile>> {
        let mut paths = Vec::new();
        for directory in self.log_paths.clone() {
            paths.extend(self.list(&directory)?);
        }
        Ok(self.row(paths, 1))
    }

    fn list_queues(&mut self) -> Result<Vec<QueueFiles>> {
        let mut queues = Vec::new();
        for topic_path in self.list(&self.root.join("consumequeue"))? {
            let Some(topic) = name_of(&topic_path) else { continue };
            for directory in self.list(&topic_path).unwrap_or_default() {
                let Some(queue_id) = name_of(&directory).and_then(|name| name.parse().ok()) else { continue };
                let files = self.list(&directory)?;
                let files = self.row(files, 20);
                queues.push(QueueFiles { topic: topic.to_owned(), queue_id, files });
            }
        }
        queues.sort_by(|a, b| (&a.topic, a.queue_id).cmp(&(&b.topic, b.queue_id)));
        Ok(queues)
    }

    fn list_index(&mut self) -> Result<Vec<SegmentFile>> {
        let mut files = Vec::new();
        for path in self.list(&self.root.join("index"))? {
            let is_index = name_of(&path)
                .is_some_and(|name| name.len() == 17 && name.bytes().all(|byte| byte.is_ascii_digit()));
            if is_index && let Some(len) = self.len_of(&path) {
                files.push(SegmentFile { base: 0, len, path });
            }
        }
        Ok(files)
    }

    /// Size of a file. A file that cannot be opened is a finding, unless it was removed meanwhile. In an open store an
    /// empty file is still being created.
    fn len_of(&mut self, path: &Path) -> Option<u64> {
        match self.disk.len(path) {
            Ok(0) if self.is_open() => None,
            Ok(len) => Some(len),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && self.is_open() => None,
            Err(error) => {
                let text = error.to_string();
                self.findings.push(Finding::new(FindingKind::Unreadable, path, 0..0, "a file", text));
                None
            }
        }
    }

    /// Orders segment files and leaves out overlapping ones. Entries are `unit` bytes long.
    fn row(&mut self, paths: Vec<PathBuf>, unit: u64) -> Vec<SegmentFile> {
        let mut files: Vec<SegmentFile> = Vec::new();
        for path in paths {
            let Some(base) = parse_base(&path) else { continue };
            let Some(len) = self.len_of(&path) else { continue };
            files.push(SegmentFile { base, len, path });
        }
        files.sort_by(|a, b| (a.base, &a.path).cmp(&(b.base, &b.path)));
        let mut row: Vec<SegmentFile> = Vec::new();
        for mut file in files {
            let len = file.len;
            if len == 0 || len % unit != 0 || file.base % unit != 0 || file.base.checked_add(len).is_none() {
                let found = format!("{len} bytes");
                let expected = if unit == 1 { "bytes".into() } else { format!("a multiple of {unit} bytes") };
                self.findings.push(Finding::new(FindingKind::FileSize, &file.path, 0..len, expected, found));
                file.len -= len % unit;
                if file.len == 0 || file.base % unit != 0 || file.base.checked_add(len).is_none() {
                    continue;
                }
            }
            match row.last().map(SegmentFile::end) {
                Some(end) if end < file.base => {
                    let found = format!("the next file is {}", file.path.display());
                    let expected = format!("a file that holds the bytes {end} to {}", file.base);
                    let path = file.path.with_file_name(format!("{end:020}"));
                    self.findings.push(Finding::new(
                        FindingKind::MissingFile,
                        &path,
                        0..file.base - end,
                        expected,
                        found,
                    ));
                }
                Some(end) if end > file.base => {
                    let found = format!("it begins at {}", file.base);
                    let expected = format!("a file that begins at {end}");
                    self.findings.push(Finding::new(
                        FindingKind::FileSize,
                        &file.path,
                        0..0,
                        expected,
                        found,
                    ));
                    continue;
                }
                _ => {}
            }
            row.push(file);
        }
        row
    }

    /// Reports the faults found while listing.
    pub(crate) fn report(&self, sink: &Sink<'_>) {
        self.findings.iter().for_each(|finding| sink.report(finding));
    }
}

fn name_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// The base offset in a file name of RocketMQ's 20 digits.
fn parse_base(path: &Path) -> Option<u64> {
    let name = name_of(path)?;
    (name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit())).then(|| name.parse().ok())?
}
