//! Index files as they lie on disk: their headers, slots and chains, and a cursor over all entries in the log's order.
//!
//! Whether a record has the key of its entry is decided by those who have the record.

use std::path::Path;

use super::{
    finding::{Finding, FindingKind, Run, Sink},
    layout::{Layout, StoreState},
    probe::Probe,
    window::Window,
};
use ferromq_store::{
    files::Disk,
    formats::index_file::{ENTRY_LEN, Entry, HEADER_LEN, Header, SLOT_LEN, Shape},
};

/// An index file and what its header says.
#[derive(Debug)]
pub(crate) struct IndexFileScan {
    /// Its number among the files of the layout.
    number: usize,
    pub(crate) header: Header,
    shape: Shape,
    /// Entries plus one.
    pub(crate) count: u32,
}

/// All index files, and where the entries of each commit log file begin.
#[derive(Debug, Default)]
pub(crate) struct IndexScan {
    pub(crate) files: Vec<IndexFileScan>,
    pub(crate) entries: u64,
    bounds: Vec<Bound>,
}

/// Where reading begins.
#[derive(Debug, Clone, Copy)]
struct Bound {
    file: usize,
    entry: u32,
    /// Physical offset of the entry in line before.
    before: u64,
}

/// An entry and where it stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Indexed {
    pub(crate) file: usize,
    pub(crate) number: u32,
    pub(crate) entry: Entry,
    /// It breaks the order of the others: their physical offsets never go back.
    pub(crate) is_outlier: bool,
}

impl IndexScan {
    /// Reads the headers. What has no shape of an index file is told and left out.
    pub(crate) fn open<D: Disk>(layout: &Layout<D>, slots: Option<u32>, sink: &Sink<'_>) -> Self {
        let mut scan = Self::default();
        for (number, file) in layout.index.iter().enumerate() {
            let Some(shape) = shape_of(file.len, slots) else {
                let expected = "a header, slots of 4 bytes and four entries of 20 bytes a slot (or the number of slots given)";
                let found = format!("{} bytes", file.len);
                sink.find(&Finding::new(FindingKind::FileSize, &file.path, 0..file.len, expected, found));
                continue;
            };
            let mut head = [0; HEADER_LEN as usize];
            let read = layout
                .open(&file.path)
                .and_then(|region| ferromq_store::files::Region::read_at(&region, 0, &mut head));
            if let Err(error) = read {
                sink.unreadable(&file.path, 0..HEADER_LEN, &error);
                continue;
            }
            let header = Header::decode(&head);
            if header.count > shape.entries {
                let expected = format!("at most {} entries", shape.entries - 1);
                let found = format!("{} entries", header.count - 1);
                sink.find(&Finding::new(FindingKind::IndexHeader, &file.path, 36..40, expected, found));
            }
            let count = header.count.min(shape.entries);
            scan.entries += u64::from(count - 1);
            scan.files.push(IndexFileScan { number, header, shape, count });
        }
        scan
    }

    /// Reads all entries: chains, slots and headers are checked, and what stands out of line is looked up in the log.
    pub(crate) fn check<D: Disk>(&mut self, layout: &Layout<D>, sink: &Sink<'_>) {
        let mut bounds = Vec::with_capacity(layout.log.len());
        let mut probe = Probe::new(layout);
        let mut outliers = Run::default();
        let mut chains = Chains::default();
        let mut cursor = Cursor::at(layout, self, Bound { file: 0, entry: 1, before: 0 });
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
                bounds.push(Bound { file: indexed.file, entry: indexed.number, before: cursor.before_last });
            }
            if ordinal % 4096 == 0 && sink.is_stopped() {
                break;
            }
        }
        chains.end(layout, self, sink);
        outliers.end(sink);
        let end = Bound { file: self.files.len(), entry: 1, before: u64::MAX };
        bounds.resize(layout.log.len(), end);
        self.bounds = bounds;
        sink.advance(layout.index.iter().map(|file| file.len).sum());
    }

    /// The entries that lead into a commit log file, or behind it.
    pub(crate) fn cursor<'a, D: Disk>(&'a self, layout: &'a Layout<D>, log_file: usize) -> Cursor<'a, D> {
        let end = Bound { file: self.files.len(), entry: 1, before: u64::MAX };
        Cursor::at(layout, self, self.bounds.get(log_file).copied().unwrap_or(end))
    }

    /// Physical offset of the last record whose keys the headers count.
    pub(crate) fn end(&self) -> u64 {
        self.files.iter().rfind(|file| file.count > 1).map_or(0, |file| file.header.end_physical_offset)
    }

    /// Path of a file, and the bytes of an entry in it.
    pub(crate) fn place<'a, D: Disk>(
        &self,
        layout: &'a Layout<D>,
        indexed: &Indexed,
    ) -> (&'a Path, std::ops::Range<u64>) {
        let scan = self.files.get(indexed.file);
        let at = scan.map_or(0, |scan| scan.shape.entry_at(indexed.number));
        let file = scan.and_then(|scan| layout.index.get(scan.number));
        (file.map_or(&layout.root, |file| &file.path), at..at + ENTRY_LEN)
    }
}

/// RocketMQ's shape has four entries a slot; others only the caller knows. Java maps a file whole.
fn shape_of(len: u64, slots: Option<u32>) -> Option<Shape> {
    let slots = match slots {
        Some(slots) => slots,
        None => u32::try_from(len.checked_sub(HEADER_LEN)? / (SLOT_LEN + 4 * ENTRY_LEN)).ok()?,
    };
    let entries = len.checked_sub(HEADER_LEN + u64::from(slots) * SLOT_LEN)? / ENTRY_LEN;
    let shape = Shape { slots, entries: u32::try_from(entries).ok()? };
    (slots > 0 && shape.entries > 0 && shape.file_len() == len && len <= i32::MAX as u64).then_some(shape)
}

/// What an entry that breaks the order leads to; nothing where the record has its key.
fn outlier<D: Disk>(
    layout: &Layout<D>,
    scan: &IndexScan,
    probe: &mut Probe<'_, D>,
    indexed: &Indexed,
) -> Option<Finding> {
    let entry = indexed.entry;
    // Messages that were removed since are none.
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

/// The slots of one file, as its entries say they should be.
#[derive(Default)]
struct Chains {
    file: Option<usize>,
    newest: Vec<u32>,
    used: u32,
    first: u64,
    last: u64,
    broken: Run,
}

impl Chains {
    fn begin(&mut self, scan: &IndexScan, file: usize) {
        self.file = Some(file);
        self.newest.clear();
        self.newest.resize(scan.files.get(file).map_or(0, |scan| scan.shape.slots as usize), 0);
        (self.used, self.first, self.last) = (0, 0, 0);
    }

    fn take<D: Disk>(&mut self, layout: &Layout<D>, scan: &IndexScan, indexed: &Indexed, sink: &Sink<'_>) {
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

    fn end<D: Disk>(&mut self, layout: &Layout<D>, scan: &IndexScan, sink: &Sink<'_>) {
        self.broken.end(sink);
        let Some(found) = self.file.take().and_then(|file| scan.files.get(file)) else { return };
        let Some(file) = layout.index.get(found.number) else { return };
        // A broker at work may be writing the header.
        if !layout.is_open() || layout.is_ours() {
            self.check_header(found, &file.path, sink);
        }
        // Slots of a file that is being filled are on disk when it is full or closed.
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
                sink.find(&Finding::new(FindingKind::IndexHeader, path, at..at + len, expected, found));
            }
        }
        if header.begin_timestamp > header.end_timestamp {
            let found = format!("first time {}, last time {}", header.begin_timestamp, header.end_timestamp);
            sink.find(&Finding::new(FindingKind::IndexHeader, path, 0..16, "times in order", found));
        }
    }

    fn check_slots<D: Disk>(&self, layout: &Layout<D>, found: &IndexFileScan, path: &Path, sink: &Sink<'_>) {
        const PIECE: u64 = 64 << 10;
        let mut run = Run::default();
        let walked = layout.open(path).and_then(|region| {
            let mut window = Window::new(region);
            for (piece, expected) in (0..).step_by(PIECE as usize).zip(self.newest.chunks(PIECE as usize / 4))
            {
                let at = HEADER_LEN + piece;
                let bytes = window.get(at..at + expected.len() as u64 * SLOT_LEN)?;
                for (slot, (bytes, expected)) in
                    (piece / SLOT_LEN..).zip(bytes.as_chunks::<4>().0.iter().zip(expected))
                {
                    let value = u32::from_be_bytes(*bytes);
                    // A newest entry that is not counted yet is none.
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
            sink.unreadable(path, HEADER_LEN..found.shape.entry_at(0), &error);
        }
    }
}

/// Reads entries one after the other over all files.
pub(crate) struct Cursor<'a, D: Disk> {
    layout: &'a Layout<D>,
    files: &'a [IndexFileScan],
    file: usize,
    next: u32,
    window: Option<Window<D::Region>>,
    /// Physical offset of the last entry in line.
    in_line: u64,
    /// … and of the one in line before that.
    before_last: u64,
    ahead: Option<(usize, u32, Entry)>,
    is_begun: bool,
}

impl<'a, D: Disk> Cursor<'a, D> {
    fn at(layout: &'a Layout<D>, scan: &'a IndexScan, from: Bound) -> Self {
        Self {
            layout,
            files: &scan.files,
            file: from.file,
            next: from.entry.max(1),
            window: None,
            in_line: from.before,
            before_last: from.before,
            ahead: None,
            is_begun: false,
        }
    }

    /// The next entry. A file that cannot be read is told and passed over.
    pub(crate) fn next(&mut self, sink: &Sink<'_>) -> Option<Indexed> {
        if !self.is_begun {
            self.is_begun = true;
            self.ahead = self.read(sink);
        }
        let (file, number, entry) = self.ahead.take()?;
        self.ahead = self.read(sink);
        let at = entry.physical_offset;
        // One entry with a wrong offset must not make outliers of all that come behind it.
        let goes_back = |(_, _, ahead): &(usize, u32, Entry)| {
            ahead.physical_offset < at && ahead.physical_offset >= self.in_line
        };
        let is_outlier = at < self.in_line || self.ahead.as_ref().is_some_and(goes_back);
        if !is_outlier {
            self.before_last = self.in_line;
            self.in_line = at;
        }
        Some(Indexed { file, number, entry, is_outlier })
    }

    fn read(&mut self, sink: &Sink<'_>) -> Option<(usize, u32, Entry)> {
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
                    return Some((self.file, self.next - 1, entry));
                }
                Ok(None) => self.next_file(),
                Err(error) => {
                    if error.kind() != std::io::ErrorKind::NotFound || !self.layout.is_open() {
                        sink.unreadable(path, at..at + ENTRY_LEN, &error);
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

    fn entry_at(&mut self, path: &Path, at: u64) -> std::io::Result<Option<Entry>> {
        let window = match &mut self.window {
            Some(window) => window,
            none => none.insert(Window::with_step(self.layout.open(path)?, 256 << 10)),
        };
        Ok(Entry::decode(window.get(at..at + ENTRY_LEN)?))
    }
}
