//! Whose blocks the salts of an engine's events name.

use parking_lot::Mutex;
use portolan_base::BlockHash;
use portolan_ports::CacheSalt;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Salts that are remembered, the latest: some 10 MB. Blocks with an older one cannot be named, and count as not held.
const MOST: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct SaltBook(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    roots: HashMap<Arc<str>, BlockHash>,
    order: VecDeque<Arc<str>>,
}

impl SaltBook {
    /// Remembers a salt whose blocks may be found again.
    pub(super) fn learn(&self, salt: &CacheSalt) {
        let Some(root) = salt.root else { return };
        let mut book = self.0.lock();
        if book.roots.insert(Arc::clone(&salt.text), root).is_none() {
            book.order.push_back(Arc::clone(&salt.text));
        }
        if book.order.len() > MOST
            && let Some(oldest) = book.order.pop_front()
        {
            book.roots.remove(&oldest);
        }
    }

    /// What hashes of prompts with this salt begin with. Blocks without one are of requests that came another way.
    pub(super) fn root(&self, salt: Option<&str>) -> Option<BlockHash> {
        self.0.lock().roots.get(salt?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered_and_one_use_salts_never() {
        let book = SaltBook::default();
        let salt = |n: u64| CacheSalt {
            text: n.to_string().into(),
            root: Some(BlockHash(n)),
        };
        (0..=MOST as u64).for_each(|n| book.learn(&salt(n)));
        book.learn(&salt(1));
        book.learn(&CacheSalt {
            text: "once".into(),
            root: None,
        });
        assert_eq!(book.root(Some("0")), None);
        assert_eq!(book.root(Some("1")), Some(BlockHash(1)));
        assert_eq!((book.root(Some("once")), book.root(None)), (None, None));
    }
}
