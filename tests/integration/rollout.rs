//! The life of a policy's version under traffic: shadow, canary, automatic withdrawal, roll-back, pin.

use crate::guests::Guest;
use portolan::client::ClientError;
use portolan_decide::{PathRecord, PolicyRecord};
use portolan_policy::QuestionKind;
use portolan_tests::world::{ACME, ADMIN, record_of, shipped};
use portolan_tests::{Answer, Ask, Link, Oracle, World, oracle_folder};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const FAST: Link = Link {
    delay_ms: 0,
    rate_mbps: 0,
};
const SLOT: &str = "/v1/portolan/tenants/acme/policies/routing";

struct Bench {
    world: World,
    prompt: Vec<u32>,
    expected: Vec<u32>,
}

impl Bench {
    fn start() -> Self {
        let case = Oracle::of("tiny-qwen3").prompts.remove(1);
        Self {
            world: World::start(&oracle_folder("tiny-qwen3"), FAST),
            prompt: case.prompt_ids,
            expected: case.greedy_ids[..4].to_vec(),
        }
    }

    /// Binds a component; its SHA-256.
    fn bind(&self, component: &[u8], config: &str) -> String {
        let pushed = self.world.push(ACME, ("acme", "routing"), component, config);
        pushed.unwrap()["version"].as_str().unwrap().to_owned()
    }

    /// Stores a component; its SHA-256.
    fn store(&self, name: &str, component: &[u8]) -> String {
        let query = [("name", name), ("activate", "false")];
        let stored = self.world.client(ACME).put(SLOT, &query, component).unwrap();
        stored.body["version"].as_str().unwrap().to_owned()
    }

    fn change(&self, word: &str, body: &Value) -> Result<Value, ClientError> {
        let changed = self.world.client(ACME).post(&format!("{SLOT}/{word}"), body);
        changed.map(|reply| reply.body)
    }

    fn slot(&self) -> Value {
        self.world.client(ACME).get(SLOT).unwrap().body
    }

    /// Asks within a session and checks the answer.
    fn ask(&self, session: &str) -> Answer {
        let client = self.world.client(ACME);
        let mut body = Ask::tokens(&self.prompt).max(4).body(false);
        body["portolan"] = json!({ "session": session });
        let reply = client.post("/v1/completions", &body).unwrap();
        let tokens: Vec<u32> = serde_json::from_value(reply.body["choices"][0]["token_ids"].clone()).unwrap();
        assert_eq!(tokens, self.expected, "the client notices nothing");
        let record = record_of(&client, reply.request_id.as_deref().unwrap());
        Answer {
            tokens,
            text: String::new(),
            record,
        }
    }
}

/// The call of the version that answered the routing question.
fn routed(record: &PathRecord) -> &PolicyRecord {
    let call = record
        .policies
        .iter()
        .find(|p| p.question == QuestionKind::Routing);
    call.expect("a router was asked")
}

#[test]
fn half_of_the_sessions_stay_with_the_canary_and_a_shadow_changes_nothing() {
    const SESSIONS: usize = 48;
    let bench = Bench::start();
    let old = bench.bind(&shipped("lowest-cost"), "");
    let new = bench.store("round-robin", &shipped("round-robin"));
    bench
        .change("canary", &json!({"version": &new[..10], "percent": 50}))
        .unwrap();
    let mut versions: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for _ in 0..3 {
        for session in 0..SESSIONS {
            let answer = bench.ask(&format!("session-{session}"));
            let version = routed(&answer.record).version.clone();
            versions.entry(session).or_default().insert(version);
        }
    }
    assert!(
        versions.values().all(|seen| seen.len() == 1),
        "a session changed its version: {versions:?}"
    );
    let on_canary = versions.values().filter(|seen| seen.contains(&new)).count();
    println!("{on_canary} of {SESSIONS} sessions are on the canary");
    assert!((10..=38).contains(&on_canary), "{on_canary} of {SESSIONS}");

    bench.change("shadow", &json!({})).unwrap();
    let mut differs = 0;
    for request in 0..20 {
        let answer = bench.ask(&format!("shadowed-{request}"));
        assert_eq!(routed(&answer.record).version, old, "a shadow is not obeyed");
        let id = answer.record.request_id.as_str().to_owned();
        let client = bench.world.client(ACME);
        bench.world.wait("the shadow was asked", || {
            !record_of(&client, &id).shadows.is_empty()
        });
        let shadow = record_of(&client, &id).shadows.remove(0);
        assert_eq!((shadow.call.version, &*shadow.call.outcome), (new.clone(), "ok"));
        differs += u64::from(shadow.differs.is_some());
    }
    println!("the shadow would have decided otherwise in {differs} of 20 requests");
    assert!(
        (1..20).contains(&differs),
        "a round robin differs now and then: {differs}"
    );
    let counts = bench.slot()["counts"][&new].clone();
    assert_eq!(
        (&counts["shadow_calls"], &counts["shadow_differs"]),
        (&json!(20), &json!(differs))
    );
    assert_eq!(counts["calls"], 0);
    let metrics = bench.world.client(ADMIN).get("/metrics").unwrap().body;
    let line =
        format!("portolan_policy_shadow_calls_total{{question=\"routing\",outcome=\"differs\"}} {differs}");
    assert!(metrics.as_str().unwrap().contains(&line), "{line}");
}

#[test]
fn a_canary_that_traps_is_withdrawn_and_no_client_notices() {
    let bench = Bench::start();
    let old = bench.bind(&shipped("lowest-cost"), "");
    let new = bench.store("trapping", &Guest::always("(unreachable)").component());
    bench
        .change("canary", &json!({"version": new, "percent": 50}))
        .unwrap();
    let mut trapped = 0;
    for session in 0..200 {
        let record = bench.ask(&format!("session-{session}")).record;
        trapped += u32::from(routed(&record).version == new);
        if trapped > 5 {
            break;
        }
    }
    bench.world.wait("the trial was withdrawn", || {
        bench.slot()["rollout"]["trial"].is_null()
    });
    println!("withdrawn after {trapped} requests that trapped");
    assert_eq!(trapped, 6, "five faults in a hundred calls are allowed");
    // The store knows first, the table a moment later; from then on nobody meets the trial.
    let everyone = || (0..20).map(|session| bench.ask(&format!("session-{session}")).record);
    bench.world.wait("the table has swapped", || {
        everyone().all(|record| routed(&record).version == old)
    });
    for record in everyone() {
        assert_eq!(
            (&*routed(&record).version, &*routed(&record).outcome),
            (&*old, "ok")
        );
    }
    let audit = bench
        .world
        .client(ADMIN)
        .get("/v1/portolan/audit?limit=1")
        .unwrap()
        .body;
    let line = &audit["data"][0];
    assert_eq!(
        (&line["actor"], &line["action"]),
        (&json!("budget"), &json!("policy.withdraw"))
    );
    assert_eq!(line["reason"], "6 faults in 6 calls, 5 allowed");
}

#[test]
fn a_roll_back_restores_version_and_configuration_and_a_pin_outlives_a_restart() {
    let mut bench = Bench::start();
    let config = r#"{"local_below_tokens": 7}"#;
    let old = bench.bind(&shipped("threshold"), config);
    bench.bind(&shipped("round-robin"), "");
    let back = bench.change("rollback", &json!({"reason": "worse"})).unwrap();
    assert_eq!((&back["sha256"], &back["config"]), (&json!(old), &json!(config)));
    assert_eq!(routed(&bench.ask("s").record).version, old);
    let canary = bench.store("lowest-cost", &shipped("lowest-cost"));
    bench
        .change("canary", &json!({"version": canary, "percent": 100}))
        .unwrap();
    bench.change("pin", &json!({"reason": "audit week"})).unwrap();

    bench.world = bench.world.restart();
    assert_eq!(
        routed(&bench.ask("s").record).version,
        canary,
        "the canary is back"
    );
    let pushed = bench
        .world
        .push(ACME, ("acme", "routing"), &shipped("random"), "");
    let refusals = [
        pushed.err(),
        bench.change("activate", &json!({"version": canary})).err(),
        bench.change("canary", &json!({"percent": 5})).err(),
        bench.change("promote", &json!({})).err(),
    ];
    for refused in refusals {
        let text = refused.expect("a pinned slot changed").to_string();
        assert!(
            text.contains("409") && text.contains("tenant acme (audit week)"),
            "{text}"
        );
    }
    bench.change("unpin", &json!({})).unwrap();
    bench.change("promote", &json!({})).unwrap();
    bench.change("disable", &json!({"reason": "too slow"})).unwrap();
    let record = bench.ask("s").record;
    assert_eq!(record.fallbacks[0].to, "the built-in router");
    assert!(
        record.fallbacks[0]
            .reason
            .contains("disabled by tenant acme: too slow"),
        "{record:?}"
    );
    bench.change("enable", &json!({})).unwrap();
    assert_eq!(routed(&bench.ask("s").record).outcome, "ok");
}
