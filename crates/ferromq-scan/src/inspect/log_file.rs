//! Reads one commit log file, record by record.
//!
//! A record never spans two files, so each file can be read alone.

use std::{io, ops::Range};

use super::{buffered_file::BufferedFile, finding::FindingKind};
use ferromq_store::{
    files::Region,
    formats::{
        message::{
            self, BLANK_LEN, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_LEN, PHYSICAL_OFFSET_AT, Peek,
        },
        property_crc,
    },
    record::MessageView,
};

/// A commit log file and the read position.
pub struct LogFile<R: Region> {
    window: BufferedFile<R>,
    base: u64,
    at: u64,
}

/// Content at a position of a commit log file.
#[derive(Debug)]
pub enum Scanned<'a> {
    /// A sound record.
    Record(MessageView<'a>),
    /// A record in the right place with the right lengths, but a wrong checksum.
    Damaged {
        /// `BodyChecksum` or `PropertyChecksum`.
        kind: FindingKind,
        /// The record.
        view: MessageView<'a>,
    },
    /// Bytes that are no record, up to the next sound record or the end of the file.
    Unsound {
        /// The fault at their beginning.
        kind: FindingKind,
        /// Byte range in the file.
        range: Range<u64>,
        /// The broken rule.
        reason: &'static str,
        /// No record follows in this file.
        is_last: bool,
    },
    /// Zeros to the end of the file.
    Unwritten {
        /// Position in the file.
        at: u64,
    },
    /// The file is full: a blank record or a record ends with it.
    Full,
}

enum RecordCheck {
    Sound,
    Damaged(FindingKind),
    Blank,
    Zeros,
    Unsound(FindingKind, &'static str),
}

impl<R: Region> LogFile<R> {
    /// Reads `region` from its beginning. `base` is the physical offset of its first byte.
    pub fn new(region: R, base: u64) -> Self {
        Self { window: BufferedFile::new(region), base, at: 0 }
    }

    /// Reads single records far from each other.
    pub(crate) fn for_probing(region: R, base: u64) -> Self {
        Self { window: BufferedFile::with_step(region, 16 << 10), base, at: 0 }
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.window.len()
    }

    /// Whether the file has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next position in the file, in bytes.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Continues at this position in the file.
    pub fn seek(&mut self, at: u64) {
        self.at = at;
    }

    /// Scans the current position and moves behind it; `None` at the end of the file. Accepts any bytes. Errors: those
    /// of reading the file; the position stays.
    pub fn next_scanned(&mut self) -> io::Result<Option<Scanned<'_>>> {
        let (at, len) = (self.at, self.len());
        if at >= len {
            return Ok(None);
        }
        let look = self.look(at)?;
        match look {
            RecordCheck::Sound | RecordCheck::Damaged(_) => {
                let size = self.size_at(at)?;
                self.at = at + size;
                // The bytes decoded before and are still in the buffer.
                let bytes = self.window.get(at..at + size)?;
                let Ok(view) = MessageView::decode(bytes, false) else { return Ok(None) };
                Ok(Some(match look {
                    RecordCheck::Damaged(kind) => Scanned::Damaged { kind, view },
                    _ => Scanned::Record(view),
                }))
            }
            RecordCheck::Blank => {
                self.at = len;
                Ok(Some(Scanned::Full))
            }
            RecordCheck::Zeros => {
                let data = self.next_written(at)?;
                if data >= len {
                    self.at = len;
                    return Ok(Some(if len - at < BLANK_LEN {
                        Scanned::Full
                    } else {
                        Scanned::Unwritten { at }
                    }));
                }
                // The size field of a record begins with zeros, too.
                self.pass(
                    at,
                    data.saturating_sub(7).max(at + 1),
                    FindingKind::NoRecord,
                    "zeros where a record should begin",
                )
            }
            RecordCheck::Unsound(kind, reason) => self.pass(at, at + 1, kind, reason),
        }
    }

    /// Passes the current record to `take` if it and its checksums are sound, and moves behind it. Reads each byte
    /// once.
    ///
    /// Returns `None` and keeps the position if no sound record is here.
    pub(crate) fn take_sound<T>(
        &mut self,
        take: impl FnOnce(&MessageView<'_>) -> T,
    ) -> io::Result<Option<T>> {
        let (at, len) = (self.at, self.len());
        let Peek::Message(size) = message::peek(self.window.get(at..at.saturating_add(BLANK_LEN))?) else {
            return Ok(None);
        };
        let size = u64::from(size);
        if at >= len || size > len - at {
            return Ok(None);
        }
        let Ok(view) = MessageView::decode(self.window.get(at..at + size)?, true) else { return Ok(None) };
        if self.base.checked_add(at) != Some(view.physical_offset) {
            return Ok(None);
        }
        self.at = at + size;
        Ok(Some(take(&view)))
    }

    /// The first position from `at` on where a record or the file's blank record begins.
    pub(crate) fn begin_from(&mut self, at: u64) -> io::Result<Option<u64>> {
        if self.record_at(at)?.is_some() { Ok(Some(at)) } else { self.find_sound(at) }
    }

    /// The record at this position, if its lengths and physical offset are right. Errors: those of reading the file.
    pub fn record_at(&mut self, at: u64) -> io::Result<Option<MessageView<'_>>> {
        if at >= self.len() || !matches!(self.look_unchecked(at)?, RecordCheck::Sound) {
            return Ok(None);
        }
        let size = self.size_at(at)?;
        Ok(MessageView::decode(self.window.get(at..at + size)?, false).ok())
    }

    /// The bytes of the record at this position. Errors: those of reading the file.
    pub fn bytes_at(&mut self, at: u64) -> io::Result<&[u8]> {
        let size = self.size_at(at)?;
        self.window.get(at..at.saturating_add(size))
    }

    /// The first nonzero byte from `at` on.
    fn next_written(&mut self, at: u64) -> io::Result<u64> {
        const PIECE: u64 = 64 << 10;
        let mut at = at;
        while at < self.len() {
            at = self.window.next_data(at);
            let bytes = self.window.get(at..at + PIECE)?;
            if let Some(place) = bytes.iter().position(|byte| *byte != 0) {
                return Ok(at + place as u64);
            }
            at += bytes.len().max(1) as u64;
        }
        Ok(self.len())
    }

    fn size_at(&mut self, at: u64) -> io::Result<u64> {
        let head = self.window.get(at..at + 4)?;
        Ok(head.first_chunk::<4>().map_or(0, |size| u64::from(u32::from_be_bytes(*size))))
    }

    fn look(&mut self, at: u64) -> io::Result<RecordCheck> {
        let look = self.look_unchecked(at)?;
        if !matches!(look, RecordCheck::Sound) {
            return Ok(look);
        }
        let size = self.size_at(at)?;
        let bytes = self.window.get(at..at + size)?;
        Ok(match MessageView::decode(bytes, false) {
            Ok(view) if !view.body.is_empty() && message::body_crc(view.body) != view.body_crc => {
                RecordCheck::Damaged(FindingKind::BodyChecksum)
            }
            Ok(view) if !property_crc::matches(bytes, view.properties) => {
                RecordCheck::Damaged(FindingKind::PropertyChecksum)
            }
            _ => look,
        })
    }

    /// As [`Self::look`], without checksums.
    fn look_unchecked(&mut self, at: u64) -> io::Result<RecordCheck> {
        let (base, len) = (self.base, self.len());
        let head = self.window.get(at..at + BLANK_LEN)?;
        if head.iter().all(|byte| *byte == 0) {
            return Ok(RecordCheck::Zeros);
        }
        let size = match message::peek(head) {
            Peek::Message(size) => u64::from(size),
            Peek::Blank if is_blank_of(head, len - at) => return Ok(RecordCheck::Blank),
            Peek::Blank => {
                return Ok(RecordCheck::Unsound(
                    FindingKind::RecordLengths,
                    "a blank record that does not fill its file",
                ));
            }
            Peek::Nothing => return Ok(RecordCheck::Unsound(FindingKind::NoRecord, nothing_reason(head))),
        };
        if size > len - at {
            return Ok(RecordCheck::Unsound(
                FindingKind::RecordLengths,
                "the record is longer than its file",
            ));
        }
        Ok(match MessageView::decode(self.window.get(at..at + size)?, false) {
            Ok(view) if base.checked_add(at) == Some(view.physical_offset) => RecordCheck::Sound,
            Ok(_) => {
                RecordCheck::Unsound(FindingKind::RecordOffset, "the record names another physical offset")
            }
            Err(reason) => RecordCheck::Unsound(FindingKind::RecordLengths, reason),
        })
    }

    /// Skips bytes that are no record, up to the next sound record from `search` on.
    fn pass(
        &mut self,
        at: u64,
        search: u64,
        kind: FindingKind,
        reason: &'static str,
    ) -> io::Result<Option<Scanned<'_>>> {
        let next = self.find_sound(search)?;
        let end = match next {
            Some(next) => next,
            None => self.end_of_written(at)?,
        };
        self.at = next.unwrap_or(self.len());
        Ok(Some(Scanned::Unsound { kind, range: at..end, reason, is_last: next.is_none() }))
    }

    /// The first position from `from` on where a sound record or the file's blank record begins.
    fn find_sound(&mut self, from: u64) -> io::Result<Option<u64>> {
        const PIECE: u64 = 256 << 10;
        // Positions of magic codes; records begin four bytes before.
        let mut at = from.saturating_add(4);
        let mut candidates = Vec::new();
        while at < self.len() {
            at = self.window.next_data(at);
            // Magic codes may lie over the edge of a piece.
            let bytes = self.window.get(at..at + PIECE + 3)?;
            candidates.clear();
            candidates.extend(
                bytes.windows(4).enumerate().filter(|(_, four)| is_magic(four)).map(|(place, _)| place),
            );
            let looked = (bytes.len() as u64).saturating_sub(3).max(1);
            for place in &candidates {
                let begin = at + *place as u64 - 4;
                if self.is_own(begin)?
                    && matches!(self.look_unchecked(begin)?, RecordCheck::Sound | RecordCheck::Blank)
                {
                    return Ok(Some(begin));
                }
            }
            at += looked;
        }
        Ok(None)
    }

    /// Whether a record may begin here, judged by its first bytes. Cheap, for searches over many positions.
    fn is_own(&mut self, at: u64) -> io::Result<bool> {
        let wanted = self.base.checked_add(at);
        let rest = self.len() - at;
        let head = self.window.get(at..at + u64::from(MIN_RECORD_LEN))?;
        let offset = head.get(PHYSICAL_OFFSET_AT..).and_then(|bytes| bytes.first_chunk::<8>());
        Ok(is_blank_of(head, rest) || offset.map(|bytes| u64::from_be_bytes(*bytes)) == wanted)
    }

    /// End of the last nonzero byte from `at` on.
    fn end_of_written(&mut self, at: u64) -> io::Result<u64> {
        const PIECE: u64 = 64 << 10;
        let (mut at, mut end) = (at, at);
        while at < self.len() {
            at = self.window.next_data(at);
            let bytes = self.window.get(at..at + PIECE)?;
            if let Some(place) = bytes.iter().rposition(|byte| *byte != 0) {
                end = at + place as u64 + 1;
            }
            at += bytes.len().max(1) as u64;
        }
        Ok(end)
    }
}

fn is_magic(bytes: &[u8]) -> bool {
    // The first byte decides almost always and keeps the loop short.
    matches!(bytes, [0xDA | 0xCB, ..])
        && bytes
            .first_chunk::<4>()
            .is_some_and(|four| matches!(u32::from_be_bytes(*four), MAGIC_V1 | MAGIC_V2 | MAGIC_BLANK))
}

/// Whether `head` begins a blank record that fills the file.
fn is_blank_of(head: &[u8], rest: u64) -> bool {
    let Some((size, rest_of)) = head.split_first_chunk::<4>() else { return false };
    u64::from(u32::from_be_bytes(*size)) == rest && rest_of.starts_with(&MAGIC_BLANK.to_be_bytes())
}

fn nothing_reason(head: &[u8]) -> &'static str {
    let magic =
        head.get(4..8).and_then(|bytes| bytes.first_chunk::<4>()).map(|four| u32::from_be_bytes(*four));
    match magic {
        Some(MAGIC_V1 | MAGIC_V2) => "a size no record can have",
        _ => "no magic code of a record",
    }
}
