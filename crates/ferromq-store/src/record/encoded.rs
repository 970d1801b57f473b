//! A record that is encoded but for what the log gives it.

/// What [`encode`] produced: everything of a record but its body lies in the caller's buffer.
#[derive(Debug, Clone, Copy)]
pub struct Encoded {
    /// Where the bytes before the body begin in the buffer.
    pub(crate) head_at: usize,
    /// Where they end and the bytes after the body begin.
    pub tail_at: usize,
    /// Where the bytes after the body end.
    pub(crate) tail_end: usize,
    /// Length of the whole record.
    pub(crate) len: u32,
    /// The system flag as stored.
    pub sys_flag: i32,
    /// CRC32 of the body, where the record gets a property CRC: [`property_crc::seal`] goes on from it.
    pub(crate) body_hash: Option<u32>,
}

/// RocketMQ clears the top bit of a CRC32.
pub(crate) const CRC_BITS: u32 = 0x7FFF_FFFF;
