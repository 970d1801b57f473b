//! Single records of the log, wherever they lie.

use std::io;

use super::{layout::Layout, log_file::LogFile};
use ferromq_store::{files::Disk, record::MessageView};

/// A file of the log that is open, and its number.
pub(crate) type OpenFile<D> = Option<(usize, LogFile<<D as Disk>::Region>)>;

/// A file of the log, and a place in it.
pub(crate) type Place<'o, D> = (&'o mut LogFile<<D as Disk>::Region>, u64);

/// The file that holds a physical offset, and the place in it. The file of the last call stays open.
pub(crate) fn find<'o, D: Disk>(
    layout: &Layout<D>,
    open: &'o mut OpenFile<D>,
    physical_offset: u64,
) -> io::Result<Option<Place<'o, D>>> {
    let Some((number, found)) = layout.log_file(physical_offset) else { return Ok(None) };
    if open.as_ref().is_none_or(|(open, _)| *open != number) {
        let region = layout.open(&found.path)?;
        *open = Some((number, LogFile::for_probing(region, found.base)));
    }
    Ok(open.as_mut().map(|(_, file)| (file, physical_offset - found.base)))
}

/// Reads records by physical offset; the file of the last one stays open.
pub(crate) struct Probe<'a, D: Disk> {
    layout: &'a Layout<D>,
    open: OpenFile<D>,
}

impl<'a, D: Disk> Probe<'a, D> {
    pub(crate) fn new(layout: &'a Layout<D>) -> Self {
        Self { layout, open: None }
    }

    /// The record at a physical offset, if one whose lengths and place are right begins there.
    pub(crate) fn record(&mut self, physical_offset: u64) -> io::Result<Option<MessageView<'_>>> {
        match find(self.layout, &mut self.open, physical_offset)? {
            Some((file, at)) => file.record_at(at),
            None => Ok(None),
        }
    }
}
