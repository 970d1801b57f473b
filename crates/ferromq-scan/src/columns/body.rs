//! Bodies of rows, decompressed.

use std::borrow::Cow;

use ferromq_store::formats::compression::{COMPRESSED, MASK, decompressed};

/// Body and system flag of a row. A body that does not decompress is returned as stored; otherwise the compression bits
/// are cleared, so the flag always describes the returned body.
pub(super) fn of_row(sys_flag: i32, body: &[u8]) -> (Cow<'_, [u8]>, i32) {
    match decompressed(sys_flag, body) {
        Ok(plain) if sys_flag & COMPRESSED != 0 => (plain, sys_flag & !MASK),
        Ok(plain) => (plain, sys_flag),
        Err(_) => (Cow::Borrowed(body), sys_flag),
    }
}
