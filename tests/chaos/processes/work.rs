//! What goes on while things break: clients ask, an operator invalidates, a tenant binds policies.

use super::fleet::{Doors, Fleet, SITES, code_of, key, stamp};
use crate::chaos::dice::Dice;
use crate::chaos::history::{Ask, Bound, Ordered, Outcome, Stamp};
use parking_lot::Mutex;
use portolan::client::{Client, ClientError};
use portolan_base::Random;
use portolan_decide::PathRecord;
use portolan_tests::world::{ACME, ADMIN, MODEL, shipped};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const FAMILIES: u32 = 6;
const DOCUMENTS: u32 = 3;
const CLIENTS: usize = 3;
/// Lengths of the prompts of a family: they begin alike.
const LENGTHS: [u32; 2] = [200, 330];
const TOKENS: u32 = 6;
/// Policies that a tenant binds in turn.
const POLICIES: [&str; 3] = ["round-robin", "random", "least-loaded"];
/// How long a record may take to settle once the client has its answer.
const SETTLES: Duration = Duration::from_secs(10);

/// What clients saw.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) asks: Vec<Ask>,
    pub(crate) orders: Vec<Ordered>,
    pub(crate) bound: Vec<Bound>,
}

struct Shared {
    doors: Doors,
    began: Instant,
    is_over: AtomicBool,
    seen: Mutex<Seen>,
    /// The version of each document that clients name.
    versions: Vec<AtomicU64>,
    asked: AtomicU64,
    /// What a site without faults answers, by family and length.
    truth: BTreeMap<(u32, u32), Vec<u32>>,
}

/// Threads that work.
pub(crate) struct Work {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

fn prompt(family: u32, length: u32) -> Vec<u32> {
    (0..length).map(|at| (at * 7919 + family * 613) % 2000).collect()
}

fn body(family: u32, length: u32, version: u64, mode: &str) -> Value {
    let name = format!("document-{}", family % DOCUMENTS);
    let dependency = json!({"kind": "document", "name": name, "version": version.to_string()});
    json!({
        "model": MODEL, "prompt": prompt(family, length), "max_tokens": TOKENS, "temperature": 0,
        "ignore_eos": true, "return_token_ids": true, "prefill_policy": mode,
        "portolan": {"dependencies": [dependency]},
    })
}

fn tokens(body: &Value) -> Vec<u32> {
    serde_json::from_value(body["choices"][0]["token_ids"].clone()).unwrap_or_default()
}

impl Work {
    pub(crate) fn begin(fleet: &Fleet, dice: &Dice) -> Self {
        let doors = Arc::clone(&fleet.doors);
        let paris = doors.lock()["paris"].server().to_owned();
        let alone = Client::new(&paris, ACME);
        let pairs = (0..FAMILIES).flat_map(|family| LENGTHS.map(|length| (family, length)));
        let truth = pairs.map(|(family, length)| {
            let answer = alone
                .post("/v1/completions", &body(family, length, 0, "local_only"))
                .unwrap();
            ((family, length), tokens(&answer.body))
        });
        let shared = Arc::new(Shared {
            truth: truth.collect(),
            began: fleet.began(),
            is_over: AtomicBool::new(false),
            seen: Mutex::default(),
            versions: (0..DOCUMENTS).map(|_| AtomicU64::new(1)).collect(),
            asked: AtomicU64::new(0),
            doors,
        });
        let mut threads = Vec::new();
        let mut go = |work: fn(&Shared, &Dice)| {
            let (shared, dice) = (Arc::clone(&shared), Dice::new(dice.next_u64()));
            threads.push(thread::spawn(move || {
                while !shared.is_over.load(Relaxed) {
                    work(&shared, &dice);
                }
            }));
        };
        for _ in 0..CLIENTS {
            go(Shared::ask);
        }
        go(Shared::order);
        go(Shared::bind);
        Self { shared, threads }
    }

    /// Ends it; returns when the last answer has come.
    pub(crate) fn stop(&mut self) {
        self.shared.is_over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }

    /// Asks for everything once more at every site: an order that was forgotten anywhere would show.
    pub(crate) fn probe(&self) {
        for (site, _) in SITES {
            for family in 0..FAMILIES {
                for tenant in ["acme", "globex"] {
                    let server = self.shared.doors.lock()[site].server().to_owned();
                    let client = Client::new(&server, key(tenant));
                    self.shared
                        .ask_at((site, &client), tenant, (family, LENGTHS[1]), "auto");
                }
            }
        }
    }

    pub(crate) fn seen(self) -> Seen {
        std::mem::take(&mut *self.shared.seen.lock())
    }
}

impl Shared {
    fn now(&self) -> Stamp {
        stamp(self.began)
    }

    /// A site that runs, and how it is reached with a key.
    fn door(&self, dice: &Dice, key: &str) -> Option<(String, Client)> {
        let site = SITES[dice.pick(SITES.len())].0;
        let server = self.doors.lock().get(site)?.server().to_owned();
        Some((site.to_owned(), Client::new(&server, key)))
    }

    fn ask(&self, dice: &Dice) {
        let tenant = ["acme", "acme", "globex"][dice.pick(3)];
        let Some((site, client)) = self.door(dice, key(tenant)) else {
            return;
        };
        let family = dice.roll(u64::from(FAMILIES)) as u32;
        let modes = ["auto", "auto", "local_only", "remote_preferred"];
        self.ask_at(
            (&site, &client),
            tenant,
            (family, LENGTHS[dice.pick(2)]),
            modes[dice.pick(4)],
        );
        thread::sleep(dice.millis(0, 60));
    }

    fn ask_at(
        &self,
        (site, client): (&str, &Client),
        tenant: &str,
        (family, length): (u32, u32),
        mode: &str,
    ) {
        let version = self.versions[(family % DOCUMENTS) as usize].load(Relaxed);
        let request = format!("ask-{}", self.asked.fetch_add(1, Relaxed));
        let mut body = body(family, length, version, mode);
        body["request_id"] = json!(request);
        let sent = self.now();
        let answer = client.post("/v1/completions", &body);
        let ended = self.now();
        let outcome = match &answer {
            Ok(reply) => Outcome::Answered(tokens(&reply.body)),
            Err(ClientError::Refused { status, body, .. }) => Outcome::Refused(*status, code_of(body)),
            Err(_) => Outcome::Gone,
        };
        let record = settled(client, &request);
        let site_died = !matches!(&record, Ok(Some(_)))
            && self
                .doors
                .lock()
                .get(site)
                .is_none_or(|d| d.server() != client.server());
        self.seen.lock().asks.push(Ask {
            expected: self.truth[&(family, length)].clone(),
            tenant: tenant.to_owned(),
            site: site.to_owned(),
            site_died: site_died || record.is_err(),
            record: record.unwrap_or_default(),
            family,
            request,
            sent,
            ended,
            outcome,
        });
    }

    fn order(&self, dice: &Dice) {
        thread::sleep(dice.millis(150, 700));
        let Some((site, client)) = self.door(dice, ADMIN) else {
            return;
        };
        let number = self.asked.fetch_add(1, Relaxed);
        let document = dice.roll(u64::from(DOCUMENTS)) as u32;
        let is_model = dice.chance(15);
        // Numbers of orders rise: no version is named twice.
        let version = number + 2;
        let reason = format!("order-{number}");
        let mut body = match is_model {
            true => json!({"model": MODEL}),
            false => {
                let name = format!("document-{document}");
                json!({"dependency": {"kind": "document", "name": name, "version": version.to_string()}})
            }
        };
        body["wait"] = json!(true);
        body["reason"] = json!(reason);
        let sent = self.now();
        let announce = || self.versions[document as usize].fetch_max(version, Relaxed);
        if !is_model && dice.chance(50) {
            announce();
            thread::sleep(dice.millis(0, 200));
        }
        let given = client.post("/v1/portolan/invalidate", &body);
        let answered = self.now();
        if given.is_ok() && !is_model {
            announce();
        }
        let families = (0..FAMILIES).filter(|family| is_model || family % DOCUMENTS == document);
        self.seen.lock().orders.push(Ordered {
            reason,
            site,
            tenant: None,
            waited: true,
            sent,
            answered,
            acknowledged: given.is_ok(),
            families: families.collect(),
        });
    }

    fn bind(&self, dice: &Dice) {
        thread::sleep(dice.millis(300, 1200));
        let Some((_, client)) = self.door(dice, ACME) else {
            return;
        };
        let name = POLICIES[dice.pick(POLICIES.len())];
        let component = shipped(name);
        let version = sha256(&component);
        let path = "/v1/portolan/tenants/acme/policies/routing";
        let put = client.put(path, &[("name", name)], &component);
        self.seen.lock().bound.push(Bound {
            version,
            acknowledged: put.is_ok(),
        });
    }
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    hex::encode(sha2::Sha256::digest(bytes))
}

/// The record of a request once it has settled; none: it was never admitted. An error: its site does not answer.
fn settled(client: &Client, request: &str) -> Result<Option<PathRecord>, ClientError> {
    let began = Instant::now();
    loop {
        let reply = match client.get(&format!("/v1/portolan/requests/{request}")) {
            Ok(reply) => reply,
            Err(ClientError::Refused { status: 404, .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let record: PathRecord = serde_json::from_value(reply.body).unwrap();
        if record.status != "running" || began.elapsed() > SETTLES {
            return Ok(Some(record));
        }
        thread::sleep(Duration::from_millis(5));
    }
}
