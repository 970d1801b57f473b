//! The fields of a commit log file's records that queues and index repeat, as columns. Distributed checks read one file
//! a task and join the columns elsewhere.
//!
//! Bodies are verified against their checksums and dropped.

use std::{collections::HashMap, io, ops::Range};

use super::{
    finding::FindingKind,
    key_hashes,
    log_file::{LogFile, Scanned},
    verify_log::transaction_fault,
};
use ferromq_store::{
    files::Region,
    formats::{
        index_file::key_hash,
        message::{self, CONTINUED},
    },
    record::MessageView,
};

/// A fault in a file.
#[derive(Debug)]
pub struct FactFault {
    /// Kind of fault.
    pub kind: FindingKind,
    /// Row of the faulty record; `None` for bytes that are no record.
    pub row: Option<usize>,
    /// Byte range in the file.
    pub range: Range<u64>,
    /// What is wrong.
    pub reason: String,
    /// No record follows these bytes in the file.
    pub is_last: bool,
}

/// Records in the order of the log; each vector has one item a record.
#[derive(Debug, Default)]
pub struct Facts {
    /// Topic names.
    pub topics: Vec<String>,
    /// Index into `topics`.
    pub topic: Vec<i32>,
    /// Queue IDs.
    pub queue_id: Vec<i32>,
    /// System flags.
    pub sys_flag: Vec<i32>,
    /// Sizes of the records, in bytes.
    pub size: Vec<i32>,
    /// Queue offsets.
    pub queue_offset: Vec<i64>,
    /// Physical offsets.
    pub physical_offset: Vec<i64>,
    /// Tag hashes that the queue entries must hold.
    pub tag_hash: Vec<i64>,
    /// Milliseconds since 1970.
    pub store_timestamp: Vec<i64>,
    /// End of each record's keys in `keys`.
    pub key_ends: Vec<i32>,
    /// Key hashes that the index must hold, each once a record.
    pub keys: Vec<i32>,
    /// Tag hash that the index may hold; -1 without a tag.
    pub tag_key: Vec<i32>,
    /// Faults between the records.
    pub faults: Vec<FactFault>,
    /// End of the last record read, relative to the file.
    pub end: u64,
    /// Start of the zeros that fill the rest of the file.
    pub unwritten_from: Option<u64>,
    /// Number of records at the end that belong to an unfinished atomic batch.
    pub continued: u64,
}

/// Reads a commit log file as [`Facts`].
pub struct LogFacts<R: Region> {
    file: LogFile<R>,
    base: u64,
    until: u64,
    continued: u64,
    is_done: bool,
}

impl<R: Region> LogFacts<R> {
    /// Reads `region` up to the physical offset `until`. `base` is the physical offset of its first byte.
    pub fn new(region: R, base: u64, until: u64) -> Self {
        Self { file: LogFile::new(region, base), base, until, continued: 0, is_done: false }
    }

    /// The next records, at most `rows`; `None` at the end. Accepts any bytes. Errors: those of reading the file.
    pub fn next_facts(&mut self, rows: usize) -> io::Result<Option<Facts>> {
        if self.is_done {
            return Ok(None);
        }
        let mut facts = Facts { end: self.file.position(), ..Facts::default() };
        let mut names = HashMap::new();
        while facts.topic.len() < rows.max(1) {
            let at = self.file.position();
            if self.base.saturating_add(at) >= self.until {
                self.is_done = true;
                break;
            }
            let len = self.file.len();
            let Some(scanned) = self.file.next_scanned()? else {
                self.is_done = true;
                break;
            };
            match scanned {
                Scanned::Record(view) => facts.take(at, &view, None, &mut names, &mut self.continued),
                Scanned::Damaged { kind, view } => {
                    facts.take(at, &view, Some(kind), &mut names, &mut self.continued);
                }
                Scanned::Unsound { kind, range, reason, is_last } => {
                    facts.faults.push(FactFault { kind, row: None, range, reason: reason.into(), is_last });
                }
                Scanned::Unwritten { at } => facts.unwritten_from = Some(at),
                Scanned::Full => facts.end = len,
            }
        }
        facts.continued = self.continued;
        Ok(Some(facts))
    }
}

impl Facts {
    fn take(
        &mut self,
        at: u64,
        view: &MessageView<'_>,
        damage: Option<FindingKind>,
        names: &mut HashMap<String, i32>,
        continued: &mut u64,
    ) {
        let range = at..at + u64::from(view.total_size);
        let row = Some(self.topic.len());
        if let Some(kind) = damage {
            let reason = match kind {
                FindingKind::BodyChecksum => {
                    format!("a body that does not match the CRC32 {:08x}", view.body_crc)
                }
                _ => "a record that does not match its property CRC32".into(),
            };
            self.faults.push(FactFault { kind, row, range: range.clone(), reason, is_last: false });
        }
        if let Some((expected, found)) = transaction_fault(view) {
            let reason = format!("{found}, not {expected}");
            let kind = FindingKind::TransactionFlag;
            self.faults.push(FactFault { kind, row, range: range.clone(), reason, is_last: false });
        }
        *continued = if view.sys_flag & CONTINUED == 0 { 0 } else { *continued + 1 };
        self.end = range.end;
        let topic = match names.get(view.topic) {
            Some(topic) => *topic,
            None => {
                let topic = self.topics.len() as i32;
                self.topics.push(view.topic.to_owned());
                names.insert(view.topic.to_owned(), topic);
                topic
            }
        };
        let tag = view.marks().tags;
        self.topic.push(topic);
        self.queue_id.push(view.queue_id);
        self.sys_flag.push(view.sys_flag);
        self.size.push(view.total_size as i32);
        self.queue_offset.push(view.queue_offset as i64);
        self.physical_offset.push(view.physical_offset as i64);
        self.tag_hash.push(message::tag_hash(tag));
        self.store_timestamp.push(view.store_timestamp);
        self.tag_key.push(tag.map_or(-1, |tag| key_hash(view.topic, &format!("T#{tag}")) as i32));
        let begin = self.keys.len();
        if message::is_indexed(view.sys_flag) {
            for hash in key_hashes(view) {
                let is_known = self.keys.iter().skip(begin).any(|known| *known == hash as i32);
                if !is_known {
                    self.keys.push(hash as i32);
                }
            }
        }
        self.key_ends.push(self.keys.len() as i32);
    }
}
