//! Looking up what an instance holds of a long prompt stops nobody else's stream.

use super::support::description;
use crate::lookup;
use async_trait::async_trait;
use parking_lot::Mutex;
use portolan_base::{Dependency, TenantKey};
use portolan_ports::{
    DecodeEvent, DecodeJob, Engine, EngineDescription, EngineError, EngineLoad, FakeEngine, HeldPrefix,
    KvEvent, KvPiece, PrefillJob, PrefillReport,
};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};

/// Longer than another task takes to begin.
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks up until somebody else had a turn; says so by a token.
struct Slow {
    engine: FakeEngine,
    others: Mutex<Receiver<()>>,
}

#[async_trait]
impl Engine for Slow {
    fn describe(&self) -> &EngineDescription {
        self.engine.describe()
    }

    fn held(&self, _: &TenantKey, _: &[u32], _: &[Dependency]) -> HeldPrefix {
        let had_a_turn = self.others.lock().recv_timeout(PATIENCE).is_ok();
        HeldPrefix {
            tokens: u32::from(had_a_turn),
            pieces: Vec::new(),
        }
    }

    async fn prefill(
        &self,
        job: PrefillJob,
        pieces: mpsc::UnboundedSender<KvPiece>,
    ) -> Result<PrefillReport, EngineError> {
        self.engine.prefill(job, pieces).await
    }

    fn decode(&self, job: DecodeJob) -> mpsc::UnboundedReceiver<DecodeEvent> {
        self.engine.decode(job)
    }

    fn load(&self) -> EngineLoad {
        self.engine.load()
    }

    fn events(&self) -> broadcast::Receiver<KvEvent> {
        self.engine.events()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_long_prompt_is_looked_up_beside_what_the_thread_serves() {
    let key = TenantKey::derive(&[7; 32], "acme", "fake", 1);
    for look in [lookup::kept, lookup::held] {
        let (turn, others) = channel();
        let engine = Arc::new(Slow {
            engine: FakeEngine::new(description("e1")),
            others: Mutex::new(others),
        });
        let looking = tokio::spawn(async move {
            // It is the only worker's next task while this one runs.
            let other = tokio::spawn(async move { turn.send(()).unwrap() });
            let found = look(engine.as_ref(), &key, &[0; 257], &[]);
            other.await.unwrap();
            found.tokens
        });
        assert_eq!(looking.await.unwrap(), 1, "the others waited");
    }
}
