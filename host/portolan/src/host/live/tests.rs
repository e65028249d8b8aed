//! The file of a running host is changed, put back and approved, over HTTP.

use crate::client::{Client, ClientError, Reply};
use crate::config::Config;
use crate::host::Host;
use portolan_ports::{Changer, ConfigOrder, ConfigOutcome};
use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const ACME: &str = "{name: acme, keys: [key-acme]}";

/// A host without models that was started with a file.
struct Started {
    runtime: Runtime,
    host: Option<Host>,
    folder: TempDir,
}

impl Started {
    fn with(tenants: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let started = Self {
            runtime: Runtime::new().unwrap(),
            host: None,
            folder,
        };
        started.write(tenants, more);
        started.start()
    }

    fn start(mut self) -> Self {
        let config = Config::read(&self.file()).unwrap();
        self.host = Some(self.runtime.block_on(Host::start(config)).unwrap());
        self
    }

    fn stop(mut self) -> Self {
        if let Some(host) = self.host.take() {
            self.runtime.block_on(host.stop());
        }
        self
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("portolan.yaml")
    }

    fn write(&self, tenants: &str, more: &str) {
        let text = format!(
            "data_dir: data\nmodels: []\n\
             operator_keys: [{{name: alice, key: key-alice}}, {{name: bob, key: key-bob}}]\n\
             sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}}]\n\
             tenants: [{tenants}]\n{more}\n"
        );
        std::fs::write(self.file(), text).unwrap();
    }

    fn client(&self, key: &str) -> Client {
        let host = self.host.as_ref().unwrap();
        Client::new(&format!("http://{}", host.sites()[0].http()), key)
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "every caller makes its body in place"
    )]
    fn ask(&self, key: &str, verb: &str, body: Value) -> Result<Reply, ClientError> {
        self.client(key)
            .post(&format!("/v1/portolan/config/{verb}"), &body)
    }

    /// What was done, in a word, and the version in force.
    fn done(&self, key: &str, verb: &str, body: Value) -> (String, u64) {
        let body = self.ask(key, verb, body).unwrap().body;
        (
            body["outcome"].as_str().unwrap().to_owned(),
            body["version"].as_u64().unwrap(),
        )
    }

    /// The status and the text of a refusal.
    fn refused(&self, key: &str, verb: &str) -> (u16, String) {
        match self.ask(key, verb, json!({})) {
            Err(ClientError::Refused { status, message, .. }) => (status, message),
            other => panic!("{other:?}"),
        }
    }

    fn lets_in(&self, key: &str) -> bool {
        self.client(key).get("/v1/models").is_ok()
    }

    fn history(&self) -> Vec<Value> {
        let body = self
            .client("key-bob")
            .get("/v1/portolan/config/history")
            .unwrap()
            .body;
        body["data"].as_array().unwrap().clone()
    }
}

#[test]
fn a_changed_file_counts_at_once_and_a_version_of_it_comes_back() {
    let host = Started::with(ACME, "");
    assert!(!host.lets_in("key-globex"));
    host.write(
        &format!("{ACME}, {{name: globex, keys: [key-globex]}}"),
        "timeouts: {factor: 7}",
    );
    assert!(!host.lets_in("key-globex"), "not before it is told to");

    let reply = host
        .ask("key-alice", "reload", json!({"reason": "globex signed"}))
        .unwrap()
        .body;
    let changes = reply["changes"].as_array().unwrap();
    let said: Vec<&str> = changes.iter().filter_map(Value::as_str).collect();
    assert!(said.contains(&"timeouts.factor: 5 → 7"), "{said:?}");
    assert!(
        said.contains(&"tenants.globex.keys: added (not shown)"),
        "{said:?}"
    );
    assert!(!reply.to_string().contains("key-globex"), "secrets stay out");
    assert!(host.lets_in("key-globex"));
    let site = host.host.as_ref().unwrap().sites()[0].gateway().unwrap();
    assert_eq!(site.live().timeouts.factor, 7);

    assert_eq!(
        host.done("key-alice", "reload", json!({})),
        ("unchanged".to_owned(), 2)
    );
    assert_eq!(
        host.done("key-bob", "rollback", json!({"reason": "too early"})),
        ("applied".to_owned(), 3)
    );
    assert!(!host.lets_in("key-globex"));
    assert!(
        !std::fs::read_to_string(host.file()).unwrap().contains("globex"),
        "the file says so too"
    );

    let history = host.history();
    assert_eq!(history.len(), 3);
    assert_eq!(
        (history[0]["actor"].as_str(), history[0]["reason"].as_str()),
        (Some("operator bob"), Some("too early"))
    );
    let audit = host
        .client("key-bob")
        .get("/v1/portolan/audit")
        .unwrap()
        .body
        .to_string();
    assert!(
        audit.contains("config.change") && audit.contains("globex signed"),
        "{audit}"
    );

    let host = host.stop().start();
    assert_eq!(
        host.history().len(),
        3,
        "a restart with the same file is no version"
    );
    assert_eq!(
        host.done("key-bob", "rollback", json!({"version": 2})),
        ("applied".to_owned(), 4)
    );
    assert!(host.lets_in("key-globex"));
    drop(host.stop());
}

#[test]
fn a_change_counts_as_a_whole_or_not_at_all() {
    let host = Started::with(ACME, "");
    let globex = format!("{ACME}, {{name: globex, keys: [key-globex]}}");

    host.write(&globex, "kv: {time_to_live_s: 60}\nuser_classes: [standard, vip]");
    let (status, text) = host.refused("key-alice", "reload");
    assert_eq!(status, 409);
    assert!(
        text.contains("kv.time_to_live_s") && text.contains("user_classes"),
        "{text}"
    );

    host.write(&globex, "timeouts: {factr: 7}");
    let (status, text) = host.refused("key-alice", "reload");
    assert_eq!(status, 400);
    assert!(text.contains("did you mean `factor`?"), "{text}");

    assert!(!host.lets_in("key-globex"));
    assert_eq!(host.history().len(), 1);
    let tenant = host
        .client("key-acme")
        .post("/v1/portolan/config/reload", &json!({}));
    assert!(
        matches!(tenant, Err(ClientError::Refused { status: 403, .. })),
        "{tenant:?}"
    );
    drop(host.stop());
}

#[test]
fn on_a_full_disk_nothing_changes_and_nothing_of_it_is_left() {
    let host = Started::with(ACME, "");
    let folder = host.folder.path().join("data/config");
    let audited = |host: &Started| {
        let log = host.client("key-bob").get("/v1/portolan/audit").unwrap().body;
        log["data"].as_array().unwrap().len()
    };
    let lines = audited(&host);
    let before = std::fs::read_to_string(host.file()).unwrap();
    let globex = format!("{ACME}, {{name: globex, keys: [key-globex]}}");
    // Whatever is written there finds no room.
    let full = |place: PathBuf| std::os::unix::fs::symlink("/dev/full", place).unwrap();
    let unchanged = |host: &Started| {
        assert!(host.lets_in("key-acme") && !host.lets_in("key-globex"));
        assert_eq!((host.history().len(), audited(host)), (1, lines));
        let site = host.host.as_ref().unwrap().sites()[0].gateway().unwrap();
        assert_eq!(site.live().timeouts.factor, 5);
        let left = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(left, 1, "half of a version takes room");
    };
    host.write(&globex, "timeouts: {factor: 7}");
    full(folder.join("00000002.json.new"));
    let (status, text) = host.refused("key-alice", "reload");
    assert_eq!(status, 500);
    assert!(text.contains("No space left"), "{text}");
    unchanged(&host);

    // With room it is as if nothing had been.
    assert_eq!(
        host.done("key-alice", "reload", json!({})),
        ("applied".to_owned(), 2)
    );
    assert!(host.lets_in("key-globex"));
    let lines_then = audited(&host);

    // A roll-back writes the operator's file too.
    let now = std::fs::read_to_string(host.file()).unwrap();
    let mut beside = host.file().into_os_string();
    beside.push(".new");
    full(PathBuf::from(&beside));
    let (status, text) = host.refused("key-alice", "rollback");
    assert_eq!((status, text.contains("No space left")), (500, true), "{text}");
    assert!(host.lets_in("key-globex"));
    assert_eq!((host.history().len(), audited(&host)), (2, lines_then));
    assert_eq!(std::fs::read_to_string(host.file()).unwrap(), now);
    assert_eq!(
        host.done("key-alice", "rollback", json!({})),
        ("applied".to_owned(), 3)
    );
    assert!(!host.lets_in("key-globex"));
    assert_eq!(std::fs::read_to_string(host.file()).unwrap(), before);
    drop(host.stop());
}

#[test]
fn a_roll_back_overwrites_no_edits_unless_it_is_told_to() {
    let host = Started::with(ACME, "");
    let globex = format!("{ACME}, {{name: globex, keys: [key-globex]}}");
    host.write(&globex, "");
    assert_eq!(host.done("key-alice", "reload", json!({})).1, 2);
    host.write(&globex, "timeouts: {factor: 7}");
    let edited = std::fs::read_to_string(host.file()).unwrap();

    let (status, text) = host.refused("key-alice", "rollback");
    assert_eq!(status, 409);
    assert!(
        text.contains("timeouts.factor: 5 → 7") && text.contains("--force"),
        "{text}"
    );
    assert!(host.lets_in("key-globex"));
    assert_eq!(std::fs::read_to_string(host.file()).unwrap(), edited);

    std::fs::write(host.file(), "data_dir: [").unwrap();
    let (status, text) = host.refused("key-alice", "rollback");
    assert_eq!(
        (status, text.contains("cannot be used as it stands")),
        (409, true),
        "{text}"
    );

    let force = json!({"force": true});
    assert_eq!(
        host.done("key-alice", "rollback", force),
        ("applied".to_owned(), 3)
    );
    assert!(!host.lets_in("key-globex"));
    let beside = host.file().with_extension("yaml.edited");
    assert_eq!(std::fs::read_to_string(beside).unwrap(), "data_dir: [");

    // The file holds what is rolled back to already: there is nothing to lose.
    let now = std::fs::read_to_string(host.file()).unwrap();
    host.write(&globex, "");
    assert_eq!(host.done("key-alice", "reload", json!({})).1, 4);
    std::fs::write(host.file(), now).unwrap();
    assert_eq!(
        host.done("key-alice", "rollback", json!({})),
        ("applied".to_owned(), 5)
    );
    drop(host.stop());
}

#[test]
fn under_four_eyes_a_change_waits_for_a_second_operator() {
    let eyes = "changing: {four_eyes: true}";
    let host = Started::with(ACME, eyes);
    host.write(&format!("{ACME}, {{name: globex, keys: [key-globex]}}"), eyes);
    assert_eq!(
        host.done("key-alice", "reload", json!({})),
        ("proposed".to_owned(), 1)
    );
    assert!(!host.lets_in("key-globex"));
    let pending = host
        .client("key-bob")
        .get("/v1/portolan/config/pending")
        .unwrap()
        .body;
    assert_eq!(pending["pending"]["actors"], json!(["operator alice"]));
    let (status, text) = host.refused("key-alice", "approve");
    assert!(
        status == 403 && text.contains("alice stands behind this already"),
        "{text}"
    );
    assert_eq!(
        host.done("key-bob", "approve", json!({})),
        ("applied".to_owned(), 2)
    );
    assert!(host.lets_in("key-globex"));
    assert_eq!(host.history()[0]["actor"], "operator alice, operator bob");

    // A signal names nobody: two operators have to stand behind what it brings.
    host.write(ACME, eyes);
    let by = Changer {
        actor: "signal".to_owned(),
        holder: None,
        reason: "SIGHUP".to_owned(),
    };
    let running = host.host.as_ref().unwrap();
    let done = host
        .runtime
        .block_on(running.reconfigure(ConfigOrder::Reload, by))
        .unwrap();
    assert_eq!(done.outcome, ConfigOutcome::Proposed);
    assert_eq!(host.done("key-alice", "approve", json!({})).0, "proposed");
    assert!(host.lets_in("key-globex"));
    assert_eq!(host.done("key-bob", "approve", json!({})).0, "applied");
    assert!(!host.lets_in("key-globex"));

    host.write(ACME, &format!("{eyes}\ntimeouts: {{factor: 9}}"));
    assert_eq!(host.done("key-alice", "reload", json!({})).0, "proposed");
    assert_eq!(host.done("key-bob", "reject", json!({})).0, "rejected");
    let (status, _) = host.refused("key-bob", "approve");
    assert_eq!(status, 404);
    drop(host.stop());
}

#[test]
fn what_waits_for_a_second_operator_waits_over_a_restart() {
    let eyes = "changing: {four_eyes: true}";
    let globex = format!("{ACME}, {{name: globex, keys: [key-globex]}}");
    let host = Started::with(ACME, eyes);
    host.write(&globex, eyes);
    assert_eq!(host.done("key-alice", "reload", json!({})).0, "proposed");

    let host = host.stop().start();
    assert!(
        !host.lets_in("key-globex"),
        "the file holds what nobody else stands behind"
    );
    assert_eq!(host.history().len(), 1);
    let (status, text) = host.refused("key-alice", "approve");
    assert!(
        status == 403 && text.contains("alice stands behind this already"),
        "{text}"
    );
    assert_eq!(
        host.done("key-bob", "approve", json!({})),
        ("applied".to_owned(), 2)
    );
    assert!(host.lets_in("key-globex"));
    assert_eq!(host.history()[0]["actor"], "operator alice, operator bob");
    let host = host.stop().start();
    assert!(host.lets_in("key-globex"));
    assert_eq!(host.refused("key-bob", "approve").0, 404, "nothing waits");

    // Another file, and a start with it: what waited was meant to follow what is no longer in force.
    host.write(ACME, eyes);
    assert_eq!(host.done("key-alice", "reload", json!({})).0, "proposed");
    host.write(ACME, &format!("{eyes}\ntimeouts: {{factor: 9}}"));
    let host = host.stop().start();
    assert!(!host.lets_in("key-globex"));
    assert_eq!(host.refused("key-bob", "approve").0, 404);

    // What says that something waits is torn: nothing waits, and the host starts.
    host.write(&globex, eyes);
    assert_eq!(host.done("key-alice", "reload", json!({})).0, "proposed");
    let file = host.folder.path().join("data/config/waiting.json");
    let text = std::fs::read(&file).unwrap();
    let host = host.stop();
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    let host = host.start();
    assert_eq!(host.refused("key-bob", "approve").0, 404);
    drop(host.stop());
}

#[test]
fn metrics_and_traces_are_switched_off_while_the_host_runs() {
    let host = Started::with(ACME, "");
    let metrics = |host: &Started| host.client("").get("/metrics").is_ok();
    assert!(metrics(&host));
    host.write(
        ACME,
        "observability: {metrics_enabled: false, tracing_enabled: false}",
    );
    assert_eq!(host.done("key-alice", "reload", json!({})).0, "applied");
    assert!(!metrics(&host));
    let site = host.host.as_ref().unwrap().sites()[0].gateway().unwrap();
    assert!(!site.live().tracing.is_on());
    drop(host.stop());
}

#[test]
fn what_is_in_force_is_shown_without_secrets() {
    let host = Started::with(ACME, "");
    let shown = host.client("key-alice").get("/v1/portolan/config").unwrap().body;
    assert_eq!(shown["timeouts"]["factor"], 5);
    assert_eq!(shown["tenants"][0]["keys"], json!(["***"]));
    assert!(!shown.to_string().contains("key-"), "{shown}");
    drop(host.stop());
}
