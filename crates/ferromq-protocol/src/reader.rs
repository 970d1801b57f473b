//! Reads big-endian numbers and bytes in sequence. `None` if the bytes end early.

/// The unread bytes.
#[derive(Debug, Clone)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads `bytes` from the beginning.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether all bytes were read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The unread bytes.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    /// Bytes prefixed by their length, a `u16`.
    pub fn short_bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(len.into())
    }
}

macro_rules! numbers {
    ($($number:ident)*) => {
        impl Reader<'_> {
            $(
                #[doc = concat!("The next `", stringify!($number), "`.")]
                pub fn $number(&mut self) -> Option<$number> {
                    self.array().map($number::from_be_bytes)
                }
            )*
        }
    };
}

numbers! { u8 u16 i16 u32 i32 u64 i64 }
