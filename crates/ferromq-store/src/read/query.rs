//! Finds messages by key, through the index.
//!
//! The index has only hashes, so each candidate record is read. The work of a query is bounded: many messages may share
//! a key.

use crate::{
    files::disk::Disk,
    index::index_file::key_hash,
    read::reader::Reader,
    read::types::QueryResult,
    record::{log_record::Record, message::MessageView},
};

/// Most index entries that a query follows.
const MAX_ENTRIES: u64 = 1 << 20;
/// Most records that a query reads without a match.
const MAX_FRUITLESS_RECORDS: u64 = 1 << 14;

impl<D: Disk> Reader<D> {
    /// Messages of `topic` with the key or unique key `key`, stored in the time range, newest first.
    #[must_use]
    pub fn query_by_key(
        &self,
        topic: &str,
        key: &str,
        max_count: usize,
        begin_ms: i64,
        end_ms: i64,
    ) -> QueryResult<D::Region> {
        self.query(&KeyQuery { topic, key, is_unique: false, max_count, begin_ms, end_ms })
    }

    /// Messages of `topic` whose unique key is `key`, stored in the time range, newest first.
    ///
    /// A producer that sends a message again gives it the same unique key, so there may be several.
    #[must_use]
    pub fn query_by_unique_key(
        &self,
        topic: &str,
        key: &str,
        max_count: usize,
        begin_ms: i64,
        end_ms: i64,
    ) -> QueryResult<D::Region> {
        self.query(&KeyQuery { topic, key, is_unique: true, max_count, begin_ms, end_ms })
    }
}

struct KeyQuery<'a> {
    topic: &'a str,
    key: &'a str,
    /// Match only the unique key.
    is_unique: bool,
    max_count: usize,
    begin_ms: i64,
    end_ms: i64,
}

impl<D: Disk> Reader<D> {
    fn query(&self, query: &KeyQuery<'_>) -> QueryResult<D::Region> {
        if self.home.is_closed() {
            return QueryResult { messages: Vec::new(), is_complete: true };
        }
        let &KeyQuery { topic, key, is_unique, max_count, begin_ms, end_ms } = query;
        let mut messages: Vec<Record<D::Region>> = Vec::new();
        let mut records_left = MAX_FRUITLESS_RECORDS;
        let mut entries_left = MAX_ENTRIES;
        // A message that repeats a key has two index entries, one after the other.
        let mut last = None;
        let mut file = None;
        let visit = |physical_offset| {
            if last.replace(physical_offset) == Some(physical_offset) {
                return true;
            }
            let record = self.log.named_record(&mut file, physical_offset).filter(|record| {
                MessageView::decode(record.bytes(), false).is_ok_and(|view| {
                    let marks = view.marks();
                    view.topic == topic
                        && (begin_ms..=end_ms).contains(&view.store_timestamp)
                        && (marks.unique_key == Some(key)
                            || !is_unique && marks.each_key().any(|word| word == key))
                        && !self.queues.is_of_deleted(&view)
                })
            });
            match record {
                Some(record) => messages.push(record),
                None => records_left -= 1,
            }
            messages.len() < max_count && records_left > 0
        };
        if max_count > 0 {
            self.index.find(key_hash(topic, key), begin_ms..=end_ms, &mut entries_left, visit);
        }
        let is_complete = messages.len() >= max_count || (entries_left > 0 && records_left > 0);
        QueryResult { messages, is_complete }
    }
}
