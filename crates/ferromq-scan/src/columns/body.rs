//! Bodies of rows, decompressed.

use std::borrow::Cow;

use ferromq_store::{
    formats::compression::{COMPRESSED, MASK, decompressed},
    record::{MessageView, message::body_crc},
};

/// Body and system flag of a row. A body that does not decompress is returned as stored; otherwise the compression bits
/// are cleared, so the flag always describes the returned body.
pub(super) fn of_row(sys_flag: i32, body: &[u8]) -> (Cow<'_, [u8]>, i32) {
    match decompressed(sys_flag, body) {
        Ok(plain) if sys_flag & COMPRESSED != 0 => (plain, sys_flag & !MASK),
        Ok(plain) => (plain, sys_flag),
        Err(_) => (Cow::Borrowed(body), sys_flag),
    }
}

/// Whether a body does not match its checksum or does not decompress; `sys_flag` is that of [`of_row`].
pub(super) fn is_damaged(view: &MessageView<'_>, sys_flag: i32) -> bool {
    sys_flag & COMPRESSED != 0 || body_crc(view.body) != view.body_crc
}
