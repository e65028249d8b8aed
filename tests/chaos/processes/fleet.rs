//! Three processes, a server, and what can be broken between and beneath them.

use super::work::Seen;
use super::{Fault, PATIENCE};
use crate::chaos::history::{End, History, Stamp};
use crate::chaos::valve::Valve;
use parking_lot::Mutex;
use portolan::client::Client;
use portolan_ports::AuditRecord;
use portolan_tests::oracle_folder;
use portolan_tests::processes::{FleetPlan, Processes};
use portolan_tests::world::{ACME, ADMIN, GLOBEX};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The sites with their jurisdictions.
pub(crate) const SITES: [(&str, &str); 3] = [("paris", "eu"), ("virginia", "us"), ("berlin", "eu")];
/// Milliseconds for each 256 bytes that a slow reader takes: some 5 kB/s.
const SLOW_MS: u64 = 50;
/// How long sites have to agree once everything is mended, on a machine with other things to do.
const SETTLES: Duration = Duration::from_secs(120);

/// What all processes share. Leases are shorter than by default, so that a schedule holds several.
const MORE: &str =
    "invalidation: {lease_ms: 800, clock_drift_ms: 80}\npolicies: {quotas: {uploads_per_hour: 100000}}\n";

/// Where each site can be reached; none while its process does not run.
pub(crate) type Doors = Arc<Mutex<BTreeMap<String, Client>>>;

pub(crate) struct Fleet {
    processes: Processes,
    pub(crate) doors: Doors,
    /// Between each site and the server.
    bus: BTreeMap<String, Valve>,
    /// Between each site and each other one that it orders KV from.
    links: BTreeMap<(String, String), Valve>,
    began: Instant,
    /// What is to be undone.
    broken: Vec<Fault>,
    rolled_back: BTreeSet<String>,
    /// A site whose data lies on a disk of its own, as far as this machine allows.
    small_disk: BTreeMap<String, SmallDisk>,
}

impl Fleet {
    pub(crate) fn start() -> Option<Self> {
        let (mut bus, mut links) = (BTreeMap::new(), BTreeMap::new());
        let plan = FleetPlan {
            model: &oracle_folder("tiny-qwen3"),
            sites: &SITES,
            more: MORE,
        };
        let processes = Processes::start_edited(&plan, |site, text, server| {
            let valve = Valve::open(address(server.trim_start_matches("nats://")));
            let mut text = text.replace(server, &format!("nats://{}", valve.address));
            bus.insert(site.to_owned(), valve);
            for (other, _) in SITES.iter().filter(|(other, _)| *other != site) {
                let (found, of) = transport_of(&text, other);
                let valve = Valve::open(address(&of));
                let through = format!("{found}, advertise: '{}'", valve.address);
                text = text.replace(&found, &through);
                links.insert((site.to_owned(), (*other).to_owned()), valve);
            }
            text
        })?;
        let fleet = Self {
            doors: Arc::default(),
            bus,
            links,
            began: Instant::now(),
            broken: Vec::new(),
            rolled_back: BTreeSet::new(),
            small_disk: BTreeMap::new(),
            processes,
        };
        for (site, _) in SITES {
            fleet.opens(site);
        }
        Some(fleet)
    }

    pub(crate) fn sites(&self) -> usize {
        SITES.len()
    }

    /// When the run began.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    fn opens(&self, site: &str) {
        self.doors
            .lock()
            .insert(site.to_owned(), self.processes.client(site, ADMIN));
    }

    fn folder(&self, site: &str) -> PathBuf {
        self.processes.folder.path().join(site)
    }

    fn kill(&mut self, site: &str) {
        self.doors.lock().remove(site);
        self.processes.kill(site);
    }

    fn bring_back(&mut self, site: &str) {
        if !self.processes.is_running(site) {
            self.processes.kill(site);
            self.processes.start_site(site, None);
            self.opens(site);
        }
    }

    pub(crate) fn breaks(&mut self, fault: Fault) {
        let name = |at: usize| SITES[at].0;
        match fault {
            Fault::BusRestarts => self.processes.nats.kill(),
            Fault::BusCut(at) => {
                let valve = &self.bus[name(at)];
                valve.to.shut.store(true, Relaxed);
                valve.from.shut.store(true, Relaxed);
            }
            Fault::BusDeaf(at) => self.bus[name(at)].to.shut.store(true, Relaxed),
            Fault::BusMute(at) => self.bus[name(at)].from.shut.store(true, Relaxed),
            Fault::SlowReader(at) => self.bus[name(at)].from.slow_ms.store(SLOW_MS, Relaxed),
            Fault::Killed(at) | Fault::Torn(at) => self.kill(name(at)),
            Fault::OldData(at) => self.copies(name(at)),
            Fault::DiskFull(at) => self.fills(name(at)),
            Fault::LinkCut(one, other) if one == other => {}
            Fault::LinkCut(one, other) => {
                let valve = &self.links[&(name(one).to_owned(), name(other).to_owned())];
                valve.from.shut.store(true, Relaxed);
            }
        }
        self.broken.push(fault);
    }

    pub(crate) fn mends(&mut self) {
        for fault in std::mem::take(&mut self.broken) {
            match fault {
                Fault::BusRestarts => self.processes.nats.restart().unwrap(),
                Fault::Killed(at) => self.bring_back(SITES[at].0),
                Fault::OldData(at) => self.puts_back(SITES[at].0),
                Fault::Torn(at) => {
                    let site = SITES[at].0;
                    if !self.processes.is_running(site) {
                        tear(&self.folder(site));
                    }
                    self.bring_back(site);
                }
                Fault::DiskFull(at) => self.empties(SITES[at].0),
                _ => {}
            }
        }
        self.bus.values().for_each(Valve::mend);
        self.links.values().for_each(Valve::mend);
    }

    /// A copy of a site's folder is made while its process does not run; it goes on, until it is killed.
    fn copies(&mut self, site: &str) {
        self.kill(site);
        let (folder, copy) = (self.folder(site), self.folder(&format!("{site}.copy")));
        drop(fs::remove_dir_all(&copy));
        copy_folder(&folder, &copy);
        self.bring_back(site);
    }

    fn puts_back(&mut self, site: &str) {
        self.kill(site);
        let (folder, copy) = (self.folder(site), self.folder(&format!("{site}.copy")));
        fs::remove_dir_all(&folder).unwrap();
        fs::rename(copy, &folder).unwrap();
        self.rolled_back.insert(site.to_owned());
        self.bring_back(site);
    }

    /// A site's folder moves onto a disk of its own, which is full from then on.
    fn fills(&mut self, site: &str) {
        self.kill(site);
        let disk = SmallDisk::under(&self.folder(site));
        self.bring_back(site);
        if let Some(disk) = disk {
            disk.fill();
            self.small_disk.insert(site.to_owned(), disk);
        }
    }

    fn empties(&mut self, site: &str) {
        if let Some(disk) = self.small_disk.get(site) {
            disk.empty();
        }
        self.bring_back(site);
    }

    /// Waits until every site sees every other and nothing is on its way.
    pub(crate) fn settles(&mut self) {
        for (site, _) in SITES {
            self.bring_back(site);
        }
        let began = Instant::now();
        let is_settled = || SITES.iter().all(|(site, _)| self.agrees(site)) && self.bind_alike();
        while began.elapsed() < SETTLES && !is_settled() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether the same version is bound at every site. One that the bus brings is compiled first.
    fn bind_alike(&self) -> bool {
        let bound = SITES.map(|(site, _)| bound(&self.processes.client(site, ACME)));
        bound.iter().all(|version| *version == bound[0])
    }

    /// Whether a site sees all others, and may use what it has cached.
    fn agrees(&self, site: &str) -> bool {
        let Ok(metrics) = self.processes.client(site, ADMIN).get("/metrics") else {
            return false;
        };
        let text = metrics
            .body
            .as_str()
            .map_or_else(|| metrics.body.to_string(), str::to_owned);
        let has_lease = !text.contains("portolan_cache_lease_left_milliseconds 0");
        has_lease && self.processes.ready(site) == SITES.len()
    }

    /// What the processes logged as errors, each line after its site.
    pub(crate) fn errors(&self) -> Vec<String> {
        let of = |site: &str| {
            let log = self.processes.log(site);
            let errors = log.lines().filter(|line| line.contains("ERROR"));
            errors.map(|line| format!("{site}: {line}")).collect::<Vec<_>>()
        };
        SITES.iter().flat_map(|(site, _)| of(site)).collect()
    }

    pub(crate) fn history(self, seen: Seen) -> History {
        let admin = |site: &str| self.processes.client(site, ADMIN);
        let audit = |site: &str| -> Vec<AuditRecord> {
            let body = admin(site).get("/v1/portolan/audit?limit=1000").unwrap().body;
            let mut lines: Vec<AuditRecord> = serde_json::from_value(body["data"].clone()).unwrap();
            lines.reverse();
            lines
        };
        let end = |(site, _): (&str, &str)| End {
            site: site.to_owned(),
            behind: (!self.agrees(site)).then(|| "another version is bound there".to_owned()),
            usable: Vec::new(),
        };
        let names = SITES.iter().map(|(site, _)| (*site).to_owned());
        History {
            sites: SITES
                .iter()
                .map(|(s, j)| ((*s).to_owned(), (*j).to_owned()))
                .collect(),
            tenants: [
                ("acme".to_owned(), String::new()),
                ("globex".to_owned(), "eu".to_owned()),
            ]
            .into(),
            audits: names.clone().map(|site| (site.clone(), audit(&site))).collect(),
            in_force: names
                .map(|site| (site.clone(), bound(&self.processes.client(&site, ACME))))
                .collect(),
            ends: SITES.map(end).into(),
            asks: seen.asks,
            orders: seen.orders,
            bound: seen.bound,
            rolled_back: self.rolled_back.clone(),
            patience: Some(PATIENCE),
            ..History::default()
        }
    }
}

/// The version that a site has bound for acme's routing.
fn bound(client: &Client) -> Option<String> {
    let body = client.get("/v1/portolan/tenants/acme/policies").ok()?.body;
    let routing = body["policies"]
        .as_array()?
        .iter()
        .find(|slot| slot["question"] == "routing")?;
    Some(routing["binding"]["sha256"].as_str()?.to_owned())
}

/// Microseconds since the run began.
pub(crate) fn stamp(began: Instant) -> Stamp {
    Stamp(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX))
}

/// The key of a tenant.
pub(crate) fn key(tenant: &str) -> &'static str {
    if tenant == "acme" { ACME } else { GLOBEX }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// What the configuration says of where a site listens for orders, and the address in it.
fn transport_of(text: &str, site: &str) -> (String, String) {
    let (_, line) = text.split_once(&format!("name: {site},")).unwrap();
    let (_, rest) = line.split_once("transport: '").unwrap();
    let (address, _) = rest.split_once('\'').unwrap();
    (format!("transport: '{address}'"), address.to_owned())
}

fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// What a power cut leaves of a write: the file that says how far the site is ends in the middle, and files that were
/// being written lie there half done.
fn tear(folder: &Path) {
    let control = folder.join("control");
    for file in fs::read_dir(&control).into_iter().flatten().flatten() {
        let path = file.path();
        if path.extension().is_some_and(|end| end == "json") {
            let text = fs::read(&path).unwrap_or_default();
            drop(fs::write(&path, &text[..text.len() / 2]));
            drop(fs::write(path.with_extension("writing"), b"{\"stre"));
        }
    }
    for half in ["components/half.writing", "state/half", "recovery.json.new"] {
        let path = folder.join(half);
        if path.parent().is_some_and(Path::exists) {
            drop(fs::write(path, [0xff; 100]));
        }
    }
}

/// A file system of a few MiB in memory, mounted where a site's data lies.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None, said aloud, where this user may not mount.
    #[expect(clippy::print_stderr, reason = "what is skipped in silence counts as passed")]
    fn under(folder: &Path) -> Option<Self> {
        let beside = folder.with_extension("moved");
        fs::rename(folder, &beside).unwrap();
        fs::create_dir(folder).unwrap();
        let size = "size=48m";
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", size, "tmpfs"])
            .arg(folder)
            .status();
        let is_mounted = mounted.is_ok_and(|status| status.success());
        let content = format!("{}/.", beside.display());
        copy_folder(Path::new(&content), folder);
        fs::remove_dir_all(&beside).unwrap();
        if !is_mounted {
            eprintln!("SKIPPED: a full disk (no right to mount one)");
            return None;
        }
        Some(Self(folder.to_owned()))
    }

    fn fill(&self) {
        let chunk = vec![0x55; 4096];
        let Ok(mut file) = fs::File::create(self.0.join("filler")) else {
            return;
        };
        while std::io::Write::write_all(&mut file, &chunk).is_ok() {}
    }

    fn empty(&self) {
        drop(fs::remove_file(self.0.join("filler")));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: its process may still run.
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

/// Every answer of the host is JSON.
pub(crate) fn code_of(body: &Value) -> String {
    let error = &body["error"];
    let code = error["code"].as_str().or(error["type"].as_str());
    code.unwrap_or_default().to_owned()
}
