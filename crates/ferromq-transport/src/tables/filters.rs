//! Compiled filter expressions, so that a request that brings its own does not compile it again.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ferromq_store::filter::{FilterError, MessageFilter, SqlFilter};
use parking_lot::RwLock;

/// Expressions, and bytes of them, that are kept; with one more all of them are compiled anew as they come.
const MAX_EXPRESSIONS: usize = 1_024;
const MAX_BYTES: usize = 1 << 20;

type Compiled = Result<Arc<SqlFilter>, FilterError>;

/// The SQL92 expressions of late, compiled; wrong ones are remembered as such.
#[derive(Debug, Default)]
pub struct Filters {
    known: RwLock<Known>,
    refuses_sql: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    expressions: HashMap<Box<str>, Compiled>,
    bytes: usize,
}

impl Filters {
    /// As [`MessageFilter::parse`], each expression once.
    ///
    /// # Errors
    /// As there.
    pub fn compile(&self, expression_type: &str, expression: &str) -> Result<MessageFilter, FilterError> {
        if expression_type != "SQL92" {
            return MessageFilter::parse(expression_type, expression);
        }
        let known = self.known.read().expressions.get(expression).cloned();
        known.unwrap_or_else(|| self.remember(expression)).map(MessageFilter::Sql)
    }

    /// Says whether pulls may filter by SQL92; they may until this is called.
    pub fn allow_sql(&self, allowed: bool) {
        self.refuses_sql.store(!allowed, Ordering::Relaxed);
    }

    /// Says whether a pull may filter so. Pops and receives may always, as with RocketMQ.
    #[must_use]
    pub fn allows(&self, filter: &MessageFilter) -> bool {
        !matches!(filter, MessageFilter::Sql(_)) || !self.refuses_sql.load(Ordering::Relaxed)
    }

    fn remember(&self, expression: &str) -> Compiled {
        let compiled = SqlFilter::parse(expression).map(Arc::new);
        let mut known = self.known.write();
        if known.expressions.len() >= MAX_EXPRESSIONS || known.bytes + expression.len() > MAX_BYTES {
            *known = Known::default();
        }
        // One that is too long would be all there is.
        if expression.len() <= MAX_BYTES
            && known.expressions.insert(expression.into(), compiled.clone()).is_none()
        {
            known.bytes += expression.len();
        }
        compiled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sql(filters: &Filters, expression: &str) -> Arc<SqlFilter> {
        match filters.compile("SQL92", expression) {
            Ok(MessageFilter::Sql(filter)) => filter,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_expression_is_compiled_once_and_few_are_kept() {
        let filters = Filters::default();
        assert!(Arc::ptr_eq(&sql(&filters, "a > 1"), &sql(&filters, "a > 1")));
        let wrong = filters.compile("SQL92", "a >").unwrap_err();
        assert_eq!(filters.compile("SQL92", "a >"), Err(wrong));
        assert_eq!(filters.compile("TAG", "x"), Ok(MessageFilter::tags("x")));
        for number in 0..3 * MAX_EXPRESSIONS {
            sql(&filters, &format!("a > {number}"));
            assert!(filters.known.read().expressions.len() <= MAX_EXPRESSIONS);
        }
        for number in 0..100 {
            sql(&filters, &format!("a = '{}{number}'", "x".repeat(40_000)));
            assert!(filters.known.read().bytes <= MAX_BYTES);
        }
        let all: usize = filters.known.read().expressions.keys().map(|expression| expression.len()).sum();
        assert_eq!(filters.known.read().bytes, all);
    }
}
