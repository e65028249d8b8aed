//! What other sites told meets files that are written in other ways, that were mended, and that are links.

use super::*;
use crate::system::{OsRandom, SystemClock};
use portolan_ports::{ConfigDone, ConfigOrder, ConfigOutcome};
use portolan_store::SledStore;
use tempfile::TempDir;

/// Takes everything, and numbers it.
#[derive(Default)]
struct Servers(Mutex<Vec<SharedConfig>>);

impl SharedConfiguration for Servers {
    fn share(&self, told: &SharedConfig, _: FleetVersion) -> Result<FleetVersion, ConfigRefusal> {
        let mut kept = lock(&self.0);
        kept.push(told.clone());
        Ok(version(kept.len() as u64))
    }

    fn report(&self, _: &SiteName, _: &SiteRuns) -> Result<(), ConfigRefusal> {
        Ok(())
    }
}

/// The configuration of one host, with its file.
struct Site {
    live: Arc<LiveConfig>,
    servers: Arc<Servers>,
    folder: TempDir,
}

impl Site {
    fn with(tenants: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("portolan.yaml"), text(tenants)).unwrap();
        Self::of(folder)
    }

    fn of(folder: TempDir) -> Self {
        let config = Config::read(&folder.path().join("portolan.yaml")).unwrap();
        let store = Arc::new(SledStore::open(&config.data_dir, &OsRandom).unwrap());
        let live = LiveConfig::start(&config, store, Arc::new(SystemClock::start())).unwrap();
        let servers = Arc::new(Servers::default());
        live.join(Arc::clone(&servers) as Arc<dyn SharedConfiguration>);
        Self {
            live,
            servers,
            folder,
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("portolan.yaml")
    }

    fn write(&self, tenants: &str) {
        std::fs::write(self.file(), text(tenants)).unwrap();
    }

    fn reload(&self) -> Result<ConfigDone, ConfigRefusal> {
        let by = Changer {
            actor: "operator".to_owned(),
            holder: None,
            reason: String::new(),
        };
        self.live.change(ConfigOrder::Reload, by)
    }

    /// What it told last.
    fn told(&self) -> SharedConfig {
        lock(&self.servers.0).last().unwrap().clone()
    }

    fn tenants(&self) -> usize {
        self.live.config().tenants.len()
    }
}

fn version(number: u64) -> FleetVersion {
    FleetVersion { founded: 1, number }
}

fn text(tenants: &str) -> String {
    format!(
        "data_dir: data\nmodels: []\noperator_keys: [op]\n\
         sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}}]\n{tenants}\n"
    )
}

const ONE: &str = "tenants: [{name: acme, keys: [a]}]";
const TWO: &str = "tenants: [{name: acme, keys: [a]}, {name: globex, keys: [g]}]";

/// What a site tells that goes from one tenant to two.
fn of_two_tenants() -> SharedConfig {
    let paris = Site::with(ONE);
    paris.write(TWO);
    assert_eq!(paris.reload().unwrap().outcome, ConfigOutcome::Applied);
    paris.told()
}

#[test]
fn a_file_is_taken_over_however_it_is_written() {
    let told = of_two_tenants();
    for tenants in [
        "\"tenants\":\n- {name: acme, keys: [a]}",
        "'tenants' : [{name: acme, keys: [a]}]\n...",
        "tenants:\r\n- name: acme\r\n  keys: [a]\r\n",
    ] {
        let tokyo = Site::with(tenants);
        assert_eq!(tokyo.live.take_over(version(1), &told), Ok(true), "{tenants:?}");
        assert_eq!(tokyo.tenants(), 2);
        let again = Config::read(&tokyo.file()).unwrap();
        assert_eq!(again.common_digest(), told.digest, "a restart says the same");
    }
}

#[test]
fn a_file_that_was_in_the_way_is_mended_and_reloaded() {
    let told = of_two_tenants();
    let tokyo = Site::with("? tenants\n: [{name: acme, keys: [a]}]");
    for _ in 0..2 {
        let why = tokyo.live.take_over(version(1), &told).unwrap_err().to_string();
        assert!(
            why.contains("mended and reloaded") && why.contains("`tenants:`"),
            "{why}"
        );
    }
    tokyo.write(ONE);
    assert_eq!(tokyo.reload().unwrap().outcome, ConfigOutcome::Unchanged);
    assert_eq!(tokyo.live.take_over(version(1), &told), Ok(true));
    assert_eq!((tokyo.tenants(), tokyo.live.runs().refused), (2, None));
}

#[test]
fn a_file_that_says_the_same_takes_over_and_another_does_not_pass_over_it() {
    let told = of_two_tenants();
    let tokyo = Site::with("? tenants\n: [{name: acme, keys: [a]}]");
    tokyo.live.take_over(version(1), &told).unwrap_err();
    tokyo.write("tenants: [{name: globex, keys: [g]}]");
    let refused = tokyo.reload().unwrap_err();
    assert!(matches!(refused, ConfigRefusal::NotTakenOver(_)), "{refused}");
    tokyo.write(TWO);
    assert_eq!(tokyo.reload().unwrap().outcome, ConfigOutcome::Applied);
    let runs = tokyo.live.runs();
    assert_eq!(
        (runs.fleet, runs.differs, runs.refused),
        (version(1), false, None)
    );
    assert!(lock(&tokyo.servers.0).is_empty(), "the others have it already");
}

#[test]
fn what_other_sites_could_not_take_over_is_not_told() {
    let paris = Site::with(ONE);
    paris.write("? tenants\n: [{name: acme, keys: [b]}]");
    let refused = paris.reload().unwrap_err().to_string();
    assert!(refused.starts_with("tenants: its lines"), "{refused}");
    assert_eq!(paris.live.versions.newest(), Ok(1));
}

#[test]
fn a_file_that_is_a_link_stays_one() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("real")).unwrap();
    let real = folder.path().join("real/paris.yaml");
    std::fs::write(&real, text(ONE)).unwrap();
    std::os::unix::fs::symlink("real/paris.yaml", folder.path().join("portolan.yaml")).unwrap();
    let tokyo = Site::of(folder);
    assert_eq!(tokyo.live.take_over(version(1), &of_two_tenants()), Ok(true));
    assert!(std::fs::symlink_metadata(tokyo.file()).unwrap().is_symlink());
    assert!(std::fs::read_to_string(real).unwrap().contains("globex"));
}

#[test]
fn an_edit_that_cannot_be_kept_is_not_overwritten() {
    let tokyo = Site::with(ONE);
    let edited = text("tenants: [{name: initech, keys: [i]}]");
    std::fs::write(tokyo.file(), &edited).unwrap();
    // A folder in its place keeps the edit from being set aside, as a full disk does.
    let beside = tokyo.file().with_extension("yaml.edited");
    std::fs::create_dir_all(beside.join("x")).unwrap();
    let why = tokyo.live.take_over(version(1), &of_two_tenants()).unwrap_err();
    assert!(why.to_string().contains("cannot be kept as"), "{why}");
    assert_eq!(std::fs::read_to_string(tokyo.file()).unwrap(), edited);
    assert_eq!((tokyo.tenants(), tokyo.live.versions.newest()), (1, Ok(1)));
    std::fs::remove_dir_all(&beside).unwrap();
    assert_eq!(tokyo.live.take_over(version(1), &of_two_tenants()), Ok(true));
    assert_eq!(std::fs::read_to_string(beside).unwrap(), edited);
}
