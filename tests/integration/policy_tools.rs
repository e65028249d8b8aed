//! `policy call`, `test`, `replay` and `bench` on the shipped components, as the command line runs them.

use portolan::command::{
    self, BenchArgs, CallArgs, Cli, Command, PolicyCommand, ReplayArgs, ServerArgs, TestArgs,
};
use portolan::lab::bench::{Effort, measure};
use portolan::lab::comparison::{Comparison, Tally};
use portolan::lab::component::Workshop;
use portolan::lab::replay::{Replayer, recorded};
use portolan::lab::traffic;
use portolan_base::SiteName;
use portolan_decide::PathRecord;
use portolan_policy::builtin::{self, Candidates, LowestCost, Routing};
use portolan_policy::{
    CostView, Matrix, NameTables, Policy, QuestionKind, RequestView, RouteView, RoutingDecision,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn shipped(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/dist");
    path.join(format!("{name}.wasm"))
}

/// Runs a command as `main` does; the words of its failure.
fn portolan(command: PolicyCommand) -> Result<(), String> {
    let cli = Cli {
        json: false,
        command: Command::Policy(command),
    };
    command::run(cli).map_err(|failure| format!("{failure:?}"))
}

fn write(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn call(component: &str, input: PathBuf) -> Result<(), String> {
    portolan(PolicyCommand::Call(CallArgs {
        file: shipped(component),
        input,
        question: None,
        config: None,
        names: None,
    }))
}

/// Requests as they are recorded: priced by `ttft`, routed by `lowest-cost`.
fn records(count: usize) -> Vec<PathRecord> {
    traffic::requests(7, count, 12).iter().map(record).collect()
}

fn record(situation: &portolan::lab::situation::Situation) -> PathRecord {
    let (routes, costs) = (situation.route_matrix(), Matrix::new(6, &situation.costs));
    let request = RequestView(&situation.request);
    let RoutingDecision::Scores(scores) = LowestCost.decide(request, Candidates::new(routes, costs)) else {
        panic!("the built-in router scores");
    };
    let order = portolan_decide::order::order_by_score(&scores, request.seed());
    let rows = routes.rows().zip(costs.rows()).enumerate();
    let candidates: Vec<Value> = rows
        .map(|(i, (route, cost))| {
            let facts = RouteView(route).to_row();
            json!({
                "prefill_site": format!("site-{}", facts.prefill_site), "prefill_instance": format!("p{i}"),
                "decode_site": format!("site-{}", facts.decode_site), "decode_instance": "d",
                "facts": facts, "cost": CostView(cost).to_row(), "score": scores[i],
                "rank": order.iter().position(|&at| at == i),
            })
        })
        .collect();
    serde_json::from_value(json!({
        "request_id": situation.request_id, "tenant": "acme", "model": "model", "accepted_ms": 1,
        "prompt_tokens": request.prompt_tokens(), "completion_tokens": 1, "route": null,
        "request": request.to_row(), "candidates": candidates, "policies": [],
        "placements": situation.names.sites.iter().map(|s| json!([s.name, "resident"])).collect::<Vec<_>>(),
        "stages": [], "kv": {"bytes_moved": 0, "cached_tokens": 0, "computed_tokens": 0, "chunks_resent": 0},
        "fallbacks": [], "status": "ok"
    }))
    .unwrap()
}

#[test]
fn a_component_is_called_with_a_view_or_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let view = json!({
        "sites": ["paris", "virginia"],
        "request": {"prompt_tokens": 100, "origin_site": "paris"},
        "routes": [{"prefill_site": "paris"}, {"prefill_site": "virginia", "prefill_us": 9}]
    });
    let view = write(&dir, "view.json", &view.to_string());
    for component in ["lowest-cost", "ttft", "jurisdiction", "version"] {
        assert_eq!(call(component, view.clone()), Ok(()), "{component}");
    }
    let recorded = serde_json::to_string(&records(1)[0]).unwrap();
    assert_eq!(call("lowest-cost", write(&dir, "record.json", &recorded)), Ok(()));

    let bad = write(&dir, "bad.json", "{\"routes\": [\n{\"prefil_site\": 1}]}");
    let said = call("lowest-cost", bad).unwrap_err();
    for part in ["bad.json", "prefil_site", "line 2", "price_micros"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = call("lowest-cost", dir.path().join("none.json")).unwrap_err();
    assert!(said.contains("none.json"), "{said}");
}

#[test]
fn a_table_of_cases_passes_or_says_what_differs() {
    let dir = tempfile::tempdir().unwrap();
    let component = dir.path().join("threshold.wasm");
    std::fs::copy(shipped("threshold"), &component).unwrap();
    let test = || {
        portolan(PolicyCommand::Test(TestArgs {
            file: component.clone(),
            cases: None,
            question: None,
        }))
    };
    let said = test().unwrap_err();
    assert!(said.contains("threshold.cases.yaml"), "{said}");
    let table = "
config: '{\"local_below_tokens\": 512, \"remote_above_tokens\": 4096}'
names: {sites: [paris, virginia]}
cases:
  - name: short prompts stay
    request: {prompt_tokens: 100}
    routes: &both
      - {prefill_site: paris, decode_site: paris, prefill_us: 50000}
      - {prefill_site: virginia, decode_site: paris, prefill_us: 10, transfer_kib: 10}
    expect: {first: {prefill_site: paris}}
  - name: long ones go
    request: {prompt_tokens: 5000}
    routes: *both
    expect: {order: [{prefill_site: virginia}, {prefill_site: paris}]}
";
    let at = write(&dir, "threshold.cases.yaml", table);
    assert_eq!(test(), Ok(()));
    std::fs::write(
        &at,
        table.replace("first: {prefill_site: paris}", "first: {prefill_site: virginia}"),
    )
    .unwrap();
    assert!(test().unwrap_err().contains("1 of 2 cases failed"));
    std::fs::write(
        &at,
        table.replace("first: {prefill_site: paris}", "first: {prefill_site: tokyo}"),
    )
    .unwrap();
    let said = test().unwrap_err();
    assert!(
        said.contains("short prompts stay: expect.first.prefill_site"),
        "{said}"
    );
}

fn replayed(policy: Arc<dyn Policy>, records: &[PathRecord], names: &NameTables) -> Comparison {
    let workshop = Workshop::new().unwrap();
    let replayer = Replayer {
        policy,
        router: None,
        names,
        clock: workshop.clock(),
    };
    let mut tally = Tally::default();
    for record in records {
        tally.add(record, &recorded(record), &replayer.replay(record));
    }
    tally.finish()
}

#[test]
fn a_replay_of_the_recorded_policies_changes_nothing_and_one_of_others_agrees_with_the_built_in() {
    let (records, names) = (records(100), traffic::names());
    assert!(names.sites.iter().all(|site| SiteName::new(&site.name).is_ok()));
    let workshop = Workshop::new().unwrap();
    for (question, name) in [
        (QuestionKind::Routing, "lowest-cost"),
        (QuestionKind::Cost, "ttft"),
        (QuestionKind::Routing, "prefix-affinity"),
        (QuestionKind::Cost, "price-aware"),
        (QuestionKind::Residency, "jurisdiction"),
    ] {
        let file = workshop.open(&shipped(name), Some(question)).unwrap();
        let component = workshop.load(&file, "", &names).unwrap();
        let found = replayed(component, &records, &names);
        let native = builtin::policy(question, name, "", &names).unwrap();
        assert_eq!(found, replayed(native, &records, &names), "{name}");
        assert_eq!((found.decided, found.faults), (100, 0), "{name}");
        let same = ["lowest-cost", "ttft"].contains(&name);
        assert_eq!(found.changed == 0, same, "{name}: {found:?}");
        assert_eq!(found.ttft_us.recorded == found.ttft_us.replayed, same, "{name}");
    }
}

#[test]
fn the_command_replays_files_and_says_what_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<_> = records(5)
        .iter()
        .map(|r| serde_json::to_string(r).unwrap())
        .collect();
    let paths = vec![
        write(&dir, "records.jsonl", &lines.join("\n")),
        write(
            &dir,
            "list.json",
            &json!({"object": "list", "data": records(3)}).to_string(),
        ),
    ];
    let replay = |name: &str, records: &[PathBuf]| {
        portolan(PolicyCommand::Replay(ReplayArgs {
            file: shipped(name),
            records: records.to_vec(),
            tenant: None,
            since: None,
            question: None,
            config: String::new(),
            with: (name == "ttft").then(|| shipped("least-loaded")),
            names: None,
            server: ServerArgs {
                server: String::new(),
                key: String::new(),
            },
        }))
    };
    assert_eq!(replay("prefix-affinity", &paths), Ok(()));
    assert_eq!(replay("ttft", &[dir.path().to_owned()]), Ok(()));
    let said = replay("jurisdiction", &paths).unwrap_err();
    assert!(said.contains("--names"), "{said}");
    let said = replay("version", &paths).unwrap_err();
    assert!(said.contains("invalidation"), "{said}");
    let said = replay("ttft", &[write(&dir, "torn.jsonl", &lines[0][..100])]).unwrap_err();
    assert!(said.contains("torn.jsonl"), "{said}");
}

#[test]
fn the_bench_measures_components_beside_the_built_in_policies() {
    let workshop = Workshop::new().unwrap();
    let files = ["jurisdiction", "jurisdiction", "ttft", "lowest-cost"]
        .map(|name| workshop.open(&shipped(name), None).unwrap());
    let effort = Effort {
        routes: 16,
        decisions: 50,
    };
    let found = measure(&workshop, &files, "", effort).unwrap();
    println!("{found:?}");
    assert_eq!((found.calls, found.routes, found.decisions), (4, 16, 50));
    assert!(
        found.median_us > found.native_median_us && found.native_median_us > 0.0,
        "{found:?}"
    );
    assert!(
        found.p99_us >= found.median_us && found.per_second > 0.0,
        "{found:?}"
    );
    let again = measure(&workshop, &files, "", effort).unwrap();
    assert_eq!(
        found.fuel_median, again.fuel_median,
        "fuel does not depend on the machine"
    );
    let names: Vec<_> = serde_json::to_value(found)
        .unwrap()
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    for key in [
        "median_us",
        "p99_us",
        "per_second",
        "native_median_us",
        "fuel_median",
        "instance_us",
    ] {
        assert!(names.iter().any(|name| name == key), "{key}: {names:?}");
    }
    let too_many = portolan(PolicyCommand::Bench(BenchArgs {
        file: None,
        routes: 65,
        decisions: 1,
        config: String::new(),
        plugins: shipped("x").parent().unwrap().to_owned(),
    }));
    assert!(too_many.unwrap_err().contains("at most 64"));
}
