//! Whether a site's process still lives. What it was doing when it was killed goes no further, wherever it was.

use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use tokio::sync::watch;

/// Shared by all parts of one process of a site.
#[derive(Clone)]
pub(crate) struct Life {
    over: Arc<watch::Sender<bool>>,
    /// What must not be dropped: whoever waits for it would notice.
    kept: Arc<Mutex<Vec<Box<dyn Any + Send>>>>,
}

impl Life {
    pub(crate) fn new() -> Self {
        Self {
            over: Arc::new(watch::Sender::new(false)),
            kept: Arc::default(),
        }
    }

    pub(crate) fn end(&self) {
        self.over.send_replace(true);
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Returns when the process is killed.
    pub(crate) async fn over(&self) {
        let mut over = self.over.subscribe();
        // The sender lives as long as this does.
        drop(over.wait_for(|over| *over).await);
    }

    /// Goes on while the process lives, and never otherwise.
    pub(crate) async fn or_never(&self) {
        if self.is_over() {
            std::future::pending::<()>().await;
        }
    }

    /// Holds a dead process's end of something open.
    pub(crate) fn keep(&self, what: impl Any + Send) {
        self.kept.lock().push(Box::new(what));
    }
}
