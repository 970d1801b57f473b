//! A record of the log in the hands of a reader.

use std::{ops::Range, sync::Arc};

use crate::{
    error::Result,
    files::{
        disk::{Disk, Region},
        mapped_file::MappedFile,
        real_disk::RealDisk,
    },
    record::message,
};

/// A record of the log. Its file stays mapped while it lives. Cloning copies no bytes.
pub struct Record<R: Region = <RealDisk as Disk>::Region> {
    file: Arc<MappedFile<R>>,
    range: Range<u64>,
}

impl<R: Region> Record<R> {
    pub(crate) fn new(file: Arc<MappedFile<R>>, range: Range<u64>) -> Self {
        Self { file, range }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// Whether the record holds this physical offset and size.
    pub(crate) fn is_at(&self, physical_offset: u64, size: u32) -> bool {
        message::is_at(self.bytes(), physical_offset, size)
    }

    /// Physical offset of the record, in bytes.
    pub(crate) fn physical_offset(&self) -> u64 {
        self.range.start
    }

    /// Number of deliveries before the record was written.
    pub(crate) fn reconsume_times(&self) -> u32 {
        message::reconsume_times(self.bytes())
    }

    /// Loads all bytes into memory and waits for the disk. Errors: `Io` if the record cannot be read.
    pub fn read_ahead(&self) -> Result<()> {
        self.file.load(self.range.clone())
    }

    /// The stored bytes of the record; decode them with [`crate::record::message::MessageView`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.file.read(self.range.clone())
    }
}

impl<R: Region> Clone for Record<R> {
    fn clone(&self) -> Self {
        Self { file: Arc::clone(&self.file), range: self.range.clone() }
    }
}

impl<R: Region> std::fmt::Debug for Record<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record")
            .field("physical_offset", &self.range.start)
            .field("len", &self.bytes().len())
            .finish()
    }
}
