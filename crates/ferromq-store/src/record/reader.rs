//! Reads big-endian numbers and bytes, one after the other. `None` where the bytes end too early.

/// What is left to read.
#[derive(Debug, Clone)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Begins with the first of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Says whether all bytes were read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes that are left.
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

    /// Bytes behind their length, a `u16`.
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
