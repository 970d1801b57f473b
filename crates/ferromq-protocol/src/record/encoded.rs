//! An encoded record without the fields that the log assigns.

/// The result of [`encode`](crate::record::encode::encode): the caller's buffer holds everything of a record but its
/// body.
#[derive(Debug, Clone, Copy)]
pub struct Encoded {
    /// Start of the bytes before the body, in the buffer.
    pub head_at: usize,
    /// End of the bytes before the body and start of those after it.
    pub tail_at: usize,
    /// End of the bytes after the body.
    pub tail_end: usize,
    /// Length of the whole record, in bytes.
    pub len: u32,
    /// The system flag as stored.
    pub sys_flag: i32,
    /// CRC32 of the body, if the record gets a property CRC: [`property_crc::seal`] continues it.
    pub body_hash: Option<u32>,
}

/// RocketMQ clears the top bit of a CRC32.
pub const CRC_BITS: u32 = 0x7FFF_FFFF;
