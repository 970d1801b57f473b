//! Index files: their headers, hash slots and chains, and a cursor over all entries in the order of the log.
//!
//! [`super::verify_log`] checks whether a record has the key of its entry.

use std::path::Path;

use super::{
    buffered_file::BufferedFile,
    finding::{Finding, FindingKind, FindingRun, Sink},
    layout::{StoreLayout, StoreState},
    record_reader::RecordReader,
};
use ferromq_store::{
    files::Disk,
    formats::index_file::{ENTRY_LEN, HEADER_LEN, IndexEntry, IndexHeader, IndexShape, SLOT_LEN},
};

/// An index file and its header.
#[derive(Debug)]
pub(crate) struct IndexFileScan {
    /// Number of the file in the layout.
    number: usize,
    pub(crate) header: IndexHeader,
    shape: IndexShape,
    /// Number of entries plus one.
    pub(crate) count: u32,
}

/// All index files, and the first entry of each commit log file.
#[derive(Debug, Default)]
pub(crate) struct IndexScan {
    pub(crate) files: Vec<IndexFileScan>,
    pub(crate) entries: u64,
    bounds: Vec<IndexStart>,
}

/// The entry at which a cursor starts.
#[derive(Debug, Clone, Copy)]
struct IndexStart {
    file: usize,
    entry: u32,
    /// Physical offset of the preceding ordered entry.
    before: u64,
}

/// An entry and its position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexedEntry {
    pub(crate) file: usize,
    pub(crate) number: u32,
    pub(crate) entry: IndexEntry,
    /// The entry breaks the order: physical offsets must not decrease.
    pub(crate) is_outlier: bool,
}

impl IndexScan {
    /// Reads the headers. A file whose size fits no index is reported and left out.
    pub(crate) fn open<D: Disk>(layout: &StoreLayout<D>, slots: Option<u32>, sink: &Sink<'_>) -> Self {
        let mut scan = Self::default();
        for (number, file) in layout.index.iter().enumerate() {
            let Some(shape) = shape_of(file.len, slots) else {
                let expected = "a header, slots of 4 bytes and four entries of 20 bytes a slot (or the number of slots given)";
                let found = format!("{} bytes", file.len);
                sink.report(&Finding::new(FindingKind::FileSize, &file.path, 0..file.len, expected, found));
                continue;
            };
            let mut head = [0; HEADER_LEN as usize];
            let read = layout
                .open(&file.path)
                .and_then(|region| ferromq_store::files::Region::read_at(&region, 0, &mut head));
            if let Err(error) = read {
                sink.report_unreadable(&file.path, 0..HEADER_LEN, &error);
                continue;
            }
            let header = IndexHeader::decode(&head);
            if header.count > shape.entries {
                let expected = format!("at most {} entries", shape.entries - 1);
                let found = format!("{} entries", header.count - 1);
                sink.report(&Finding::new(FindingKind::IndexHeader, &file.path, 36..40, expected, found));
            }
            let count = header.count.min(shape.entries);
            scan.entries += u64::from(count - 1);
            scan.files.push(IndexFileScan { number, header, shape, count });
        }
        scan
    }

    /// Reads all entries, checks chains, slots and headers, and looks up entries out of order in the log.
    pub(crate) fn check<D: Disk>(&mut self, layout: &StoreLayout<D>, sink: &Sink<'_>) {
        let mut bounds = Vec::with_capacity(layout.log.len());
        let mut probe = RecordReader::new(layout);
        let mut outliers = FindingRun::default();
        let mut chains = SlotChains::default();
        let mut cursor = IndexCursor::at(layout, self, IndexStart { file: 0, entry: 1, before: 0 });
        let mut ordinal = 0;
        while let Some(indexed) = cursor.next(sink) {
            ordinal += 1;
            if chains.file != Some(indexed.file) {
                chains.end(layout, self, sink);
                chains.begin(self, indexed.file);
            }
            chains.take(layout, self, &indexed, sink);
            if indexed.is_outlier {
                if let Some(finding) = outlier(layout, self, &mut probe, &indexed) {
                    outliers.add(sink, ordinal, finding);
                }
                continue;
            }
            while layout.log.get(bounds.len()).is_some_and(|file| indexed.entry.physical_offset >= file.base)
            {
                bounds.push(IndexStart {
                    file: indexed.file,
                    entry: indexed.number,
                    before: cursor.before_last_ordered,
                });
            }
            if ordinal % 4096 == 0 && sink.is_stopped() {
                break;
            }
        }
        chains.end(layout, self, sink);
        outliers.end(sink);
        let end = IndexStart { file: self.files.len(), entry: 1, before: u64::MAX };
        bounds.resize(layout.log.len(), end);
        self.bounds = bounds;
        sink.advance(layout.index.iter().map(|file| file.len).sum());
    }

    /// The entries for records in a commit log file and in the files after it.
    pub(crate) fn cursor<'a, D: Disk>(
        &'a self,
        layout: &'a StoreLayout<D>,
        log_file: usize,
    ) -> IndexCursor<'a, D> {
        let end = IndexStart { file: self.files.len(), entry: 1, before: u64::MAX };
        IndexCursor::at(layout, self, self.bounds.get(log_file).copied().unwrap_or(end))
    }

    pub(crate) fn end(&self) -> u64 {
        self.files.iter().rfind(|file| file.count > 1).map_or(0, |file| file.header.end_physical_offset)
    }

    /// Path of the entry's file, and the entry's byte range in it.
    pub(crate) fn place<'a, D: Disk>(
        &self,
        layout: &'a StoreLayout<D>,
        indexed: &IndexedEntry,
    ) -> (&'a Path, std::ops::Range<u64>) {
        let scan = self.files.get(indexed.file);
        let at = scan.map_or(0, |scan| scan.shape.entry_at(indexed.number));
        let file = scan.and_then(|scan| layout.index.get(scan.number));
        (file.map_or(&layout.root, |file| &file.path), at..at + ENTRY_LEN)
    }
}

/// RocketMQ writes four entries a slot; the caller supplies any other number of slots. Java maps a file as a whole.
fn shape_of(len: u64, slots: Option<u32>) -> Option<IndexShape> {
    let slots = match slots {
        Some(slots) => slots,
        None => u32::try_from(len.checked_sub(HEADER_LEN)? / (SLOT_LEN + 4 * ENTRY_LEN)).ok()?,
    };
    let entries = len.checked_sub(HEADER_LEN + u64::from(slots) * SLOT_LEN)? / ENTRY_LEN;
    let shape = IndexShape { slots, entries: u32::try_from(entries).ok()? };
    (slots > 0 && shape.entries > 0 && shape.file_len() == len && len <= i32::MAX as u64).then_some(shape)
}

/// The fault of an entry out of order.
fn outlier<D: Disk>(
    layout: &StoreLayout<D>,
    scan: &IndexScan,
    probe: &mut RecordReader<'_, D>,
    indexed: &IndexedEntry,
) -> Option<Finding> {
    let entry = indexed.entry;
    // Retention removed the record.
    if entry.physical_offset < layout.log_start() {
        return None;
    }
    let (path, range) = scan.place(layout, indexed);
    let leads = format!("entry {} leads to the physical offset {}", indexed.number, entry.physical_offset);
    let (kind, expected) = match probe.record(entry.physical_offset) {
        Ok(Some(view)) if super::may_have_key(&view, entry.hash) => {
            (FindingKind::IndexHeader, "entries in the order of the log")
        }
        Ok(Some(_)) => (FindingKind::IndexOtherKey, "a record with the entry's key"),
        _ => (FindingKind::IndexEntryWithoutRecord, "a record where the entry leads"),
    };
    Some(Finding::new(kind, path, range, expected, leads))
}

/// The slots of one file, computed from its entries.
#[derive(Default)]
struct SlotChains {
    file: Option<usize>,
    newest: Vec<u32>,
    used: u32,
    first: u64,
    last: u64,
    broken: FindingRun,
}

impl SlotChains {
    fn begin(&mut self, scan: &IndexScan, file: usize) {
        self.file = Some(file);
        self.newest.clear();
        self.newest.resize(scan.files.get(file).map_or(0, |scan| scan.shape.slots as usize), 0);
        (self.used, self.first, self.last) = (0, 0, 0);
    }

    fn take<D: Disk>(
        &mut self,
        layout: &StoreLayout<D>,
        scan: &IndexScan,
        indexed: &IndexedEntry,
        sink: &Sink<'_>,
    ) {
        let entry = indexed.entry;
        let slots = self.newest.len().max(1) as u32;
        let Some(newest) = self.newest.get_mut((entry.hash % slots) as usize) else { return };
        if entry.before != *newest {
            let (path, range) = scan.place(layout, indexed);
            let loops = if entry.before >= indexed.number { ", so the chain loops" } else { "" };
            let found = format!("entry {} leads to entry {}{loops}", indexed.number, entry.before);
            let expected = format!("entry {newest}, the one before it in its slot");
            let finding = Finding::new(FindingKind::IndexChain, path, range, expected, found);
            self.broken.add(sink, u64::from(indexed.number), finding);
        }
        if *newest == 0 {
            self.used += 1;
        }
        *newest = indexed.number;
        if indexed.number == 1 {
            self.first = entry.physical_offset;
        }
        self.last = entry.physical_offset;
    }

    fn end<D: Disk>(&mut self, layout: &StoreLayout<D>, scan: &IndexScan, sink: &Sink<'_>) {
        self.broken.end(sink);
        let Some(found) = self.file.take().and_then(|file| scan.files.get(file)) else { return };
        let Some(file) = layout.index.get(found.number) else { return };
        // A Java broker may be writing the header now.
        if !layout.is_open() || layout.is_ours() {
            self.check_header(found, &file.path, sink);
        }
        // Slots of an unfinished file are on disk only after it is full or closed.
        if layout.state == StoreState::Closed || found.header.count >= found.shape.entries {
            self.check_slots(layout, found, &file.path, sink);
        }
    }

    fn check_header(&self, found: &IndexFileScan, path: &Path, sink: &Sink<'_>) {
        let header = found.header;
        let fields = [
            (16, 8, "first physical offset", header.begin_physical_offset, self.first),
            (24, 8, "last physical offset", header.end_physical_offset, self.last),
            (32, 4, "slots in use", u64::from(header.used_slots), u64::from(self.used)),
        ];
        for (at, len, what, found, expected) in fields {
            if found != expected {
                let (expected, found) = (format!("{what} {expected}"), format!("{what} {found}"));
                sink.report(&Finding::new(FindingKind::IndexHeader, path, at..at + len, expected, found));
            }
        }
        if header.begin_timestamp > header.end_timestamp {
            let found = format!("first time {}, last time {}", header.begin_timestamp, header.end_timestamp);
            sink.report(&Finding::new(FindingKind::IndexHeader, path, 0..16, "times in order", found));
        }
    }

    fn check_slots<D: Disk>(
        &self,
        layout: &StoreLayout<D>,
        found: &IndexFileScan,
        path: &Path,
        sink: &Sink<'_>,
    ) {
        const PIECE: u64 = 64 << 10;
        let mut run = FindingRun::default();
        let walked = layout.open(path).and_then(|region| {
            let mut window = BufferedFile::new(region);
            for (piece, expected) in (0..).step_by(PIECE as usize).zip(self.newest.chunks(PIECE as usize / 4))
            {
                let at = HEADER_LEN + piece;
                let bytes = window.get(at..at + expected.len() as u64 * SLOT_LEN)?;
                for (slot, (bytes, expected)) in
                    (piece / SLOT_LEN..).zip(bytes.as_chunks::<4>().0.iter().zip(expected))
                {
                    let value = u32::from_be_bytes(*bytes);
                    // An open broker may write a slot before it counts the entry.
                    if value != *expected && !(value >= found.count && *expected == 0 && layout.is_open()) {
                        let at = HEADER_LEN + slot * SLOT_LEN;
                        let (wanted, got) =
                            (format!("entry {expected}"), format!("slot {slot} leads to entry {value}"));
                        run.add(
                            sink,
                            slot,
                            Finding::new(FindingKind::IndexChain, path, at..at + SLOT_LEN, wanted, got),
                        );
                    }
                }
            }
            Ok(())
        });
        run.end(sink);
        if let Err(error) = walked {
            sink.report_unreadable(path, HEADER_LEN..found.shape.entry_at(0), &error);
        }
    }
}

/// An entry that was read, but not compared with the one after it.
struct Upcoming {
    file: usize,
    number: u32,
    entry: IndexEntry,
}

/// Reads the entries of all files in sequence.
pub(crate) struct IndexCursor<'a, D: Disk> {
    layout: &'a StoreLayout<D>,
    files: &'a [IndexFileScan],
    file: usize,
    next: u32,
    window: Option<BufferedFile<D::Region>>,
    /// Physical offset of the last ordered entry.
    last_ordered: u64,
    /// Physical offset of the ordered entry before the last.
    before_last_ordered: u64,
    ahead: Option<Upcoming>,
    is_begun: bool,
}

impl<'a, D: Disk> IndexCursor<'a, D> {
    fn at(layout: &'a StoreLayout<D>, scan: &'a IndexScan, from: IndexStart) -> Self {
        Self {
            layout,
            files: &scan.files,
            file: from.file,
            next: from.entry.max(1),
            window: None,
            last_ordered: from.before,
            before_last_ordered: from.before,
            ahead: None,
            is_begun: false,
        }
    }

    /// The next entry. Reports and skips a file that cannot be read.
    pub(crate) fn next(&mut self, sink: &Sink<'_>) -> Option<IndexedEntry> {
        if !self.is_begun {
            self.is_begun = true;
            self.ahead = self.read(sink);
        }
        let Upcoming { file, number, entry } = self.ahead.take()?;
        self.ahead = self.read(sink);
        let at = entry.physical_offset;
        // One entry with a wrong offset must not make outliers of all entries after it.
        let next = self.ahead.as_ref().map(|next| next.entry.physical_offset);
        let is_outlier =
            at < self.last_ordered || next.is_some_and(|next| (self.last_ordered..at).contains(&next));
        if !is_outlier {
            self.before_last_ordered = self.last_ordered;
            self.last_ordered = at;
        }
        Some(IndexedEntry { file, number, entry, is_outlier })
    }

    fn read(&mut self, sink: &Sink<'_>) -> Option<Upcoming> {
        loop {
            let scan = self.files.get(self.file)?;
            if self.next >= scan.count {
                self.next_file();
                continue;
            }
            let path = &self.layout.index.get(scan.number)?.path;
            let at = scan.shape.entry_at(self.next);
            match self.entry_at(path, at) {
                Ok(Some(entry)) => {
                    self.next += 1;
                    return Some(Upcoming { file: self.file, number: self.next - 1, entry });
                }
                Ok(None) => self.next_file(),
                Err(error) => {
                    if error.kind() != std::io::ErrorKind::NotFound || !self.layout.is_open() {
                        sink.report_unreadable(path, at..at + ENTRY_LEN, &error);
                    }
                    self.next_file();
                }
            }
        }
    }

    fn next_file(&mut self) {
        self.file += 1;
        self.next = 1;
        self.window = None;
    }

    fn entry_at(&mut self, path: &Path, at: u64) -> std::io::Result<Option<IndexEntry>> {
        let window = match &mut self.window {
            Some(window) => window,
            none => none.insert(BufferedFile::with_step(self.layout.open(path)?, 256 << 10)),
        };
        Ok(IndexEntry::decode(window.get(at..at + ENTRY_LEN)?))
    }
}
