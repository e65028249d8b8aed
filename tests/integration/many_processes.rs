//! A fleet of processes, one site each, over NATS: they serve each other's requests, find each other's prefixes, outlive
//! each other, and tell the bus nothing of what is asked.

use portolan_tests::processes::{FleetPlan, Processes};
use portolan_tests::world::{ACME, ADMIN, GLOBEX, shipped};
use portolan_tests::{Ask, Oracle, oracle_folder};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const MODEL: &str = "tiny-qwen3";

/// What `PROMPT` tokens leave in whole blocks: the last token is never prefilled.
const PROMPT: u32 = 1000;
const BLOCKS: u32 = 960;

fn prompt(seed: u32) -> Vec<u32> {
    (0..PROMPT).map(|i| (i * 7919 + seed) % 2000).collect()
}

fn fleet(sites: &[(&str, &str)]) -> Option<Processes> {
    Processes::start(&FleetPlan {
        model: &oracle_folder(MODEL),
        sites,
        more: "",
    })
}

const TWO: [(&str, &str); 2] = [("paris", "eu"), ("virginia", "us")];
const THREE: [(&str, &str); 3] = [("paris", "eu"), ("virginia", "us"), ("tokyo", "jp")];

/// Asks until the answer's prompt was computed at `site`: what was lost a moment ago may still be avoided.
fn is_served_by(fleet: &Processes, at: &str, site: &str, ask: &Ask) {
    let began = Instant::now();
    loop {
        let answer = fleet.try_ask(at, ACME, ask);
        let served = answer.ok().and_then(|answer| answer.record.route);
        if served.is_some_and(|route| route.prefill_site == site) {
            return;
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{site} does not serve {at}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn processes_serve_each_others_requests_and_find_each_others_prefixes() {
    let Some(fleet) = fleet(&THREE) else { return };
    let case = Oracle::of(MODEL).prompts.remove(0);
    let answer = fleet.ask("paris", ACME, &Ask::tokens(&case.prompt_ids).remote());
    assert_eq!(answer.tokens, case.greedy_ids);
    let route = answer.record.route.expect("it was served");
    assert_ne!(route.prefill_site, "paris");
    assert!(answer.record.kv.bytes_moved > 0, "KV crossed between processes");

    // What virginia computed for itself, tokyo fetches.
    let ask = Ask::tokens(&prompt(11)).local();
    let alone = fleet.ask("paris", GLOBEX, &ask);
    fleet.ask("virginia", ACME, &ask.clone().max(1));
    // Tokyo is told within a tenth of a second, block after block; what it is not told yet it would compute and keep.
    std::thread::sleep(Duration::from_secs(1));
    let began = Instant::now();
    let fetched = loop {
        let answer = fleet.ask("tokyo", ACME, &ask);
        if !answer.record.fetches.is_empty() || began.elapsed() > Duration::from_secs(5) {
            break answer;
        }
    };
    let [fetch] = fetched.record.fetches.as_slice() else {
        panic!("one fetch: {:?}", fetched.record);
    };
    assert_eq!((fetch.site.as_str(), fetch.tokens), ("virginia", BLOCKS));
    assert_eq!(fetched.tokens, alone.tokens, "the same as one site alone answers");

    // Each says how old what it knows is.
    let known = fleet.fleet("paris");
    for instance in known["instances"].as_array().unwrap() {
        let age = instance["load_age_ms"].as_u64().unwrap();
        assert!(age < 2000, "{instance}");
        assert_eq!(instance["site"] == "paris", age == 0, "{instance}");
    }
}

#[test]
fn a_process_that_dies_is_missed_and_comes_back_anew() {
    let Some(mut fleet) = fleet(&TWO) else { return };
    let remote = Ask::tokens(&prompt(3)).remote_preferred().max(4);
    is_served_by(&fleet, "paris", "virginia", &remote);
    let incarnation = |fleet: &Processes| fleet.fleet("paris")["sites"][1]["incarnation"].clone();
    let first: u64 = incarnation(&fleet).as_str().unwrap().parse().unwrap();

    let killed = Instant::now();
    fleet.kill("virginia");
    let answer = fleet.ask("paris", ACME, &remote);
    assert_eq!(answer.record.status, "ok", "requests go on");
    fleet.wait("its lease is over", |fleet| {
        fleet.states("paris")["virginia"] == "silent"
    });
    assert!(killed.elapsed() > Duration::from_secs(1), "not before");
    assert_eq!(fleet.ready("paris"), 1, "and its routes are gone");
    let answer = fleet.ask("paris", ACME, &remote);
    assert!(
        answer.record.fallbacks.is_empty(),
        "nobody tries it: {:?}",
        answer.record.fallbacks
    );

    fleet.start_site("virginia", None);
    fleet.wait("it is back", |fleet| fleet.states("paris")["virginia"] == "up");
    is_served_by(&fleet, "paris", "virginia", &remote);
    let again: u64 = incarnation(&fleet).as_str().unwrap().parse().unwrap();
    assert!(again > first, "{again} {first}");

    let stopped = Instant::now();
    fleet.stop("virginia");
    fleet.wait("it said that it left", |fleet| {
        fleet.states("paris")["virginia"] == "left"
    });
    println!("left after {:?}", stopped.elapsed());
}

#[test]
fn sites_go_on_without_their_bus_and_find_each_other_when_it_is_back() {
    let Some(mut fleet) = fleet(&TWO) else { return };
    let remote = Ask::tokens(&prompt(5)).remote_preferred().max(4);
    is_served_by(&fleet, "paris", "virginia", &remote);
    fleet.nats.kill();
    fleet.wait("paris knows nothing of virginia", |fleet| {
        fleet.states("paris")["virginia"] == "silent"
    });
    let answer = fleet.ask("paris", ACME, &remote);
    assert_eq!(
        answer.record.route.unwrap().prefill_site,
        "paris",
        "it decides alone"
    );
    fleet.nats.restart().unwrap();
    fleet.wait("they see each other", |fleet| {
        fleet.states("paris")["virginia"] == "up" && fleet.states("virginia")["paris"] == "up"
    });
    is_served_by(&fleet, "paris", "virginia", &remote);
    let metrics = fleet
        .client("paris", ADMIN)
        .get("/metrics")
        .unwrap()
        .body
        .to_string();
    assert!(metrics.contains("portolan_bus_connections_total 2"), "{metrics}");
}

#[test]
fn a_process_with_another_secret_is_neither_heard_nor_let_in() {
    let Some(mut fleet) = fleet(&TWO) else { return };
    fleet.kill("virginia");
    fleet.wait("its lease is over", |fleet| {
        fleet.states("paris")["virginia"] == "silent"
    });
    fleet.start_site("virginia", Some(&"77".repeat(32)));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(fleet.states("paris")["virginia"], "silent");
    assert_eq!(fleet.states("virginia")["paris"], "unheard");
    let refused = fleet.try_ask("paris", ACME, &Ask::tokens(&prompt(9)).remote().max(1));
    assert!(refused.is_err());
    let answer = fleet.ask("paris", ACME, &Ask::tokens(&prompt(9)).max(1));
    assert_eq!(answer.record.kv.bytes_moved, 0);
}

/// The version that a process has bound for acme's routing.
fn bound(fleet: &Processes, site: &str) -> Option<String> {
    let policies = fleet
        .client(site, ACME)
        .get("/v1/portolan/tenants/acme/policies")
        .unwrap()
        .body;
    let slots = policies["policies"].as_array().unwrap();
    let routing = slots.iter().find(|slot| slot["question"] == "routing")?;
    Some(routing["binding"]["sha256"].as_str()?.to_owned())
}

#[test]
fn a_policy_bound_at_one_process_answers_at_every_other() {
    let Some(mut fleet) = fleet(&TWO) else { return };
    let path = "/v1/portolan/tenants/acme/policies/routing";
    let push = |fleet: &Processes, site: &str, name: &str| {
        let component = shipped(name);
        let pushed = fleet
            .client(site, ACME)
            .put(path, &[("name", name)], &component)?;
        Ok::<_, portolan::client::ClientError>(pushed.body["version"].as_str().unwrap().to_owned())
    };
    let first = push(&fleet, "paris", "round-robin").unwrap();
    let pushed = Instant::now();
    fleet.wait("virginia has it", |fleet| {
        bound(fleet, "virginia").as_ref() == Some(&first)
    });
    println!("bound everywhere after {:?}", pushed.elapsed());
    // It is stored a moment before it is in place.
    fleet.wait("it answers at virginia", |fleet| {
        let answer = fleet.ask("virginia", ACME, &Ask::tokens(&prompt(21)).max(1));
        answer.record.policies.iter().any(|call| call.version == first)
    });

    // A process that is away catches up; the newest counts.
    fleet.kill("virginia");
    push(&fleet, "paris", "random").unwrap();
    let third = push(&fleet, "paris", "least-loaded").unwrap();
    fleet.start_site("virginia", None);
    fleet.wait("virginia has the newest", |fleet| {
        bound(fleet, "virginia").as_ref() == Some(&third)
    });

    // Without the bus nothing is acknowledged, and nothing changes.
    fleet.nats.kill();
    fleet.wait("paris is cut", |fleet| {
        fleet.states("paris")["virginia"] == "silent"
    });
    let refused = push(&fleet, "paris", "round-robin").unwrap_err().to_string();
    assert!(refused.contains("503"), "{refused}");
    assert_eq!(bound(&fleet, "paris"), Some(third));
    fleet.nats.restart().unwrap();
    fleet.wait("it is back", |fleet| fleet.states("paris")["virginia"] == "up");
    let fourth = push(&fleet, "virginia", "round-robin").unwrap();
    fleet.wait("paris has it", |fleet| {
        bound(fleet, "paris").as_ref() == Some(&fourth)
    });
}

/// What a site's door says of the configuration that each site runs.
fn sites_run(fleet: &Processes, at: &str) -> Value {
    fleet
        .client(at, ADMIN)
        .get("/v1/portolan/config/sites")
        .unwrap()
        .body
}

#[test]
fn what_sites_have_in_common_of_their_configuration_is_changed_at_one_and_in_force_at_all() {
    let plan = FleetPlan {
        model: &oracle_folder("tiny-qwen3"),
        sites: &TWO,
        more: "user_classes: [standard, vip]\ntimeouts: {factor: 5}",
    };
    // Each has a file of its own.
    let edit = |site: &str, text: &str, _: &str| format!("# of {site}\n{text}");
    let Some(mut fleet) = Processes::start_edited(&plan, edit) else {
        return;
    };
    let path = |fleet: &Processes, site: &str| fleet.folder.path().join(format!("{site}.yaml"));
    let edit = |fleet: &Processes, site: &str, from: &str, to: &str| {
        let text = fs::read_to_string(path(fleet, site)).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(path(fleet, site), text.replace(from, to)).unwrap();
    };
    let reload = |fleet: &Processes, site: &str| {
        let client = fleet.client(site, ADMIN);
        client.post("/v1/portolan/config/reload", &json!({"reason": "a test"}))
    };
    let lets_in = |fleet: &Processes, site: &str| fleet.client(site, "key-new").get("/v1/models").is_ok();
    let factor = |fleet: &Processes, site: &str| {
        let said = fleet.client(site, ADMIN).get("/v1/portolan/config").unwrap().body;
        said["timeouts"]["factor"].as_u64().unwrap()
    };

    let (acme, both) = (
        "tenants: [{name: acme,",
        "tenants: [{name: new, keys: [key-new]}, {name: acme,",
    );
    edit(&fleet, "paris", acme, both);
    edit(&fleet, "paris", "factor: 5", "factor: 6");
    assert_eq!(reload(&fleet, "paris").unwrap().body["outcome"], "applied");
    let told = Instant::now();
    fleet.wait("virginia lets it in", |fleet| lets_in(fleet, "virginia"));
    println!("in force everywhere after {:?}", told.elapsed());
    assert_eq!(factor(&fleet, "virginia"), 6);
    let text = fs::read_to_string(path(&fleet, "virginia")).unwrap();
    assert!(
        text.starts_with("# of virginia\n") && text.contains("key-new"),
        "{text}"
    );
    fleet.wait("each says what it runs", |fleet| {
        let said = sites_run(fleet, "paris");
        let sites = said["sites"].as_array().unwrap();
        sites.len() == 2 && sites.iter().all(|site| site["runs"]["fleet"] == said["fleet"])
    });
    let history = fleet.client("virginia", ADMIN).get("/v1/portolan/config/history");
    let latest = history.unwrap().body["data"][0].clone();
    assert!(
        latest["actor"].as_str().unwrap().ends_with(" at paris"),
        "{latest}"
    );

    // A site that was away catches up. Its file was edited meanwhile: the class that paris is to name is not in it.
    fleet.kill("virginia");
    edit(&fleet, "paris", both, acme);
    assert_eq!(reload(&fleet, "paris").unwrap().body["outcome"], "applied");
    edit(
        &fleet,
        "virginia",
        "user_classes: [standard, vip]",
        "user_classes: [standard]",
    );
    fleet.start_site("virginia", None);
    fleet.wait("virginia lets it in no more", |fleet| !lets_in(fleet, "virginia"));

    // Whole or not at all.
    edit(
        &fleet,
        "paris",
        "timeouts: {factor: 6}",
        "exact_kv_classes: [vip]\ntimeouts: {factor: 7}",
    );
    assert_eq!(reload(&fleet, "paris").unwrap().body["outcome"], "applied");
    fleet.wait("virginia says why not", |fleet| {
        let said = sites_run(fleet, "paris");
        let sites = said["sites"].as_array().unwrap();
        let virginia = sites.iter().find(|site| site["site"] == "virginia").unwrap();
        let why = virginia["runs"]["refused"][1].as_str().unwrap_or_default();
        why.contains("exact_kv_classes") && virginia["runs"]["fleet"] != said["fleet"]
    });
    assert_eq!((factor(&fleet, "paris"), factor(&fleet, "virginia")), (7, 6));
    // It does not know what paris changed: what it says is not put over it.
    edit(&fleet, "virginia", "factor: 6", "factor: 8");
    let refused = reload(&fleet, "virginia").unwrap_err().to_string();
    assert!(refused.contains("409"), "{refused}");
    edit(&fleet, "paris", "exact_kv_classes: [vip]\n", "");
    reload(&fleet, "paris").unwrap();
    fleet.wait("virginia takes it over", |fleet| factor(fleet, "virginia") == 7);
    let edited = path(&fleet, "virginia").with_extension("yaml.edited");
    assert!(
        fs::read_to_string(edited).unwrap().contains("factor: 8"),
        "what was being edited is not lost"
    );

    // Without the bus nothing is acknowledged, and nothing changes.
    fleet.nats.kill();
    fleet.wait("paris is cut", |fleet| {
        fleet.states("paris")["virginia"] == "silent"
    });
    edit(&fleet, "paris", "factor: 7", "factor: 9");
    let refused = reload(&fleet, "paris").unwrap_err().to_string();
    assert!(refused.contains("503"), "{refused}");
    assert_eq!(factor(&fleet, "paris"), 7);
    fleet.nats.restart().unwrap();
    fleet.wait("it is back", |fleet| fleet.states("paris")["virginia"] == "up");
    reload(&fleet, "paris").unwrap();
    fleet.wait("virginia has it", |fleet| factor(fleet, "virginia") == 9);
}

/// Everything that a server carries, as bytes.
struct Tap {
    stop: mpsc::Sender<()>,
    heard: std::thread::JoinHandle<Vec<u8>>,
}

impl Tap {
    /// Reads all subjects, JetStream's among them, in NATS' own protocol.
    fn on(port: u16) -> Self {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        socket
            .write_all(b"CONNECT {\"verbose\":false}\r\nSUB > 1\r\nPING\r\n")
            .unwrap();
        let mut heard = Vec::new();
        let mut read = move |heard: &mut Vec<u8>| {
            let mut buffer = vec![0; 1 << 16];
            if let Ok(length) = socket.read(&mut buffer) {
                let from = heard.len();
                heard.extend_from_slice(&buffer[..length]);
                if heard[from..].windows(6).any(|part| part == b"PING\r\n") {
                    socket.write_all(b"PONG\r\n").unwrap();
                }
            }
        };
        // Subscribed once the server has answered.
        while !heard.windows(4).any(|part| part == b"PONG") {
            read(&mut heard);
        }
        let (stop, stopped) = mpsc::channel();
        let heard = std::thread::spawn(move || {
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                read(&mut heard);
            }
            heard
        });
        Self { stop, heard }
    }

    fn end(self) -> Vec<u8> {
        self.stop.send(()).unwrap();
        self.heard.join().unwrap()
    }
}

/// The ways in which a few tokens in a row may stand in bytes.
fn forms(tokens: &[u32]) -> Vec<Vec<u8>> {
    let fixed = |form: fn(&u32) -> Vec<u8>| tokens.iter().flat_map(form).collect::<Vec<u8>>();
    let varint = |token: &u32| {
        let mut rest = *token;
        let mut bytes = Vec::new();
        while rest >= 0x80 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
        bytes
    };
    let text: Vec<String> = tokens.iter().map(u32::to_string).collect();
    vec![
        fixed(|token| token.to_le_bytes().to_vec()),
        fixed(|token| token.to_be_bytes().to_vec()),
        fixed(|token| (*token as u16).to_le_bytes().to_vec()),
        fixed(|token| (*token as u16).to_be_bytes().to_vec()),
        fixed(|token| u64::from(*token).to_le_bytes().to_vec()),
        tokens.iter().flat_map(varint).collect(),
        tokens
            .iter()
            .map(|token| token * 2)
            .flat_map(|zigzag| varint(&zigzag))
            .collect(),
        text.join(",").into_bytes(),
        text.join(", ").into_bytes(),
        text.join(" ").into_bytes(),
    ]
}

/// Where in `traffic` three tokens of `canary` stand in a row, in whatever form.
fn finds(traffic: &[u8], canary: &[u32]) -> Option<Vec<u8>> {
    let runs = canary.windows(3).flat_map(forms);
    runs.into_iter()
        .find(|form| traffic.windows(form.len()).any(|part| part == form.as_slice()))
}

#[test]
fn nothing_on_the_bus_holds_what_was_asked() {
    let Some(fleet) = fleet(&THREE) else { return };
    let tap = Tap::on(fleet.nats.port());
    // Tokens that stand nowhere by chance: all beyond one byte, in no order.
    let canary: Vec<u32> = (0..PROMPT).map(|i| 300 + (i * 1327 + 17) % 1699).collect();
    const WORDS: &str = "zephyrine quagmire halberdier";
    for (site, ask) in [
        ("paris", Ask::tokens(&canary).local()),
        ("virginia", Ask::tokens(&canary).remote()),
        ("tokyo", Ask::tokens(&canary).local()),
    ] {
        let ask = ask.max(4);
        let answer = fleet.try_ask(site, ACME, &ask);
        assert!(answer.is_ok() || site == "virginia", "{site}: {answer:?}");
        let body =
            serde_json::json!({"model": portolan_tests::world::MODEL, "prompt": WORDS, "max_tokens": 4});
        fleet.client(site, ACME).post("/v1/completions", &body).unwrap();
    }
    // Long enough that every site told every other what it holds.
    std::thread::sleep(Duration::from_secs(2));
    let traffic = tap.end();
    let contains = |part: &[u8]| traffic.windows(part.len()).any(|found| found == part);
    for told in [
        "portolan.facts.eu.paris ",
        "portolan.prefixes.eu.paris.virginia ",
        "portolan.prefixes.jp.tokyo.paris ",
    ] {
        assert!(contains(told.as_bytes()), "{told} was heard");
    }
    assert!(traffic.len() > 10_000, "{} bytes", traffic.len());
    assert_eq!(finds(&traffic, &canary), None, "tokens on the bus");
    for words in WORDS.split(' ') {
        assert!(!contains(words.as_bytes()), "{words} on the bus");
    }
    let secret = [0x5a; 32];
    assert!(
        !contains(&secret) && !contains("5a".repeat(32).as_bytes()),
        "the fleet's secret on the bus"
    );

    // The search finds what it looks for, in each form.
    for form in forms(&canary[500..503]) {
        let mut leaking = traffic.clone();
        leaking.extend_from_slice(&form);
        assert_eq!(finds(&leaking, &canary[499..504]), Some(form));
    }
}
