//! Reads a file through a buffer. Memory is bounded, and a broken disk is an error, where a map would end the process.

use std::{io, ops::Range};

use ferromq_store::files::Region;

/// Bytes read at once.
const STEP: u64 = 256 << 10;
/// Largest buffer. A longer range is read once through the buffer, then through the map.
const MAX_BUFFER: u64 = 16 << 20;

/// A file and its buffered part.
pub(crate) struct BufferedFile<R: Region> {
    region: R,
    buffer: Vec<u8>,
    /// Byte range in the buffer.
    held: Range<u64>,
    step: u64,
}

impl<R: Region> BufferedFile<R> {
    pub(crate) fn new(region: R) -> Self {
        Self::with_step(region, STEP)
    }

    /// Reads `step` bytes ahead.
    pub(crate) fn with_step(region: R, step: u64) -> Self {
        Self { region, buffer: Vec::new(), held: 0..0, step: step.clamp(1, MAX_BUFFER) }
    }

    pub(crate) fn len(&self) -> u64 {
        self.region.len()
    }

    /// The first position from `at` on that may hold anything but zeros.
    pub(crate) fn next_data(&self, at: u64) -> u64 {
        self.region.next_data(at).max(at).min(self.len())
    }

    /// The bytes of `range`, cut at the end of the file.
    pub(crate) fn get(&mut self, range: Range<u64>) -> io::Result<&[u8]> {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        if start < self.held.start || end > self.held.end {
            if end - start > MAX_BUFFER {
                return self.get_large(start..end);
            }
            self.fill(start, end)?;
        }
        let (from, to) = ((start - self.held.start) as usize, (end - self.held.start) as usize);
        Ok(self.buffer.get(from..to).unwrap_or_default())
    }

    fn fill(&mut self, start: u64, end: u64) -> io::Result<()> {
        let until = end.max(start.saturating_add(self.step)).min(self.len());
        self.held = 0..0;
        self.buffer.resize((until - start) as usize, 0);
        self.region.read_at(start, &mut self.buffer)?;
        self.held = start..until;
        Ok(())
    }

    /// Reads the range once, so that a broken disk is an error and not a signal, then through the map.
    fn get_large(&mut self, range: Range<u64>) -> io::Result<&[u8]> {
        let mut at = range.start;
        while at < range.end {
            self.fill(at, at.saturating_add(STEP).min(range.end))?;
            at = self.held.end.max(at + 1);
        }
        self.held = 0..0;
        Ok(self.region.read(range))
    }
}
