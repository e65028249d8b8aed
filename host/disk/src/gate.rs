//! Whose KV may lie on disk: asked before anything is written.

use portolan_base::Provenance;
use std::fmt;
use std::sync::Arc;

/// Says whether KV of a provenance may lie on this site's disk. Asked for every block and every transfer that would land;
/// whoever answers remembers what it said.
#[derive(Clone)]
pub struct Gate(Arc<dyn Fn(&Provenance) -> bool + Send + Sync>);

impl Gate {
    /// Whoever `allows` it.
    pub fn new(allows: impl Fn(&Provenance) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(allows))
    }

    /// Whether it may.
    pub fn allows(&self, about: &Provenance) -> bool {
        (self.0)(about)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate(..)")
    }
}
