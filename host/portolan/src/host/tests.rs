//! The rules of the configuration hold in the running host: real keys, real components, over HTTP.

mod kv;

use super::*;
use crate::client::{Client, ClientError};
use crate::signing::SecretKey;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

const ACME: &str = "/v1/portolan/tenants/acme/policies/routing";
const PLATFORM: &str = "/v1/portolan/tenants/_platform/policies/routing";

fn shipped(name: &str) -> Vec<u8> {
    let folder = std::env::var_os("PORTOLAN_PLUGINS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist"),
        PathBuf::from,
    );
    let path = folder.join(format!("{name}.wasm"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; run `make plugins`", path.display()))
}

/// A host without models, until it is stopped.
struct Started {
    runtime: Runtime,
    host: Host,
}

impl Started {
    fn on(folder: &Path, policies: &str, acme: &str) -> Self {
        let text = format!(
            "{{data_dir: '{}', models: [], policies: {{{policies}}},
               operator_keys: [{{name: alice, key: key-alice}}, {{name: bob, key: key-bob}}],
               sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}}],
               tenants: [{{name: acme, keys: [key-acme]{acme}}}]}}",
            folder.display()
        );
        let config = Config::parse(&text).unwrap();
        let runtime = Runtime::new().unwrap();
        let host = runtime.block_on(Host::start(config)).unwrap();
        Self { runtime, host }
    }

    fn client(&self, key: &str) -> Client {
        Client::new(&format!("http://{}", self.host.sites()[0].http()), key)
    }

    fn stop(self) {
        self.runtime.block_on(self.host.stop());
    }
}

/// The first error that was found of a component that was refused.
fn code(refused: Result<crate::client::Reply, ClientError>) -> String {
    match refused {
        Err(ClientError::Refused { body, .. }) => {
            let findings = body["findings"].as_array().into_iter().flatten();
            let mut errors = findings.filter(|finding| finding["severity"] == "error");
            let first = errors.next().and_then(|finding| finding["code"].as_str());
            first.unwrap_or("?").to_owned()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tenants_key_is_asked_for_and_losing_it_leaves_what_is_bound() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, other) = (SecretKey::draw(&OsRandom), SecretKey::draw(&OsRandom));
    let trusting = |key: &SecretKey| format!(", require_signature: true, signing_keys: ['{}']", key.public());
    let (first, second) = (shipped("threshold"), shipped("round-robin"));
    let signed = |by: &SecretKey, component: &[u8]| by.sign(component).to_string();

    let host = Started::on(folder.path(), "", &trusting(&ours));
    let acme = host.client("key-acme");
    let push =
        |component: &[u8], signature: &str| acme.put_signed(ACME, &[("name", "p")], (component, signature));
    assert_eq!(code(push(&first, "")), "unsigned");
    assert_eq!(code(push(&first, &signed(&other, &first))), "unknown-key");
    assert_eq!(code(push(&first, &signed(&ours, &second))), "bad-signature");
    let old = push(&first, &signed(&ours, &first)).unwrap().body;
    let new = push(&second, &signed(&ours, &second)).unwrap().body;
    host.stop();

    let host = Started::on(folder.path(), "", &trusting(&other));
    let acme = host.client("key-acme");
    let slot = acme.get(ACME).unwrap().body;
    assert_eq!(slot["binding"]["sha256"], new["version"], "a restart asks nobody");
    assert_eq!(slot["signature_findings"][0]["code"], "unknown-key");
    let back = acme.post(&format!("{ACME}/activate"), &json!({ "version": old["version"] }));
    assert_eq!(code(back), "unknown-key");
    let back = acme.post(&format!("{ACME}/rollback"), &json!({}));
    assert_eq!(code(back), "unknown-key");
    host.stop();
}

#[test]
fn a_platform_change_waits_through_a_restart_for_the_second_operator() {
    let folder = tempfile::tempdir().unwrap();
    let host = Started::on(folder.path(), "four_eyes: true", "");
    let alice = host.client("key-alice");
    let query = [("name", "p"), ("reason", "faster")];
    let pushed = alice.put(PLATFORM, &query, &shipped("threshold")).unwrap().body;
    assert_eq!(pushed["proposal"]["actor"], "operator alice");
    host.stop();

    let host = Started::on(folder.path(), "four_eyes: true", "");
    let (alice, bob) = (host.client("key-alice"), host.client("key-bob"));
    assert_eq!(alice.get(PLATFORM).unwrap().body["binding"], Value::Null);
    let approve = "/v1/portolan/proposals/1/approve";
    assert!(matches!(
        alice.post(approve, &json!({})),
        Err(ClientError::Refused { status: 403, .. })
    ));
    let decided = bob.post(approve, &json!({ "reason": "read" })).unwrap().body;
    assert_eq!(decided["binding"]["sha256"], pushed["version"]);
    assert_eq!(decided["binding"]["actor"], "operator alice, with operator bob");
    host.stop();
}
