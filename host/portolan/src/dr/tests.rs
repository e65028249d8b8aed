//! A service is backed up, checked, damaged and drilled, in a folder and in a store that speaks S3.

mod moto;
mod stand_in;

use super::*;
use crate::config::Config;
use crate::host::Host;
use crate::system::{OsRandom, SystemClock};
use moto::{Moto, PAGE};
use portolan_base::Clock;
use portolan_store::SledStore;
use stand_in::StandIn;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// A service of one small model, with a store that a host has founded.
struct Service {
    folder: TempDir,
    runtime: tokio::runtime::Runtime,
}

impl Service {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("tiny");
        fs::create_dir(&model).unwrap();
        let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/oracle/tiny-qwen3");
        for file in [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ] {
            fs::copy(oracle.join(file), model.join(file)).unwrap();
        }
        fs::write(
            folder.path().join("portolan.service"),
            "[Service]\nExecStart=portolan serve\n",
        )
        .unwrap();
        let service = Self {
            folder,
            runtime: tokio::runtime::Runtime::new().unwrap(),
        };
        service.write("deployment: [portolan.service], dependency_locks: []");
        service
    }

    fn write(&self, recovery: &str) {
        let text = format!(
            "data_dir: data\noperator_keys: [op]\nmodels: [{{name: tiny, path: tiny}}]\n\
             sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}}]\n\
             tenants: [{{name: acme, keys: [key-acme]}}]\nrecovery: {{{recovery}}}\n"
        );
        fs::write(self.path("portolan.yaml"), text).unwrap();
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn config(&self) -> Config {
        Config::read(&self.path("portolan.yaml")).unwrap()
    }

    /// Starts a host once, so that there is a store with the tenant and the keys.
    fn found(self) -> Self {
        let mut config = self.config();
        config.models.clear();
        let host = self.runtime.block_on(Host::start(config)).unwrap();
        self.runtime.block_on(host.stop());
        self
    }

    fn snapshot(&self) -> Result<Snapshot, DrError> {
        let config = self.config();
        let store = SledStore::open(&config.data_dir, &OsRandom).unwrap();
        let copy = make_snapshot(&config, &store)?;
        collect(&config, &copy)
    }

    fn back_up(&self, target: &Arc<dyn Target>) -> Result<Backed, DrError> {
        self.back_up_over(target, Existing::Read)
    }

    fn back_up_over(&self, target: &Arc<dyn Target>, existing: Existing) -> Result<Backed, DrError> {
        let config = self.config();
        let store = SledStore::open(&config.data_dir, &OsRandom).unwrap();
        let copy = make_snapshot(&config, &store).unwrap();
        drop(store);
        let clock = SystemClock::start();
        self.runtime.block_on(backup_service(
            config,
            copy,
            (Arc::clone(target), existing),
            &clock,
        ))
    }

    fn verify(&self, target: &Arc<dyn Target>) -> Verdict {
        verify(&self.snapshot().unwrap().manifest, target.as_ref()).unwrap()
    }

    fn drill(&self, target: &Arc<dyn Target>, within: Duration) -> Result<DrillRecord, DrError> {
        let scratch = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let rules = DrillRules { target: within };
        self.runtime
            .block_on(drill(Arc::clone(target), scratch.path(), rules, clock.as_ref()))
    }
}

fn in_folder(folder: &TempDir) -> Arc<dyn Target> {
    let place = folder.path().display().to_string();
    Arc::from(open_target(&place, &S3Place::default()).unwrap())
}

const HALF_AN_HOUR: Duration = Duration::from_secs(1800);

#[test]
fn two_files_of_one_name_are_both_backed_up() {
    let service = Service::new().found();
    for (folder, text) in [("a", "of a"), ("b", "of b")] {
        fs::create_dir(service.path(folder)).unwrap();
        fs::write(service.path(folder).join("compose.yaml"), text).unwrap();
    }
    let named = "deployment: [a/compose.yaml, b/compose.yaml, portolan.service, portolan.service]";
    service.write(&format!("{named}, dependency_locks: []"));
    let manifest = service.snapshot().unwrap().manifest;
    let paths = manifest.items.iter().map(|item| item.path.as_str());
    let deployed: Vec<&str> = paths.filter(|path| path.starts_with("deployment/")).collect();
    assert_eq!(deployed.len(), 3, "{deployed:?}");
    for end in ["/a/compose.yaml", "/b/compose.yaml", "/portolan.service"] {
        assert!(deployed.iter().any(|path| path.ends_with(end)), "{deployed:?}");
    }
}

#[test]
fn the_login_at_the_nats_servers_belongs_to_a_service() {
    let service = Service::new().found();
    let mut config = {
        let text = fs::read_to_string(service.path("portolan.yaml")).unwrap();
        let nats = "fleet: {secret_file: s, nats: {servers: ['nats://127.0.0.1:4222'], user: a, \
                    password_file: '{site}.password', tls: {ca: ca.pem}}}\n";
        fs::write(service.path("portolan.yaml"), text + nats).unwrap();
        service.config()
    };
    let copy = {
        let store = SledStore::open(&config.data_dir, &OsRandom).unwrap();
        make_snapshot(&config, &store).unwrap()
    };
    for file in ["s", "ca.pem"] {
        fs::write(service.path(file), "x").unwrap();
    }
    let lacks = collect(&config, &copy).unwrap_err().to_string();
    assert!(
        lacks.contains("the password for NATS is missing") && lacks.contains("paris.password"),
        "{lacks}"
    );
    fs::write(service.path("paris.password"), "x").unwrap();
    let paths = |config: &Config| {
        let items = collect(config, &copy).unwrap().manifest.items;
        let paths = items.into_iter().map(|item| item.path);
        paths
            .filter(|path| path.starts_with("fleet/"))
            .collect::<Vec<_>>()
    };
    let whole = ["fleet/nats/ca.pem", "fleet/nats/password", "fleet/secret"];
    assert_eq!(paths(&config), whole);
    // A secret that came from the environment is one, too.
    config.fleet.secret_file = None;
    config.fleet.secret = Some(crate::config::FleetSecret::parse(&"0f".repeat(32), "here").unwrap());
    assert_eq!(paths(&config), whole);
}

#[test]
fn a_manifest_names_every_file_with_what_it_is_for() {
    let service = Service::new().found();
    let manifest = service.snapshot().unwrap().manifest;
    let has = |role: Role| manifest.items.iter().any(|item| item.roles.contains(&role));
    for role in [
        Role::Weights,
        Role::Config,
        Role::Tokenizer,
        Role::ChatTemplate,
        Role::GenerationConfig,
        Role::RopeScaling,
        Role::EngineFlags,
        Role::HostConfig,
        Role::Deployment,
        Role::Policies,
        Role::Bindings,
        Role::Tenants,
        Role::Keys,
    ] {
        assert!(has(role), "{role:?}");
    }
    assert!(manifest.items.iter().all(|item| item.sha256.len() == 64));
    let weights = manifest
        .items
        .iter()
        .find(|item| item.path == "models/tiny/model.safetensors")
        .unwrap();
    assert_eq!(
        weights.bytes,
        fs::metadata(service.path("tiny/model.safetensors"))
            .unwrap()
            .len()
    );
}

#[test]
fn a_service_that_lacks_something_has_no_manifest() {
    let service = Service::new().found();
    for (recovery, named) in [
        (
            "dependency_locks: []",
            "deployment files is missing: name them under recovery.deployment",
        ),
        ("deployment: []", "dependency lock files is missing"),
        (
            "deployment: [gone.service], dependency_locks: []",
            "there is no file",
        ),
        (
            "deployment: [], dependency_locks: [], adapters: [tiny]",
            "adapter_config.json",
        ),
    ] {
        service.write(recovery);
        let refused = service.snapshot().unwrap_err().to_string();
        assert!(refused.contains(named), "{refused}");
    }
    service.write("deployment: [], dependency_locks: []");
    fs::remove_file(service.path("tiny/generation_config.json")).unwrap();
    let refused = service.snapshot().unwrap_err().to_string();
    assert!(
        refused.contains("the generation config of model tiny"),
        "{refused}"
    );
}

#[test]
fn a_backup_is_sent_once_and_told_from_a_service_that_changed() {
    let (service, place) = (Service::new().found(), tempfile::tempdir().unwrap());
    let target = in_folder(&place);
    let first = service.back_up(&target).unwrap();
    assert!(first.sent_bytes > 0 && first.torn == 0, "{first:?}");
    let verdict = service.verify(&target);
    assert!(verdict.ok, "{verdict:?}");
    let again = service.back_up(&target).unwrap();
    assert_eq!(again.sent_bytes, 0, "nothing changed");

    fs::write(service.path("portolan.service"), "[Service]\nExecStart=false\n").unwrap();
    fs::write(service.path("tiny/added_tokens.json"), "{}").unwrap();
    fs::remove_file(service.path("tiny/tokenizer_config.json")).unwrap();
    fs::write(service.path("tiny/chat_template.jinja"), "{{ messages }}").unwrap();
    let verdict = service.verify(&target);
    assert!(!verdict.ok);
    assert_eq!(
        verdict.missing,
        ["models/tiny/added_tokens.json", "models/tiny/chat_template.jinja"]
    );
    assert_eq!(verdict.extra, ["models/tiny/tokenizer_config.json"]);
    let different: Vec<&str> = verdict.different.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(different, ["deployment/portolan.service"]);
}

#[test]
fn a_torn_or_damaged_part_is_found_and_sent_again() {
    let (service, place) = (Service::new().found(), tempfile::tempdir().unwrap());
    let target = in_folder(&place);
    service.back_up(&target).unwrap();
    let parts = place.path().join("parts");
    let largest = fs::read_dir(&parts).unwrap().map(|entry| entry.unwrap().path());
    let largest = largest
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    let whole = fs::read(&largest).unwrap();

    fs::write(&largest, &whole[..whole.len() / 2]).unwrap();
    let verdict = service.verify(&target);
    assert!(
        verdict
            .different
            .iter()
            .any(|one| one.why.contains("a torn upload")),
        "{verdict:?}"
    );
    assert!(
        service.drill(&target, HALF_AN_HOUR).is_err(),
        "nothing is made of half a file"
    );
    let again = service.back_up(&target).unwrap();
    assert_eq!((again.torn, again.sent_bytes), (1, whole.len() as u64));
    assert!(service.verify(&target).ok);

    let mut flipped = whole.clone();
    flipped[whole.len() / 3] ^= 1;
    fs::write(&largest, &flipped).unwrap();
    let verdict = service.verify(&target);
    assert!(
        verdict
            .different
            .iter()
            .any(|one| one.why.contains("not those that were sent")),
        "{verdict:?}"
    );
    assert!(service.drill(&target, HALF_AN_HOUR).is_err());
    let trusting = service.back_up_over(&target, Existing::Trust).unwrap();
    assert_eq!(
        (trusting.damaged, trusting.sent_bytes),
        (0, 0),
        "it was not looked at"
    );
    assert!(!service.verify(&target).ok);
    let again = service.back_up(&target).unwrap();
    assert_eq!((again.torn, again.damaged), (0, 1));
    assert_eq!(again.sent_bytes, whole.len() as u64);
    let verdict = service.verify(&target);
    assert!(verdict.ok, "a backup that succeeded verifies: {verdict:?}");
    assert!(service.drill(&target, HALF_AN_HOUR).unwrap().ok);
}

#[test]
fn a_drill_brings_the_service_back_and_compares_its_answer() {
    let (service, place) = (Service::new().found(), tempfile::tempdir().unwrap());
    let target = in_folder(&place);
    service.back_up(&target).unwrap();
    let record = service.drill(&target, HALF_AN_HOUR).unwrap();
    assert!(record.ok, "{record:?}");
    assert!(
        !record.models[0].answered.is_empty() && record.store_records > 0,
        "{record:?}"
    );
    let late = service.drill(&target, Duration::ZERO).unwrap();
    assert!(!late.ok && late.problems[0].contains("were allowed"), "{late:?}");

    // A backup whose recorded answer is another one, as after a silent change of weights.
    let name = fs::read_dir(place.path().join("backups"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut backup: Backup = serde_json::from_slice(&fs::read(&name).unwrap()).unwrap();
    backup.probes[0].answer[0] ^= 1;
    fs::write(&name, serde_json::to_vec(&backup).unwrap()).unwrap();
    let other = service.drill(&target, HALF_AN_HOUR).unwrap();
    assert!(
        !other.ok && other.problems[0].contains("answers otherwise"),
        "{other:?}"
    );
}

#[test]
fn what_comes_back_lets_the_same_keys_in() {
    let (service, place) = (Service::new().found(), tempfile::tempdir().unwrap());
    let target = in_folder(&place);
    service.back_up(&target).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let restored = restore(target.as_ref(), scratch.path()).unwrap();
    assert_eq!(restored.config.data_dir, scratch.path().join("data"));
    let host = service.runtime.block_on(Host::start(restored.config)).unwrap();
    let client = crate::client::Client::new(&format!("http://{}", host.sites()[0].http()), "key-acme");
    assert!(client.get("/v1/models").is_ok());
    service.runtime.block_on(host.stop());
}

#[test]
fn a_store_that_speaks_s3_takes_a_backup_and_goes_on_after_a_cut() {
    let service = Service::new().found();
    let store = StandIn::start("key-id", "the-secret");
    let open = |secret: &str| -> Arc<dyn Target> {
        let place = S3Place {
            endpoint: Some(store.endpoint()),
            region: Some("eu-west-3".to_owned()),
            credentials: Some(("key-id".to_owned(), secret.to_owned())),
        };
        Arc::from(open_target("s3://backups/portolan/paris", &place).unwrap())
    };
    let refused = service.back_up(&open("another-secret")).unwrap_err().to_string();
    assert!(refused.contains("403"), "{refused}");
    let target = open("the-secret");
    store.fail_puts_after(3);
    let cut = service.back_up(&target).unwrap_err().to_string();
    assert!(cut.contains("503"), "{cut}");
    let sent = store.objects();
    assert_eq!(sent, 3);
    store.work();
    let whole = service.back_up(&target).unwrap();
    assert!(
        whole.sent_bytes < whole.bytes,
        "what had been sent was not sent again: {whole:?}"
    );
    let verdict = service.verify(&target);
    assert!(verdict.ok, "{verdict:?}");
    let record = service.drill(&target, HALF_AN_HOUR).unwrap();
    assert!(record.ok, "{record:?}");
    assert!(
        store.keys().iter().all(|key| key.starts_with("portolan/paris/")),
        "{:?}",
        store.keys()
    );
}

#[test]
fn a_server_of_s3_by_others_takes_backups_and_gives_them_back() {
    let Some(mut server) = Moto::start() else { return };
    let service = Service::new().found();
    let place = S3Place {
        endpoint: Some(server.endpoint()),
        region: None,
        credentials: Some(("key-id".to_owned(), "the-secret".to_owned())),
    };
    let open =
        || -> Arc<dyn Target> { Arc::from(open_target("s3://backups/portolan/paris", &place).unwrap()) };
    let target = open();
    assert!(target.list("backups/").unwrap().is_empty());
    assert_eq!(target.size("parts/none").unwrap(), None);
    assert!(target.get("parts/none").unwrap().is_none());
    let first = service.back_up(&target).unwrap();
    assert!(first.sent_bytes > 0 && first.torn == 0, "{first:?}");
    let verdict = service.verify(&target);
    assert!(verdict.ok, "{verdict:?}");

    // More backups than a page of a list holds: the latest is on the last.
    for round in 0..PAGE {
        fs::write(
            service.path("portolan.service"),
            format!("[Service]\n# {round}\n"),
        )
        .unwrap();
        let next = service.back_up(&target).unwrap();
        assert!(
            next.sent_bytes < first.sent_bytes,
            "what did not change stays: {next:?}"
        );
    }
    assert_eq!(target.list("backups/").unwrap().len(), PAGE + 1);
    let verdict = service.verify(&target);
    assert!(verdict.ok, "{verdict:?}");
    let record = service.drill(&target, HALF_AN_HOUR).unwrap();
    assert!(record.ok, "{record:?}");

    let parts = target.list("parts/").unwrap();
    let largest = parts.iter().max_by_key(|key| target.size(key).unwrap()).unwrap();
    let whole = target.get(largest).unwrap().unwrap();
    target.put(largest, &whole[..whole.len() / 2]).unwrap();
    assert!(!service.verify(&target).ok);
    assert!(
        service.drill(&target, HALF_AN_HOUR).is_err(),
        "nothing is made of half a file"
    );
    let again = service.back_up(&target).unwrap();
    assert_eq!((again.torn, again.sent_bytes), (1, whole.len() as u64));
    assert!(service.verify(&target).ok);

    server.stop();
    let unreachable = service.back_up(&open()).unwrap_err().to_string();
    assert!(
        unreachable.contains("s3://backups/portolan/paris"),
        "{unreachable}"
    );
}
