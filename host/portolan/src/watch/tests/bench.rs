//! A host with a watched folder, for tests.

use super::super::SETTLE;
use super::super::folder::PolicyFolder;
use portolan_base::TenantName;
use portolan_base::{Clock, Moment};
use portolan_gateway::policies::{DeskParts, PolicyDesk};
use portolan_policy::{NameTables, QuestionKind};
use portolan_ports::{FakeLoader, MemoryStore, PolicyStore, TenantRecord};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use tempfile::TempDir;

/// Stands where a test puts it.
#[derive(Default)]
pub(super) struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::Relaxed))
    }
}

/// A host with a watched folder, and the time in its hand.
pub(super) struct Bench {
    pub(super) folder: TempDir,
    pub(super) store: Arc<MemoryStore>,
    pub(super) clock: Arc<HandClock>,
    pub(super) desk: Arc<PolicyDesk>,
    /// Set to end the watching.
    pub(super) over: Arc<AtomicBool>,
    pub(super) watched: PolicyFolder,
    /// Further rules of the desk.
    rules: Rules,
}

type Rules = Box<dyn Fn(PolicyDesk) -> PolicyDesk>;

impl Bench {
    pub(super) fn new() -> Self {
        Self::ruled(|desk| desk)
    }

    /// A host whose desk has further rules.
    pub(super) fn ruled(rules: impl Fn(PolicyDesk) -> PolicyDesk + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(MemoryStore::new());
        let clock = Arc::new(HandClock(AtomicU64::new(1_000_000)));
        let desk = Arc::new(rules(plain_desk(&store, Arc::clone(&clock) as Arc<dyn Clock>)));
        let over = Arc::new(AtomicBool::new(false));
        let watched = PolicyFolder::new(folder.path().to_owned(), Arc::clone(&desk), Arc::clone(&over));
        let mut bench = Self {
            folder,
            store,
            clock,
            desk,
            over,
            watched,
            rules: Box::new(rules),
        };
        bench.look();
        bench
    }

    /// The process ends, and a new one opens the same store and the same folder.
    pub(super) fn restart(&mut self) {
        let plain = plain_desk(&self.store, Arc::clone(&self.clock) as Arc<dyn Clock>);
        self.desk = Arc::new((self.rules)(plain));
        self.desk.restore().unwrap();
        let root = self.folder.path().to_owned();
        self.watched = PolicyFolder::new(root, Arc::clone(&self.desk), Arc::clone(&self.over));
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// Writes a file as of this moment.
    pub(super) fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let modified = UNIX_EPOCH + Duration::from_micros(self.clock.now().0);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(modified)
            .unwrap();
    }

    pub(super) fn look(&mut self) {
        self.watched.look(self.clock.now(), &BTreeSet::new());
    }

    pub(super) fn pass(&self, time: Duration) {
        self.clock
            .0
            .fetch_add(u64::try_from(time.as_micros()).unwrap(), Ordering::Relaxed);
    }

    /// Looks, lets files settle, and looks again.
    pub(super) fn settle(&mut self) {
        self.look();
        self.pass(SETTLE);
        self.look();
        assert!(!self.watched.is_settling());
    }

    pub(super) fn generation(&self) -> Option<u64> {
        let bindings = self.desk.list().unwrap();
        bindings
            .iter()
            .find(|b| b.question == QuestionKind::Routing)
            .map(|b| b.generation)
    }

    pub(super) fn config(&self) -> String {
        self.desk.list().unwrap().remove(0).config
    }

    pub(super) fn report(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.path(file)).ok()
    }
}

pub(super) fn desk(store: &Arc<MemoryStore>, clock: Arc<dyn Clock>) -> Arc<PolicyDesk> {
    Arc::new(plain_desk(store, clock))
}

fn plain_desk(store: &Arc<MemoryStore>, clock: Arc<dyn Clock>) -> PolicyDesk {
    let acme = TenantRecord {
        name: TenantName::new("acme").unwrap(),
        jurisdiction: String::new(),
        user_class: "standard".into(),
    };
    store.put_tenant(acme, "test", clock.now()).unwrap();
    PolicyDesk::new(DeskParts {
        store: Arc::clone(store) as Arc<dyn PolicyStore>,
        loader: Arc::new(FakeLoader),
        names: Arc::new(|| Arc::new(NameTables::default())),
        clock,
    })
}
