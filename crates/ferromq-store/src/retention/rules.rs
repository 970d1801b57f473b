//! The rules of retention in force, which change while the store runs.

use std::sync::Arc;

use parking_lot::RwLock;

use super::policy::{DiskUsage, OnExpiry, Retention, RetentionPolicy};

/// The rules of one moment.
pub(crate) struct Rules {
    pub(crate) policies: Vec<Arc<dyn RetentionPolicy>>,
    pub(crate) on_expiry: OnExpiry,
    pub(crate) usage: Option<DiskUsage>,
}

/// The rules in force. They change as one, so that no file is judged by half of a change.
pub(crate) struct CurrentRules(RwLock<Arc<Rules>>);

impl CurrentRules {
    pub(crate) fn new(retention: &Retention) -> Self {
        Self(RwLock::new(Self::rules(retention)))
    }

    pub(crate) fn get(&self) -> Arc<Rules> {
        Arc::clone(&self.0.read())
    }

    pub(crate) fn set(&self, retention: &Retention) {
        *self.0.write() = Self::rules(retention);
    }

    fn rules(retention: &Retention) -> Arc<Rules> {
        let (policies, on_expiry) = (retention.to_policies(), retention.on_expiry);
        Arc::new(Rules { policies, on_expiry, usage: retention.disk_usage })
    }
}
