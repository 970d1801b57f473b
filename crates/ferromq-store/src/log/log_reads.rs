//! Reads of the commit log: single records, and a walk over a range.

use std::{ops::Range, sync::Arc};

use crate::{
    error::Result,
    files::{disk::Disk, mapped_file::MappedFile},
    log::commit_log::CommitLog,
    record::{
        log_record::Record,
        message::{self, BLANK_LEN, MIN_RECORD_LEN, MessageView, Peek},
    },
};

type File<D> = Arc<MappedFile<<D as Disk>::Region>>;

impl<D: Disk> CommitLog<D> {
    /// The record of `size` bytes at `physical_offset`, if its file is kept and readers may see it. `file` caches the
    /// file of the previous record.
    ///
    /// Errors: `Io` if the record's file cannot be opened now.
    pub(crate) fn record_in(
        &self,
        file: &mut Option<File<D>>,
        physical_offset: u64,
        size: u32,
    ) -> Result<Option<Record<D::Region>>> {
        let Some(end) = physical_offset.checked_add(u64::from(size)) else { return Ok(None) };
        let file = self.file_in(file, physical_offset, end)?;
        Ok(file.map(|file| Record::new(Arc::clone(file), physical_offset..end)))
    }

    /// Begins to load the first bytes of a range of `file` into the processor's caches, and does not wait for them.
    /// Returns whether the file holds the range and readers may see it.
    pub(crate) fn touch(&self, file: &MappedFile<D::Region>, range: Range<u64>) -> bool {
        let is_there = file.base() <= range.start
            && range.end <= file.end().min(self.readable())
            && self.damages.overlapping(&range).is_none();
        if is_there {
            std::hint::black_box(file.read(range).first().copied());
        }
        is_there
    }

    /// Finds the open file that holds an offset, trying `file` first. Returns whether the answer is known without
    /// opening a file: the file is open, or does not exist.
    pub(crate) fn find_open(&self, file: &mut Option<File<D>>, physical_offset: u64) -> bool {
        let is_inside = |file: &MappedFile<D::Region>| (file.base()..file.end()).contains(&physical_offset);
        if file.as_deref().is_some_and(is_inside) {
            return true;
        }
        let found = self.files.find_open(physical_offset);
        let is_known = found.is_some();
        *file = found.flatten();
        is_known
    }

    /// When the record at `physical_offset` was stored. `file` caches the file of the previous record.
    pub(crate) fn store_timestamp(
        &self,
        file: &mut Option<File<D>>,
        physical_offset: u64,
        size: u32,
    ) -> Option<i64> {
        let end = physical_offset.checked_add(u64::from(size))?;
        let bytes = self.file_in(file, physical_offset, end).ok()??.read(physical_offset..end);
        message::is_at(bytes, physical_offset, size).then(|| message::store_timestamp(bytes))?
    }

    /// The file that holds the whole range, if readers may see it. `file` caches the previous one.
    fn file_in<'a>(&self, file: &'a mut Option<File<D>>, from: u64, end: u64) -> Result<Option<&'a File<D>>> {
        let is_inside = |file: &MappedFile<D::Region>| file.base() <= from && end <= file.end();
        if self.damages.overlapping(&(from..end)).is_some() {
            return Ok(None);
        }
        if file.as_deref().is_none_or(|file| !is_inside(file)) {
            *file = self.files.open(from)?;
        }
        Ok(file.as_ref().filter(|file| is_inside(file) && end <= self.readable()))
    }

    /// The record at `physical_offset`, of the length that its head states; nothing else is checked.
    pub(crate) fn named_record(
        &self,
        file: &mut Option<File<D>>,
        physical_offset: u64,
    ) -> Option<Record<D::Region>> {
        let head_end = physical_offset.checked_add(u64::from(MIN_RECORD_LEN))?;
        let head = self.file_in(file, physical_offset, head_end).ok()??.read(physical_offset..head_end);
        let Peek::Message(size) = message::peek(head) else { return None };
        let record = self.record_in(file, physical_offset, size).ok()??;
        record.is_at(physical_offset, size).then_some(record)
    }

    /// The record at `physical_offset`, fully checked: the offset may come from a client.
    pub(crate) fn checked_record(&self, physical_offset: u64) -> Option<Record<D::Region>> {
        let readable = self.readable();
        let file = self.files.find(physical_offset)?;
        let bytes = file.read(physical_offset..file.end().min(readable));
        let view = MessageView::decode(bytes, true).ok()?;
        let end = physical_offset + u64::from(view.total_size);
        (view.physical_offset == physical_offset).then(|| Record::new(file, physical_offset..end))
    }

    /// When the record at `physical_offset` was stored; checked as [`Self::checked_record`] does.
    pub(crate) fn stored_at(&self, physical_offset: u64) -> Option<i64> {
        let record = self.checked_record(physical_offset)?;
        message::store_timestamp(record.bytes())
    }

    /// Visits the records in `range`, which readers must be allowed to see, with each one's offset and bytes.
    ///
    /// Returns where it stopped: the end of the range, or the first offset at which no record begins.
    pub(crate) fn walk<E>(
        &self,
        range: Range<u64>,
        mut visit: impl FnMut(u64, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<u64, E> {
        let mut at = range.start;
        while at < range.end {
            let Some(file) = self.files.find(at) else { break };
            let mut bytes = file.read(at..file.end().min(range.end));
            loop {
                match message::peek(bytes) {
                    Peek::Message(size) => {
                        let Some((record, rest)) = bytes.split_at_checked(size as usize) else {
                            return Ok(at);
                        };
                        visit(at, record)?;
                        at += u64::from(size);
                        bytes = rest;
                    }
                    Peek::Blank => {
                        at = file.end();
                        break;
                    }
                    Peek::Nothing if !bytes.is_empty() && file.end() - at < BLANK_LEN => {
                        at = file.end();
                        break;
                    }
                    Peek::Nothing => {
                        if bytes.is_empty() && at < range.end {
                            break;
                        }
                        return Ok(at);
                    }
                }
            }
        }
        Ok(at)
    }
}
