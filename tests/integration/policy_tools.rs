//! `policy call`, `test`, `replay` and `bench` on the shipped components, as the command line runs them.

use clap::Parser;
use portolan::command::{self, BenchArgs, CallArgs, Cli, Command, PolicyCommand, TestArgs};
use portolan::lab::bench::{Effort, measure};
use portolan::lab::comparison::{Comparison, Tally};
use portolan::lab::component::Workshop;
use portolan::lab::fleet::Fleet;
use portolan::lab::rehearsal::{self, Cast};
use portolan::lab::replay::{Replayer, recorded};
use portolan::lab::traffic;
use portolan_base::{Clock, SiteName};
use portolan_decide::PathRecord;
use portolan_policy::builtin::{self, Candidates, LowestCost, Routing};
use portolan_policy::{
    CostView, Matrix, NameTables, Policy, QuestionKind, RequestView, RouteView, RoutingDecision,
};
use portolan_sim::VirtualClock;
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

/// Runs `portolan policy WORD …` as it is typed.
fn typed(word: &str, rest: &[String]) -> Result<(), String> {
    let words = ["portolan", "policy", word].map(str::to_owned).into_iter();
    let cli = Cli::try_parse_from(words.chain(rest.iter().cloned())).map_err(|e| e.to_string())?;
    command::run(cli).map_err(|failure| format!("{failure:?}"))
}

fn conversations() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/sim/tests/data/conversation_trace_1000.jsonl")
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
        tally.add_record(record, &recorded(record), replayer.replay(record));
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
        let mut words = vec![shipped(name).display().to_string(), "--records".to_owned()];
        words.extend(records.iter().map(|path| path.display().to_string()));
        if name == "ttft" {
            words.extend(["--with".to_owned(), shipped("least-loaded").display().to_string()]);
        }
        typed("replay", &words)
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
fn records_are_chosen_by_tenant_and_age_and_what_is_left_out_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(3);
    let lines: Vec<_> = records
        .iter()
        .map(|r| serde_json::to_string(r).unwrap())
        .collect();
    let path = write(
        &dir,
        "records.jsonl",
        &format!("{}\n{}", lines.join("\n"), &lines[0][..99]),
    );
    let replay = |more: &str| {
        let words = format!(
            "{} --records {} {more}",
            shipped("lowest-cost").display(),
            path.display()
        );
        typed(
            "replay",
            &words.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
        )
    };
    assert_eq!(
        replay("--tenant acme"),
        Ok(()),
        "a line that is cut off is left out"
    );
    let said = replay("--tenant globex").unwrap_err();
    assert!(said.contains("3 are not of tenant globex"), "{said}");
    let said = replay("--since 1h").unwrap_err();
    assert!(said.contains("3 are older than --since"), "{said}");
    let said = replay(&format!("--with {}", shipped("random").display())).unwrap_err();
    assert!(said.contains("routes itself"), "{said}");
    std::fs::write(&path, "").unwrap();
    assert!(replay("").unwrap_err().contains("the files are empty"));
    std::fs::remove_file(&path).unwrap();
    let said = replay("").unwrap_err();
    assert!(said.contains("records.jsonl: No such file"), "{said}");
}

/// A component in the simulator decides as the built-in policy of its name does, and twice the same.
#[test]
fn a_trace_is_played_with_a_component_on_the_virtual_clock() {
    let fleet = Fleet::read(None).unwrap();
    let trace = rehearsal::read_trace(&conversations()).unwrap();
    let trace = &trace[..200];
    let workshop = Workshop::new().unwrap();
    let play = |load: &dyn Fn(&Workshop) -> Arc<dyn Policy>| {
        let clock = Arc::new(VirtualClock::default());
        let workshop = workshop.on(Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
        let cast = Cast {
            policy: Some(load(&workshop)),
            router: None,
        };
        rehearsal::play(&fleet, trace, &cast, &clock).unwrap()
    };
    for (question, name) in [
        (QuestionKind::Routing, "prefix-affinity"),
        (QuestionKind::Cost, "price-aware"),
    ] {
        let file = workshop.open(&shipped(name), Some(question)).unwrap();
        let component = || play(&|workshop: &Workshop| workshop.load(&file, "", &fleet.names).unwrap());
        let native = play(&|_: &Workshop| builtin::policy(question, name, "", &fleet.names).unwrap());
        let played = component();
        assert_eq!(played, component(), "{name}: the same seed");
        assert_eq!(played.fates, native.fates, "{name}: the built-in policy");
        assert!(
            played
                .fates
                .iter()
                .all(|fate| fate.outcome.is_ok() && fate.faults.is_empty())
        );
        let found = rehearsal::compare(&fleet, trace, native, played).comparison;
        assert_eq!((found.decided, found.changed), (200, 0));
    }
}

#[test]
fn the_command_plays_a_trace_on_a_fleet() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(conversations()).unwrap();
    let cut: Vec<_> = text.lines().take(60).collect();
    let trace = write(&dir, "trace.jsonl", &cut.join("\n"));
    let fleet = "
model: {kv_bytes_per_token: 17280}
sites:
  - name: home
    instances:
      - {name: a, count: 2, role: both, prefill: {us_per_token: 100}, decode_step_ms: 20, decode_slots: 8, cache_tokens: 100000}
";
    let fleet = write(&dir, "fleet.yaml", fleet);
    let replay = |component: &str, more: &[&str]| {
        let mut words = vec![shipped(component).display().to_string(), "--trace".to_owned()];
        words.push(trace.display().to_string());
        words.extend(more.iter().map(|word| (*word).to_owned()));
        typed("replay", &words)
    };
    let fleet = fleet.to_str().unwrap();
    assert_eq!(replay("round-robin", &["--fleet", fleet]), Ok(()));
    assert_eq!(replay("ttft", &["--against", "price-aware"]), Ok(()));
    let itself = shipped("price-aware");
    let config = ["--against-config", "{\"second_is_worth_micros\": 1}"];
    let against = ["--against", itself.to_str().unwrap(), config[0], config[1]];
    assert_eq!(replay("price-aware", &against), Ok(()));
    let said = replay("ttft", &["--against", "lowest-cost"]).unwrap_err();
    assert!(
        said.contains("built-in cost policy; those are ttft, latency-aware"),
        "{said}"
    );
    let said = replay("version", &[]).unwrap_err();
    assert!(said.contains("invalidation"), "{said}");
    let said = replay("ttft", &["--fleet", trace.to_str().unwrap()]).unwrap_err();
    assert!(said.contains("trace.jsonl: fleet:"), "{said}");
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
    assert!(
        found.warm_median_us < found.median_us && found.compile_us > 0.0,
        "{found:?}"
    );
    let page = 64 << 10;
    for memory in [found.memory_bytes, found.warm_memory_bytes] {
        assert!(
            memory >= page && memory % page == 0 && memory <= 2 << 20,
            "{found:?}"
        );
    }
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
        "warm_median_us",
        "memory_bytes",
        "compile_us",
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
