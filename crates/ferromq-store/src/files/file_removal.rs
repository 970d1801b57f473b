//! Removes files of a file queue, at its end for recovery and at its beginning for retention.

use crate::{
    error::{IoResult, Result},
    files::{
        disk::Disk,
        mapped_file_queue::{MappedFileQueue, parse_name},
        open_files::FileSlot,
    },
};

impl<D: Disk> MappedFileQueue<D> {
    /// Removes all files.
    pub(crate) fn clear(&self) -> Result<()> {
        let _removing = self.removing.lock();
        let _changing = self.changing.lock();
        while self.remove_last()? {}
        self.sync_directory()
    }

    /// Removes every file with a valid name, whatever its size, without loading the queue.
    pub(crate) fn remove_all_found(&self) -> Result<()> {
        for directory in self.places.directories() {
            let paths = self.disk.list(directory).or_io("list", directory)?;
            for path in paths.into_iter().rev().filter(|path| parse_name(path).is_some()) {
                self.disk.remove(&path).or_io("remove", &path)?;
            }
        }
        Ok(())
    }

    /// Removes the files that lie wholly at or after `offset`.
    ///
    /// For recovery only. Bytes after `offset` in its own file stay.
    pub(crate) fn truncate(&self, offset: u64) -> Result<()> {
        let _removing = self.removing.lock();
        let _changing = self.changing.lock();
        loop {
            let spans = self.spans();
            let Some(last) = spans.last() else { return Ok(()) };
            if last.start < offset || (last.start == offset && spans.len() == 1) {
                return Ok(());
            }
            self.remove_last()?;
        }
    }

    /// Removes the newest file first: a crash must leave a contiguous prefix.
    fn remove_last(&self) -> Result<bool> {
        let Some(slot) = self.row.slots.write().pop() else { return Ok(false) };
        match self.remove_file(&slot) {
            Ok(()) => {
                self.open_files.forget(&self.row, |base| base == slot.base);
                Ok(true)
            }
            Err(error) => {
                self.row.slots.write().push(slot);
                Err(error)
            }
        }
    }

    /// Removes the files that lie wholly before `offset`, except the last file, and returns their size in bytes.
    ///
    /// Readers keep the bytes of files that they hold. On return the removal is durable. A crash before that leaves no
    /// new gap.
    pub(crate) fn remove_below(&self, offset: u64) -> Result<u64> {
        let _removing = self.removing.lock();
        let mut removed = 0;
        loop {
            let slot = {
                let mut slots = self.row.slots.write();
                if slots.len() < 2 || slots.first().is_none_or(|slot| slot.end() > offset) {
                    break;
                }
                // No reader can open it from here on.
                slots.remove(0)
            };
            // Oldest first, durable in that order: another directory may be on another disk.
            let gone = self.places.sync_others(&self.disk, slot.directory);
            if let Err(error) = gone.and_then(|()| self.remove_file(&slot)) {
                self.row.slots.write().insert(0, slot);
                return Err(error);
            }
            self.open_files.forget(&self.row, |base| base == slot.base);
            removed += slot.len;
        }
        self.sync_directory()?;
        Ok(removed)
    }

    fn remove_file(&self, slot: &FileSlot<D::Region>) -> Result<()> {
        let path = self.places.path(slot.directory, slot.base);
        // Another thread may have removed it.
        self.disk.remove(&path).if_found().or_io("remove", &path)?;
        self.places.set_changed(slot.directory);
        Ok(())
    }
}
