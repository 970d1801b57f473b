//! Caches compiled filter expressions, so that a request with its own expression does not compile it again.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ferromq_store::filter::{FilterError, MessageFilter, SqlFilter};
use parking_lot::RwLock;

/// Most cached expressions, and most bytes of them; one more clears the cache.
const MAX_EXPRESSIONS: usize = 1_024;
const MAX_BYTES: usize = 1 << 20;

type Compiled = Result<Arc<SqlFilter>, FilterError>;

/// Cache of recent SQL92 expressions: compiled ones, and the errors of invalid ones.
#[derive(Debug, Default)]
pub struct Filters {
    cache: RwLock<CompiledFilters>,
    refuses_sql: AtomicBool,
}

#[derive(Debug, Default)]
struct CompiledFilters {
    expressions: HashMap<Box<str>, Compiled>,
    bytes: usize,
}

impl Filters {
    /// As [`MessageFilter::parse`], but compiles an expression once.
    ///
    /// # Errors
    /// Those of [`MessageFilter::parse`].
    pub fn compile(&self, expression_type: &str, expression: &str) -> Result<MessageFilter, FilterError> {
        if expression_type != "SQL92" {
            return MessageFilter::parse(expression_type, expression);
        }
        let cached = self.cache.read().expressions.get(expression).cloned();
        cached.unwrap_or_else(|| self.compile_and_cache(expression)).map(MessageFilter::Sql)
    }

    /// Sets whether pulls may filter by SQL92; initially they may.
    pub fn allow_sql(&self, allowed: bool) {
        self.refuses_sql.store(!allowed, Ordering::Relaxed);
    }

    /// Returns whether a pull may use `filter`. Pops and receives may always, as with RocketMQ.
    #[must_use]
    pub fn allows(&self, filter: &MessageFilter) -> bool {
        !matches!(filter, MessageFilter::Sql(_)) || !self.refuses_sql.load(Ordering::Relaxed)
    }

    fn compile_and_cache(&self, expression: &str) -> Compiled {
        let compiled = SqlFilter::parse(expression).map(Arc::new);
        let mut cache = self.cache.write();
        if cache.expressions.len() >= MAX_EXPRESSIONS || cache.bytes + expression.len() > MAX_BYTES {
            *cache = CompiledFilters::default();
        }
        // A longer expression would fill the cache alone.
        if expression.len() <= MAX_BYTES
            && cache.expressions.insert(expression.into(), compiled.clone()).is_none()
        {
            cache.bytes += expression.len();
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
    fn an_expression_is_compiled_once_and_the_cache_is_limited() {
        let filters = Filters::default();
        assert!(Arc::ptr_eq(&sql(&filters, "a > 1"), &sql(&filters, "a > 1")));
        let wrong = filters.compile("SQL92", "a >").unwrap_err();
        assert_eq!(filters.compile("SQL92", "a >"), Err(wrong));
        assert_eq!(filters.compile("TAG", "x"), Ok(MessageFilter::tags("x")));
        for number in 0..3 * MAX_EXPRESSIONS {
            sql(&filters, &format!("a > {number}"));
            assert!(filters.cache.read().expressions.len() <= MAX_EXPRESSIONS);
        }
        for number in 0..100 {
            sql(&filters, &format!("a = '{}{number}'", "x".repeat(40_000)));
            assert!(filters.cache.read().bytes <= MAX_BYTES);
        }
        let all: usize = filters.cache.read().expressions.keys().map(|expression| expression.len()).sum();
        assert_eq!(filters.cache.read().bytes, all);
    }
}
