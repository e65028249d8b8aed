//! A start with many tenants' policies: loaded before the doors open, or compiled behind them.

use crate::guests::Guest;
use portolan::system::{OsRandom, SystemClock};
use portolan_base::{Clock, TenantName};
use portolan_gateway::policies::{DeskParts, PolicyDesk};
use portolan_plugin::{ArtefactKey, Compilation, ComponentLoader, Limits, LoaderConfig, MemoryState};
use portolan_policy::{NameTables, QuestionKind, Scope};
use portolan_ports::{BindingRecord, NewVersion, PolicyLoader, PolicyStore, Reuse};
use portolan_store::SledStore;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TENANTS: usize = 200;

fn loader(clock: &Arc<dyn Clock>) -> Arc<ComponentLoader> {
    let config = LoaderConfig {
        limits: Limits::default(),
        key: ArtefactKey::from_bytes([7; 32]),
        state: Arc::new(MemoryState::default()),
        compilation: Compilation::InProcess,
    };
    Arc::new(ComponentLoader::new(config, Arc::clone(clock)).unwrap())
}

/// What a start does up to its restored bindings: the store, the policy runtime, the desk.
fn start(folder: &Path) -> (Arc<PolicyDesk>, Arc<ComponentLoader>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let loader = loader(&clock);
    let desk = PolicyDesk::new(DeskParts {
        store: Arc::new(SledStore::open(folder, &OsRandom).unwrap()),
        loader: Arc::clone(&loader) as Arc<dyn PolicyLoader>,
        names: Arc::new(|| Arc::new(NameTables::default())),
        clock,
    });
    (Arc::new(desk), loader)
}

/// A store in which each tenant is bound to a component of its own.
fn fill(folder: &Path) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let (store, loader) = (SledStore::open(folder, &OsRandom).unwrap(), loader(&clock));
    for n in 0..TENANTS {
        let component = Guest::always(&format!("(drop (i32.const {n}))")).component();
        let compiled = loader.compile(&component).unwrap();
        let scope = Scope::Tenant(TenantName::new(&format!("tenant-{n}")).unwrap());
        let version = store.put_version(NewVersion {
            scope: scope.clone(),
            question: QuestionKind::Routing,
            name: "mine".into(),
            component: component.into(),
            compiled: compiled.into(),
            signatures: Vec::new(),
            actor: "test".into(),
            reason: String::new(),
            at: clock.now(),
        });
        let binding = BindingRecord {
            scope,
            question: QuestionKind::Routing,
            name: "mine".into(),
            sha256: version.unwrap().sha256,
            config: String::new(),
            budget: None,
            reuse: Reuse::ByClass,
            how: Default::default(),
            in_place_of: None,
            ended: None,
            generation: 0,
            actor: "test".into(),
            reason: String::new(),
            at: clock.now(),
        };
        store.bind(binding).unwrap();
    }
}

#[test]
fn two_hundred_policies_are_ready_in_two_seconds_and_compiled_behind_open_doors() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let begun = Instant::now();
    let (desk, loader) = start(folder.path());
    let restored = desk.restore().unwrap();
    let took = begun.elapsed();
    println!("a start with {TENANTS} compiled policies was ready in {took:?}");
    assert_eq!((restored.active.len(), restored.failed.len()), (TENANTS, 0));
    assert_eq!(loader.stats().compiled, 0);
    // Two seconds; the allowance is for a machine that runs other tests too.
    assert!(took < Duration::from_secs(6), "{took:?}");
    drop((desk, loader));

    // As after an update of the host: no artefact fits.
    for artefact in std::fs::read_dir(folder.path().join("artefacts")).unwrap() {
        std::fs::write(artefact.unwrap().path(), b"of another release").unwrap();
    }
    let (desk, loader) = start(folder.path());
    let restored = desk.restore().unwrap();
    assert_eq!((restored.active.len(), restored.pending.len()), (0, TENANTS));
    assert_eq!(
        loader.stats().compiled,
        0,
        "nothing is compiled before the doors open"
    );
    PolicyDesk::finish_restoring(&Arc::downgrade(&desk), restored.pending);
    assert_eq!(loader.stats().compiled, TENANTS as u64);
    let again = desk.restore().unwrap();
    assert_eq!((again.active.len(), again.pending.len()), (TENANTS, 0));
}
