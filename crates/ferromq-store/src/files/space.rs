//! The free and used space of a file system.

/// The space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes that a writer may still use.
    pub free: u64,
    /// Bytes in use by all files.
    pub used: u64,
}

impl Space {
    /// Percentage in use as RocketMQ computes it: of used plus available bytes.
    pub(crate) fn used_percent(&self) -> f64 {
        self.used as f64 * 100.0 / (self.used as f64 + self.free as f64).max(1.0)
    }

    /// The space after the file system has freed `bytes` of removed files.
    pub(crate) fn after_removal(&self, bytes: u64) -> Self {
        Self { free: self.free.saturating_add(bytes), used: self.used.saturating_sub(bytes) }
    }

    /// Free bytes when `percent` of the space is in use.
    pub(crate) fn free_at(&self, percent: f64) -> u64 {
        ((self.used as f64 + self.free as f64) * (100.0 - percent) / 100.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_counted_of_what_may_be_used_at_all() {
        let space = Space { free: 15, used: 85 };
        assert_eq!((space.used_percent(), space.free_at(90.0), space.free_at(85.0)), (85.0, 10, 15));
        assert_eq!(Space { free: 0, used: 0 }.used_percent(), 0.0);
    }
}
