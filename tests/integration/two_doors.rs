//! Policies come in by the admin API and by the watched folder, into one store that survives a restart.

use portolan_policy::QuestionKind;
use portolan_tests::world::{ACME, ADMIN, shipped};
use portolan_tests::{Ask, Link, Oracle, World, oracle_folder};
use serde_json::Value;

const FAST: Link = Link {
    delay_ms: 0,
    rate_mbps: 0,
};

fn binding(world: &World, question: &str) -> Value {
    let policies = world.policies(ACME, "acme");
    let slots = policies["policies"].as_array().unwrap().iter();
    slots
        .filter(|slot| slot["question"] == question)
        .map(|slot| slot["binding"].clone())
        .next()
        .unwrap_or(Value::Null)
}

#[test]
fn what_came_in_by_either_door_decides_and_survives_a_restart() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let case = Oracle::of("tiny-qwen3").prompts.remove(0);
    let version = world
        .push(ACME, ("acme", "cost"), &shipped("ttft"), r#"{"round_trips": 2}"#)
        .unwrap();
    let folder = world.policies_dir().join("acme");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("half.tmp"), shipped("threshold")).unwrap();
    std::fs::rename(folder.join("half.tmp"), folder.join("routing.wasm")).unwrap();
    world.wait("the watched folder's policy is active", || {
        // The store tells of a binding a moment before it decides.
        let record = world.ask(&Ask::tokens(&case.prompt_ids)).record;
        let routed = record
            .policies
            .iter()
            .find(|p| p.question == QuestionKind::Routing);
        routed.is_some_and(|p| p.version.len() == 64)
    });

    let decided_by = |world: &World| {
        let answer = world.ask(&Ask::tokens(&case.prompt_ids));
        assert_eq!(answer.tokens, case.greedy_ids);
        let calls = answer.record.policies.into_iter();
        calls
            .map(|p| (p.question.to_string(), p.version, p.outcome))
            .collect::<Vec<_>>()
    };
    let before = decided_by(&world);
    assert!(
        before
            .iter()
            .all(|(_, version, outcome)| version.len() == 64 && outcome == "ok"),
        "{before:?}"
    );
    assert!(
        before.iter().any(|(_, v, _)| *v == version["version"]),
        "{before:?}"
    );

    let bindings = [binding(&world, "cost"), binding(&world, "routing")];
    let world = world.restart();
    assert_eq!([binding(&world, "cost"), binding(&world, "routing")], bindings);
    assert_eq!(decided_by(&world), before);
    let audit = world
        .client(ADMIN)
        .get("/v1/portolan/audit")
        .unwrap()
        .body
        .to_string();
    assert!(audit.contains("policy.activate"), "{audit}");
}

#[test]
fn a_bad_file_is_reported_beside_itself_and_replaces_nothing() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    world
        .push(ACME, ("acme", "routing"), &shipped("round-robin"), "")
        .unwrap();
    let good = binding(&world, "routing");
    let folder = world.policies_dir().join("acme");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("routing.wasm"), b"\0asm not really").unwrap();
    let report = folder.join("routing.wasm.error");
    world.wait("the report is there", || report.exists());
    let text = std::fs::read_to_string(&report).unwrap();
    assert!(!text.trim().is_empty());
    assert_eq!(binding(&world, "routing"), good);
}
