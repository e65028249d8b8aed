//! A host that is told to stop finishes what it began; one that is full says so.

use crate::guests::Guest;
use portolan::client::{Client, ClientError};
use portolan_tests::processes::binary;
use portolan_tests::world::{ACME, GLOBEX};
use portolan_tests::{Ask, Link, Oracle, World, oracle_folder};
use serde_json::Value;
use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const FAST: Link = Link {
    delay_ms: 0,
    rate_mbps: 0,
};

#[test]
fn answers_under_way_finish_when_the_host_is_told_to_stop() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let case = Oracle::of("tiny-qwen3").prompts.remove(0);
    let (client, body) = (
        world.client(ACME),
        Ask::tokens(&case.prompt_ids).max(600).body(true),
    );
    let (began, begun) = channel();
    let asking = std::thread::spawn(move || {
        let (mut tokens, mut done) = (0, false);
        let streamed = client.stream("/v1/completions", &body, &mut |data| {
            began.send(()).ok();
            done |= data == "[DONE]";
            let event: Value = serde_json::from_str(data).unwrap_or_default();
            tokens += event["choices"][0]["token_ids"].as_array().map_or(0, Vec::len);
            true
        });
        streamed.map(|_| (tokens, done))
    });
    begun.recv().unwrap();
    let World { host, runtime, .. } = world;
    runtime.block_on(host.stop());
    assert_eq!(asking.join().unwrap().unwrap(), (600, true), "the stream was cut");
}

#[test]
fn a_tenant_that_fills_its_share_is_told_to_wait_and_others_are_served() {
    let world = World::start(&oracle_folder("tiny-qwen3"), FAST);
    let case = Oracle::of("tiny-qwen3").prompts.remove(0);
    let site = world.host.site("paris").unwrap().gateway().unwrap();
    let acme = portolan_base::TenantName::new("acme").unwrap();
    let mut taken = Vec::new();
    while let Some(pass) = site.tenants.enter(&acme) {
        taken.push(pass);
    }
    let refused = world
        .try_ask(&Ask::tokens(&case.prompt_ids))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("429") && refused.contains("too many requests"),
        "{refused}"
    );
    assert_eq!(
        world.ask(&Ask::tokens(&case.prompt_ids).by(GLOBEX)).tokens,
        case.greedy_ids
    );
    drop(taken);
    assert_eq!(world.ask(&Ask::tokens(&case.prompt_ids)).tokens, case.greedy_ids);
}

/// A router that answers well and takes about a second to compile: so many values live at once in each of these functions.
fn slow_to_compile() -> Vec<u8> {
    const VALUES: u32 = 40_000;
    let mut functions = String::new();
    for function in 0..8 {
        let sets = (0..VALUES).fold(String::new(), |mut sets, n| {
            let from = (n * 7919 + function) % VALUES;
            let _ = write!(sets, "(local.set {n} (i32.load (local.get {from})))");
            sets
        });
        let locals = "i32 ".repeat(VALUES as usize);
        let _ = write!(functions, "(func (local {locals}) {sets})");
    }
    Guest::echo().with_extra(functions.leak()).component()
}

/// A process that is ended with the test.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Serving {
    /// Processes that it started and that run.
    fn children(&self) -> Vec<String> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.0.id()));
        let of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children")).ok();
        let told: Vec<String> = threads.into_iter().flatten().flatten().filter_map(of).collect();
        told.join(" ").split_whitespace().map(str::to_owned).collect()
    }
}

#[test]
fn a_host_that_compiles_ends_in_time_when_it_is_told_to_stop() {
    /// Nine seconds are given to what is under way.
    const IN_TIME: Duration = Duration::from_secs(20);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("portolan.yaml");
    let text = "data_dir: data\noperator_keys: [op]\nmodels: []\n\
                sites: [{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}]\n";
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(binary());
    command.args(["--json", "serve", "--config"]).arg(&file);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut host = Serving(child);
    let mut line = String::new();
    let mut out = BufReader::new(host.0.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let said: Value = serde_json::from_str(&line).unwrap();
    let client = Client::new(said["listen"].as_str().unwrap(), "op");
    let sending = std::thread::spawn(move || {
        let path = "/v1/portolan/tenants/_platform/policies/routing";
        client.put(path, &[("name", "slow")], &slow_to_compile())
    });
    let began = Instant::now();
    let compilers = loop {
        let compilers = host.children();
        if !compilers.is_empty() {
            break compilers;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is compiled");
        std::thread::sleep(Duration::from_millis(20));
    };
    // A compiler that never comes to its end.
    let signal = |args: &[&str]| Command::new("kill").args(args).status().unwrap().success();
    for compiler in &compilers {
        assert!(signal(&["-STOP", compiler]), "it was through already");
    }
    let told = Instant::now();
    let process = host.0.id().to_string();
    assert!(signal(&[&process]));
    let ended = loop {
        if let Some(ended) = host.0.try_wait().unwrap() {
            break ended;
        }
        assert!(told.elapsed() < IN_TIME, "it still runs after {IN_TIME:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    println!("ended after {:.1?}", told.elapsed());
    assert!(ended.success(), "{ended}");
    let cut = sending.join().unwrap();
    assert!(
        matches!(cut, Err(ClientError::Refused { status: 503, .. })),
        "whoever waits for a compiler is told: {cut:?}"
    );
    for compiler in &compilers {
        signal(&["-CONT", compiler]);
    }
    let runs = |compiler: &String| {
        let line = std::fs::read_to_string(format!("/proc/{compiler}/stat")).unwrap_or_default();
        !line.is_empty() && !line.contains(") Z ")
    };
    let until = Instant::now() + Duration::from_secs(10);
    while compilers.iter().any(runs) {
        assert!(Instant::now() < until, "a compiler outlived its host");
        std::thread::sleep(Duration::from_millis(20));
    }
}
