//! What the records of one commit log file say that queues and index must repeat: as columns, for checks that take a
//! file a task and compare elsewhere.
//!
//! Bodies are checked against their checksums and left behind. What is compared with what is the caller's business.

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

/// Something in a file that is not as it should be.
#[derive(Debug)]
pub struct FactFault {
    /// What kind of thing.
    pub kind: FindingKind,
    /// The row of the record it is about; `None` for bytes that are no record.
    pub row: Option<usize>,
    /// Bytes inside the file.
    pub range: Range<u64>,
    /// What is wrong.
    pub reason: String,
    /// No record comes behind these bytes in this file.
    pub is_last: bool,
}

/// Records in the order of the log: one item a record in each of the vectors.
#[derive(Debug, Default)]
pub struct Facts {
    /// Names of topics; `topic` counts from 0 in them.
    pub topics: Vec<String>,
    /// Which topic.
    pub topic: Vec<i32>,
    /// Queue ids.
    pub queue_id: Vec<i32>,
    /// System flags.
    pub sys_flag: Vec<i32>,
    /// Sizes of the records.
    pub size: Vec<i32>,
    /// Queue offsets.
    pub queue_offset: Vec<i64>,
    /// Where the records lie.
    pub physical_offset: Vec<i64>,
    /// The tag hashes that queue entries must have.
    pub tag_hash: Vec<i64>,
    /// Store timestamps.
    pub store_timestamp: Vec<i64>,
    /// Behind the last of each record's `keys`.
    pub key_ends: Vec<i32>,
    /// Hashes that the index must lead from, each once a record.
    pub keys: Vec<i32>,
    /// A hash that the index may lead from: that of the tag; -1 without.
    pub tag_key: Vec<i32>,
    /// What is wrong.
    pub faults: Vec<FactFault>,
    /// Behind the last record that was read, inside the file.
    pub end: u64,
    /// From here on the file holds nothing but zeros.
    pub unwritten_from: Option<u64>,
    /// Records of the end that were appended as one with what should follow.
    pub continued: u64,
}

/// A commit log file read as [`Facts`].
pub struct LogFacts<R: Region> {
    file: LogFile<R>,
    base: u64,
    until: u64,
    continued: u64,
    is_done: bool,
}

impl<R: Region> LogFacts<R> {
    /// Reads `region`, whose first byte has the physical offset `base`; records from the physical offset `until` on
    /// are not looked at.
    pub fn new(region: R, base: u64, until: u64) -> Self {
        Self { file: LogFile::new(region, base), base, until, continued: 0, is_done: false }
    }

    /// The next records, at most `rows`; `None` behind the last. Any bytes may be given; errors are those of reading.
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
                FindingKind::BodyChecksum => format!("a body without the CRC32 {:08x}", view.body_crc),
                _ => "a record without the CRC32 among its properties".into(),
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
