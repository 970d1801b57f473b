//! One commit log file, record by record: the same for verification, for dumps and for jobs that take a file each.
//!
//! Records never lie in two files, so a file can be read alone. What other files say of it is not looked at.

use std::{io, ops::Range};

use super::{finding::FindingKind, window::Window};
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

/// A commit log file and the place in it that is read next.
pub struct LogFile<R: Region> {
    window: Window<R>,
    base: u64,
    at: u64,
}

/// What lies at a place of a commit log file.
#[derive(Debug)]
pub enum Scanned<'a> {
    /// A sound record; its physical offset says where.
    Record(MessageView<'a>),
    /// A record whose lengths and place are right but which does not match a checksum.
    Damaged {
        /// `BodyChecksum` or `PropertyChecksum`.
        kind: FindingKind,
        /// The record.
        view: MessageView<'a>,
    },
    /// Bytes that are no record, up to the next sound one or the end of the file.
    Unsound {
        /// What is wrong at their beginning.
        kind: FindingKind,
        /// Bytes inside the file.
        range: Range<u64>,
        /// Which rule is broken.
        reason: &'static str,
        /// No record comes behind them in this file.
        is_last: bool,
    },
    /// Nothing but zeros comes from here on.
    Unwritten {
        /// Place inside the file.
        at: u64,
    },
    /// The file is full: its last bytes are a blank record, or a record ends with it.
    Full,
}

enum Look {
    Sound,
    Damaged(FindingKind),
    Blank,
    Zeros,
    Unsound(FindingKind, &'static str),
}

impl<R: Region> LogFile<R> {
    /// Reads `region`, whose first byte has the physical offset `base`, from its beginning.
    pub fn new(region: R, base: u64) -> Self {
        Self { window: Window::new(region), base, at: 0 }
    }

    /// As [`Self::new`], for single records far from each other.
    pub(crate) fn for_probing(region: R, base: u64) -> Self {
        Self { window: Window::with_step(region, 16 << 10), base, at: 0 }
    }

    /// Size of the file.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.window.len()
    }

    /// Says whether the file has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place inside the file that is looked at next.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Goes on at this place inside the file.
    pub fn seek(&mut self, at: u64) {
        self.at = at;
    }

    /// Looks at what lies at the current place and goes on behind it; `None` at the end of the file.
    ///
    /// Any bytes may be given. Errors are those of reading; the place stays.
    pub fn next_scanned(&mut self) -> io::Result<Option<Scanned<'_>>> {
        let (at, len) = (self.at, self.len());
        if at >= len {
            return Ok(None);
        }
        let look = self.look(at)?;
        match look {
            Look::Sound | Look::Damaged(_) => {
                let size = self.size_at(at)?;
                self.at = at + size;
                // Decoded before, so it decodes again; the bytes are still in the window.
                let bytes = self.window.get(at..at + size)?;
                let Ok(view) = MessageView::decode(bytes, false) else { return Ok(None) };
                Ok(Some(match look {
                    Look::Damaged(kind) => Scanned::Damaged { kind, view },
                    _ => Scanned::Record(view),
                }))
            }
            Look::Blank => {
                self.at = len;
                Ok(Some(Scanned::Full))
            }
            Look::Zeros => {
                let data = self.next_written(at)?;
                if data >= len {
                    self.at = len;
                    return Ok(Some(if len - at < BLANK_LEN {
                        Scanned::Full
                    } else {
                        Scanned::Unwritten { at }
                    }));
                }
                // The size of a record begins with zeros, too.
                self.pass(
                    at,
                    data.saturating_sub(7).max(at + 1),
                    FindingKind::NoRecord,
                    "zeros where a record should be",
                )
            }
            Look::Unsound(kind, reason) => self.pass(at, at + 1, kind, reason),
        }
    }

    /// Hands the record at the current place to `take` where it is sound, checksums and all, and goes on behind it.
    ///
    /// `None` where none is; the place stays. It costs one look at each byte.
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

    /// The first place from `at` on where a record begins, or the blank one at the file's end.
    pub(crate) fn begin_from(&mut self, at: u64) -> io::Result<Option<u64>> {
        if self.record_at(at)?.is_some() { Ok(Some(at)) } else { self.find_sound(at) }
    }

    /// The record that begins at this place inside the file, if one whose lengths and place are right does.
    pub fn record_at(&mut self, at: u64) -> io::Result<Option<MessageView<'_>>> {
        if at >= self.len() || !matches!(self.look_unchecked(at)?, Look::Sound) {
            return Ok(None);
        }
        let size = self.size_at(at)?;
        Ok(MessageView::decode(self.window.get(at..at + size)?, false).ok())
    }

    /// The bytes of the record that begins at this place inside the file.
    pub fn bytes_at(&mut self, at: u64) -> io::Result<&[u8]> {
        let size = self.size_at(at)?;
        self.window.get(at..at.saturating_add(size))
    }

    /// The first place from `at` on that is not zero.
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

    fn look(&mut self, at: u64) -> io::Result<Look> {
        let look = self.look_unchecked(at)?;
        if !matches!(look, Look::Sound) {
            return Ok(look);
        }
        let size = self.size_at(at)?;
        let bytes = self.window.get(at..at + size)?;
        Ok(match MessageView::decode(bytes, false) {
            Ok(view) if !view.body.is_empty() && message::body_crc(view.body) != view.body_crc => {
                Look::Damaged(FindingKind::BodyChecksum)
            }
            Ok(view) if !property_crc::matches(bytes, view.properties) => {
                Look::Damaged(FindingKind::PropertyChecksum)
            }
            _ => look,
        })
    }

    /// As [`Self::look`], without the checksums.
    fn look_unchecked(&mut self, at: u64) -> io::Result<Look> {
        let (base, len) = (self.base, self.len());
        let head = self.window.get(at..at + BLANK_LEN)?;
        if head.iter().all(|byte| *byte == 0) {
            return Ok(Look::Zeros);
        }
        let size = match message::peek(head) {
            Peek::Message(size) => u64::from(size),
            Peek::Blank if is_blank_of(head, len - at) => return Ok(Look::Blank),
            Peek::Blank => {
                return Ok(Look::Unsound(
                    FindingKind::RecordLengths,
                    "a blank record that does not fill its file",
                ));
            }
            Peek::Nothing => return Ok(Look::Unsound(FindingKind::NoRecord, nothing_reason(head))),
        };
        if size > len - at {
            return Ok(Look::Unsound(FindingKind::RecordLengths, "the record is longer than its file"));
        }
        Ok(match MessageView::decode(self.window.get(at..at + size)?, false) {
            Ok(view) if base.checked_add(at) == Some(view.physical_offset) => Look::Sound,
            Ok(_) => Look::Unsound(FindingKind::RecordOffset, "the record names another physical offset"),
            Err(reason) => Look::Unsound(FindingKind::RecordLengths, reason),
        })
    }

    /// Passes over what is no record: up to the next sound one from `search` on.
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

    /// The first place from `from` on where a sound record begins, or the blank record at the file's end.
    fn find_sound(&mut self, from: u64) -> io::Result<Option<u64>> {
        const PIECE: u64 = 256 << 10;
        // Places of magic codes; records begin four bytes before.
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
                if self.is_own(begin)? && matches!(self.look_unchecked(begin)?, Look::Sound | Look::Blank) {
                    return Ok(Some(begin));
                }
            }
            at += looked;
        }
        Ok(None)
    }

    /// Says, of the first bytes alone, whether a record may begin here: cheap, where many places are tried.
    fn is_own(&mut self, at: u64) -> io::Result<bool> {
        let wanted = self.base.checked_add(at);
        let rest = self.len() - at;
        let head = self.window.get(at..at + u64::from(MIN_RECORD_LEN))?;
        let offset = head.get(PHYSICAL_OFFSET_AT..).and_then(|bytes| bytes.first_chunk::<8>());
        Ok(is_blank_of(head, rest) || offset.map(|bytes| u64::from_be_bytes(*bytes)) == wanted)
    }

    /// Behind the last byte from `at` on that is not zero.
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
    // The first byte decides almost always, so the compiler's loop stays short.
    matches!(bytes, [0xDA | 0xCB, ..])
        && bytes
            .first_chunk::<4>()
            .is_some_and(|four| matches!(u32::from_be_bytes(*four), MAGIC_V1 | MAGIC_V2 | MAGIC_BLANK))
}

/// Says whether `head` is a blank record over all of the room that is left.
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
