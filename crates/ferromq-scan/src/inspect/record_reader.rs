//! Reads single records of the log by physical offset.

use std::io;

use super::{layout::StoreLayout, log_file::LogFile};
use ferromq_store::{files::Disk, record::MessageView};

/// An open log file and its number.
pub(crate) type OpenLogFile<D> = Option<(usize, LogFile<<D as Disk>::Region>)>;

/// A log file and a position in it.
pub(crate) type LogPosition<'o, D> = (&'o mut LogFile<<D as Disk>::Region>, u64);

/// The file and position of a physical offset. The file of the last call stays open.
pub(crate) fn find<'o, D: Disk>(
    layout: &StoreLayout<D>,
    open: &'o mut OpenLogFile<D>,
    physical_offset: u64,
) -> io::Result<Option<LogPosition<'o, D>>> {
    let Some((number, found)) = layout.log_file(physical_offset) else { return Ok(None) };
    if open.as_ref().is_none_or(|(open, _)| *open != number) {
        let region = layout.open(&found.path)?;
        *open = Some((number, LogFile::for_probing(region, found.base)));
    }
    Ok(open.as_mut().map(|(_, file)| (file, physical_offset - found.base)))
}

/// Reads records by physical offset; the last file stays open.
pub(crate) struct RecordReader<'a, D: Disk> {
    layout: &'a StoreLayout<D>,
    open: OpenLogFile<D>,
}

impl<'a, D: Disk> RecordReader<'a, D> {
    pub(crate) fn new(layout: &'a StoreLayout<D>) -> Self {
        Self { layout, open: None }
    }

    /// The record at a physical offset, if its lengths and offset are right.
    pub(crate) fn record(&mut self, physical_offset: u64) -> io::Result<Option<MessageView<'_>>> {
        match find(self.layout, &mut self.open, physical_offset)? {
            Some((file, at)) => file.record_at(at),
            None => Ok(None),
        }
    }
}
