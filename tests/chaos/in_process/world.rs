//! One schedule: sites of real parts in one process, the weather between them, and what happens as planned.

use super::carriers::Hub;
use super::flaw::Flaw;
use super::ledger::Written;
use super::plan::{DOCUMENTS, Data, Happening, Plan, TENANTS};
use super::site::{Blocks, Machine, Running, SkewedClock, store, topology};
use super::weather::Weather;
use crate::chaos::dice::Dice;
use crate::chaos::history::{Ask, End, History, Ordered};
use parking_lot::Mutex;
use portolan_base::{Clock, SiteName};
use portolan_fleet::Topology;
use portolan_ports::{CacheValidity, ControlEvent, MemoryControl, PolicyStore, StoreCall};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long sites may take to catch up once everything is mended: many leases, on a machine that does other things. Time in
/// which the whole process stood still does not count.
const CATCHES_UP: Duration = Duration::from_secs(15);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(5);
/// How long a request or an order may still take once everything is mended.
const ENDS: Duration = Duration::from_secs(120);
/// As production opens its doors: caught up, or not after a while.
const OPENS: Duration = Duration::from_millis(150);
/// Lines of an audit log; no schedule writes so many.
const ALL: usize = 100_000;

/// What clients saw.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) asks: Vec<Ask>,
    pub(super) orders: Vec<Ordered>,
}

/// A fleet under way.
pub(super) struct World {
    pub(super) hub: Arc<Hub>,
    pub(super) seen: Mutex<Seen>,
    /// Requests and orders that have not ended.
    pub(super) under_way: Mutex<BTreeSet<String>>,
    topology: Topology,
    random: Arc<Dice>,
    machines: Vec<Mutex<Machine>>,
    running: Vec<Mutex<Option<Arc<Running>>>>,
    /// By document, the version that clients name, and the one that an order named last.
    versions: Vec<(AtomicU64, AtomicU64)>,
    /// Whether the stream became another one.
    was_lost: AtomicBool,
    _folder: TempDir,
}

/// Runs the schedule of a seed, and tells what happened.
pub(crate) fn run(seed: u64) -> History {
    run_flawed(seed, Flaw::None)
}

/// The same with parts that are wrong.
pub(crate) fn run_flawed(seed: u64, flaw: Flaw) -> History {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let dice = Dice::new(seed);
        let world = Arc::new(World::draw(&dice, flaw));
        let plan = Plan::draw(&dice, world.machines.len());
        if std::env::var_os("PORTOLAN_CHAOS_TELL").is_some() {
            tell(seed, &world.hub.names, &plan);
        }
        world.play(plan).await;
        let ends = world.settle().await;
        world.history(ends)
    })
}

#[expect(clippy::print_stdout, reason = "whoever repeats a schedule asks for it")]
fn tell(seed: u64, sites: &[SiteName], plan: &Plan) {
    println!("seed {seed}, {sites:?}");
    for (at, happening) in &plan.0 {
        println!("{at:>12.1?} {happening:?}");
    }
}

impl World {
    fn draw(dice: &Dice, flaw: Flaw) -> Self {
        let count = 2 + dice.pick(3);
        let jurisdictions: Vec<&str> = (0..count)
            .map(|at| ["eu", "us", "eu", "jp"][(at + dice.pick(2)) % 4])
            .collect();
        let mut jurisdictions = jurisdictions;
        jurisdictions[0] = "eu";
        let names = ["paris", "virginia", "tokyo", "berlin"];
        let names = names[..count]
            .iter()
            .map(|name| SiteName::new(name).unwrap())
            .collect();
        let hub = Arc::new(Hub::new(names, Weather::draw(dice.roll(u64::MAX)), flaw));
        let topology = topology(&hub, &jurisdictions);
        let folder = tempfile::tempdir().unwrap();
        let tenants = tenants();
        let machine = |at: usize| {
            Mutex::new(Machine {
                at,
                clock: Arc::new(SkewedClock::draw(dice)) as Arc<dyn Clock>,
                store: store(&tenants),
                folder: folder.path().join(at.to_string()),
                before: 0,
                blocks: Blocks::new(),
                copy: None,
                room_kib: if dice.chance(30) { 24 } else { 1024 },
                pace: Duration::from_micros(200 + dice.roll(3000)),
            })
        };
        Self {
            machines: (0..count).map(machine).collect(),
            running: (0..count).map(|_| Mutex::default()).collect(),
            versions: (0..DOCUMENTS)
                .map(|_| (AtomicU64::new(1), AtomicU64::new(1)))
                .collect(),
            seen: Mutex::default(),
            under_way: Mutex::default(),
            random: Arc::new(Dice::new(dice.roll(u64::MAX))),
            was_lost: AtomicBool::new(false),
            topology,
            hub,
            _folder: folder,
        }
    }

    /// The process of a site, where one runs.
    pub(super) fn running(&self, site: usize) -> Option<Arc<Running>> {
        self.running[site].lock().clone()
    }

    /// What prompts of a family are made of.
    pub(super) fn document(&self, family: u32) -> String {
        format!("document-{}", family % DOCUMENTS)
    }

    pub(super) fn version(&self, family: u32) -> u64 {
        self.versions[(family % DOCUMENTS) as usize]
            .0
            .load(Ordering::Relaxed)
    }

    pub(super) fn next_version(&self, document: u32) -> u64 {
        1 + self.versions[document as usize].1.fetch_add(1, Ordering::Relaxed)
    }

    /// Clients name this version from here on.
    pub(super) fn announce(&self, document: u32, version: u64) {
        self.versions[document as usize]
            .0
            .fetch_max(version, Ordering::Relaxed);
    }

    /// The name of a block that was computed, in hexadecimal.
    pub(super) fn some_block(&self) -> Option<String> {
        let written = self.hub.ledger.written.lock();
        let named = written
            .births
            .iter()
            .rev()
            .filter(|birth| !birth.chain.is_empty());
        let latest: Vec<_> = named.take(20).collect();
        let birth = latest.get(self.random.pick(latest.len()))?;
        birth.chain.first().map(|block| hex::encode(block.0))
    }

    async fn play(self: &Arc<Self>, plan: Plan) {
        // All listen before anyone speaks.
        for at in 0..self.machines.len() {
            self.start(at);
        }
        for at in 0..self.machines.len() {
            self.opens(at).await;
        }
        let began = Instant::now();
        let mut under_way = JoinSet::new();
        for (number, (at, happening)) in plan.0.into_iter().enumerate() {
            sleep_until(began + at).await;
            match happening {
                Happening::Ask(ask) => drop(under_way.spawn(Arc::clone(self).ask(number, ask))),
                Happening::Order(order) => drop(under_way.spawn(Arc::clone(self).order(number, order))),
                other => self.happens(other),
            }
        }
        self.mend();
        let all = async { while under_way.join_next().await.is_some_and(|ended| ended.is_ok()) {} };
        let ended = timeout(ENDS, all).await;
        assert!(
            ended.is_ok() && under_way.is_empty(),
            "requests or orders did not end, or broke"
        );
    }

    fn happens(&self, happening: Happening) {
        match happening {
            Happening::Cut(cut) => self.hub.weather.set(cut),
            Happening::Mend(cut) => self.hub.weather.mend(cut),
            Happening::Stream(fault) => self.hub.stream.set_fault(fault),
            Happening::FoundAnew => {
                self.was_lost.store(true, Ordering::Relaxed);
                self.hub.stream.found_anew();
            }
            Happening::Kill(site) => self.kill(site),
            Happening::Return(site, data) => self.bring_back(site, data),
            Happening::Copy(site) => self.copy(site),
            Happening::DiskFull(site, is_full) => self.fill_disk(site, is_full),
            Happening::Ask(_) | Happening::Order(_) => {}
        }
    }

    fn start(&self, at: usize) {
        let running = self.machines[at]
            .lock()
            .start(&self.hub, &self.topology, &self.random);
        *self.running[at].lock() = Some(Arc::new(running));
    }

    async fn opens(&self, at: usize) {
        if let Some(running) = self.running(at) {
            drop(timeout(OPENS, running.agent.caught_up()).await);
        }
    }

    fn kill(&self, site: usize) {
        if let Some(running) = self.running[site].lock().take() {
            running.life.end();
            self.hub.doors.lock()[site] = None;
            self.machines[site].lock().ended(&running);
        }
    }

    fn copy(&self, site: usize) {
        let Some(running) = self.running(site) else { return };
        let mut machine = self.machines[site].lock();
        // The blocks after the file: one that lies there is no older than what the file says.
        let file = std::fs::read(machine.file()).ok();
        machine.copy = Some((file, running.blocks()));
    }

    fn bring_back(&self, site: usize, data: Data) {
        if self.running(site).is_some() {
            return;
        }
        let mut machine = self.machines[site].lock();
        let file = machine.file();
        match data {
            Data::Same => {}
            Data::Old => {
                if let Some((text, blocks)) = machine.copy.take() {
                    machine.blocks = blocks;
                    match text {
                        Some(text) => drop(std::fs::write(&file, text)),
                        None => drop(std::fs::remove_file(&file)),
                    }
                }
            }
            Data::Torn => {
                if let Ok(text) = std::fs::read(&file) {
                    drop(std::fs::write(&file, &text[..text.len() / 2]));
                }
            }
            Data::Lost => drop(std::fs::remove_file(&file)),
        }
        drop(machine);
        self.start(site);
    }

    /// Nothing can be written where a folder stands in the way; the audit log cannot be written either.
    fn fill_disk(&self, site: usize, is_full: bool) {
        let machine = self.machines[site].lock();
        let in_the_way: PathBuf = machine.file().with_extension("writing");
        if is_full {
            drop(std::fs::remove_file(&in_the_way));
            drop(std::fs::create_dir_all(in_the_way));
            machine.store.fail(StoreCall::Note);
        } else {
            drop(std::fs::remove_dir(in_the_way));
            machine.store.heal();
        }
    }

    fn mend(&self) {
        self.hub.weather.mend_all();
        self.hub.stream.set_fault(None);
        for site in 0..self.machines.len() {
            self.fill_disk(site, false);
            self.bring_back(site, Data::Same);
        }
    }

    /// Waits until every site has caught up.
    async fn settle(&self) -> Vec<End> {
        let mut waited = Duration::ZERO;
        let mut ends = Vec::new();
        for (at, name) in self.hub.names.iter().enumerate() {
            let Some(running) = self.running(at) else { continue };
            let last = self.hub.stream.entries().last().map(|entry| entry.sequence);
            let behind = || {
                let applied = running.agent.applied_to();
                match (running.agent.check(running.clock.now()), last) {
                    (Err(why), _) => Some(format!("at {applied} of {last:?}, {why}")),
                    (Ok(()), Some(last)) if applied < last => Some(format!("at {applied} of {last}")),
                    _ => None,
                }
            };
            while behind().is_some() && waited < CATCHES_UP {
                let looked = Instant::now();
                sleep(LOOK).await;
                waited += looked.elapsed().min(4 * LOOK);
            }
            ends.push(running.end(name.as_str(), behind()));
        }
        ends
    }

    fn history(&self, ends: Vec<End>) -> History {
        let seen = std::mem::take(&mut *self.seen.lock());
        let Written {
            births,
            begins,
            reached,
            mut stream,
        } = std::mem::take(&mut *self.hub.ledger.written.lock());
        if !self.was_lost.load(Ordering::Relaxed) {
            let there = orders_in(&self.hub.stream);
            stream.retain(|reason, _| there.contains(reason));
        }
        let audits = self.machines.iter().zip(&self.hub.names).map(|(machine, name)| {
            let mut lines = machine.lock().store.audit(ALL).unwrap();
            lines.reverse();
            (name.to_string(), lines)
        });
        let sites = self.topology.sites().iter();
        History {
            sites: sites
                .map(|site| (site.name.to_string(), site.jurisdiction.clone()))
                .collect(),
            tenants: tenants(),
            asks: seen.asks,
            orders: seen.orders,
            births,
            begins,
            reached,
            stream: Some(stream),
            ends,
            audits: audits.collect(),
            never_ended: self.under_way.lock().clone(),
            ..History::default()
        }
    }
}

/// Reasons of the orders that a stream holds.
fn orders_in(stream: &MemoryControl) -> Vec<String> {
    let entries = stream.entries().into_iter();
    let reason = |event| match event {
        ControlEvent::Invalidation(order) => Some(order.reason),
        _ => None,
    };
    entries.filter_map(|entry| reason(entry.event)).collect()
}

/// The second one's data must stay in the EU.
fn tenants() -> BTreeMap<String, String> {
    let bound = |name: &&str| if *name == "globex" { "eu" } else { "" };
    TENANTS
        .iter()
        .map(|name| ((*name).to_owned(), bound(name).to_owned()))
        .collect()
}
