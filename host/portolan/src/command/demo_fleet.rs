//! `portolan demo-fleet`: a NATS server, three processes of one site each, and a tour that checks what it tells.

mod processes;

use super::DemoFleetArgs;
use super::demo::narrator::Narrator;
use super::demo::{need, texts};
use super::logging::{self, LogFormat};
use super::output::{Failure, line};
use crate::client::{Client, ClientError};
use portolan_base::Bytes;
use portolan_decide::PathRecord;
use portolan_fleet::NatsServer;
use processes::{Carriers, Fleet};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const MODEL: &str = "smollm2-135m-instruct";

const ACME: &str = "demo-acme";
const GLOBEX: &str = "demo-globex";
const ADMIN: &str = "demo-admin";

/// How long the tour waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a server that came back may take to have what the others have.
const CATCHES_UP: Duration = Duration::from_secs(5);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

pub(super) fn run(args: &DemoFleetArgs) -> Result<(), Failure> {
    // The tour tells the story; log lines would talk over it.
    drop(logging::start("error", LogFormat::Text)?);
    need(&args.model, "the demo model", "`make demo-fleet` fetches it")?;
    let folder = tempfile::Builder::new()
        .prefix("portolan-demo-fleet-")
        .tempdir()
        .map_err(Failure::new)?;
    let carriers = match args.cluster {
        true => Carriers::Cluster,
        false => Carriers::One,
    };
    line(match carriers {
        Carriers::One => "Portolan: three sites, a process each, and a NATS server between them.",
        Carriers::Cluster => "Portolan: three sites, a process each, and three NATS servers between them.",
    });
    let fleet = Fleet::start(folder.path(), &args.model, carriers)?;
    let fleet = Arc::new(Mutex::new(Some(fleet)));
    end_with_this_process(&fleet)?;
    let mut tour = Tour {
        fleet: Arc::clone(&fleet),
        narrator: Narrator::new(),
    };
    if let Err(failure) = play(&mut tour, carriers) {
        // Ends the processes: whoever waits for a signal holds on to them too.
        drop(fleet.lock().unwrap_or_else(PoisonError::into_inner).take());
        return Err(failure);
    }
    let unkept = tour.narrator.close();
    if !args.once {
        line("");
        line("Still serving (Ctrl-C ends it). What paris knows of the others:");
        let paris = with(&fleet, |fleet| fleet.http("paris"))?;
        line(format!("  portolan fleet --server {paris} --key {ADMIN}"));
        loop {
            std::thread::park();
        }
    }
    drop(fleet.lock().unwrap_or_else(PoisonError::into_inner).take());
    match unkept {
        0 => Ok(()),
        n => Err(Failure::new(format!(
            "{n} of the things the tour tells did not happen"
        ))),
    }
}

/// The processes, until this one is told to end.
type Shared = Arc<Mutex<Option<Fleet>>>;

fn with<T>(fleet: &Shared, does: impl FnOnce(&mut Fleet) -> T) -> Result<T, Failure> {
    let mut fleet = fleet.lock().unwrap_or_else(PoisonError::into_inner);
    let fleet = fleet.as_mut().ok_or_else(|| Failure::new("told to end"))?;
    Ok(does(fleet))
}

/// Ends the processes when this one is asked to end: they would outlive it.
fn end_with_this_process(fleet: &Shared) -> Result<(), Failure> {
    let fleet = Arc::clone(fleet);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::new)?;
    std::thread::spawn(move || {
        if runtime.block_on(super::serve::stop_signal()).is_ok() {
            drop(fleet.lock().unwrap_or_else(PoisonError::into_inner).take());
            std::process::exit(0);
        }
    });
    Ok(())
}

struct Tour {
    fleet: Shared,
    narrator: Narrator,
}

/// What one question came to.
struct Asked {
    text: String,
    record: PathRecord,
}

fn play(tour: &mut Tour, carriers: Carriers) -> Result<(), Failure> {
    opening(tour)?;
    served_elsewhere(tour)?;
    found_elsewhere(tour)?;
    killed_and_back(tour)?;
    match carriers {
        Carriers::One => without_the_bus(tour),
        Carriers::Cluster => without_servers(tour),
    }
}

fn opening(tour: &Tour) -> Result<(), Failure> {
    with(&tour.fleet, |fleet| {
        for server in &fleet.nats {
            tour.narrator.tell(&format!(
                "nats       {} (process {})",
                server.address(),
                server.process()
            ));
        }
        for (site, process, http) in fleet.sites() {
            tour.narrator
                .tell(&format!("{site:<10} {http} (process {process})"));
        }
    })
}

fn served_elsewhere(tour: &mut Tour) -> Result<(), Failure> {
    tour.narrator
        .scene("A request at paris is served by virginia's pool");
    tour.sees("paris", "virginia", "up")?;
    let asked = tour.ask("paris", ACME, (texts::CHARTS, "remote_required"))?;
    tour.why(&asked);
    tour.narrator.check(
        "the prompt was computed by virginia's process",
        site_of(&asked.record) == "virginia",
    );
    let moved = asked.record.kv.bytes_moved;
    tour.narrator.check(
        &format!("its KV crossed between the processes: {}", Bytes(moved)),
        moved > 0,
    );
    let alone = tour.ask("paris", GLOBEX, (texts::CHARTS, "local_only"))?;
    tour.narrator.check(
        "paris alone answers the same, token for token",
        alone.text == asked.text,
    );
    Ok(())
}

fn found_elsewhere(tour: &mut Tour) -> Result<(), Failure> {
    tour.narrator
        .scene("A prefix that paris computed is found from tokyo");
    let first = tour.ask("paris", ACME, (texts::CABLES, "local_only"))?;
    tour.why(&first);
    // A tenth of a second is what the summary takes; a loaded machine takes longer.
    let began = Instant::now();
    let found = loop {
        let found = tour.ask("tokyo", ACME, (texts::CABLES, "local_only"))?;
        if !found.record.fetches.is_empty() || began.elapsed() > PATIENCE / 4 {
            break found;
        }
    };
    tour.why(&found);
    let fetched = found.record.fetches.iter().find(|fetch| fetch.site == "paris");
    let tokens = fetched.map_or(0, |fetch| fetch.tokens);
    tour.narrator.check(
        &format!("tokyo fetched {tokens} tokens of it from paris instead of computing them"),
        tokens > 0,
    );
    tour.narrator
        .check("and answers the same, token for token", found.text == first.text);
    Ok(())
}

fn killed_and_back(tour: &mut Tour) -> Result<(), Failure> {
    tour.narrator
        .scene("virginia's process is killed (kill -9), and comes back");
    let before = tour.incarnation("paris", "virginia")?;
    with(&tour.fleet, |fleet| fleet.kill("virginia"))?;
    let killed = Instant::now();
    let asked = tour.ask("paris", ACME, (texts::STORY, "remote_preferred"))?;
    tour.why(&asked);
    for fallback in &asked.record.fallbacks {
        let text = format!(
            "fallback: {} → {} because {}",
            fallback.from, fallback.to, fallback.reason
        );
        tour.narrator.tell(&tour.narrator.dim(&text));
    }
    tour.narrator.check(
        "a request at paris is served all the same",
        asked.record.status == "ok",
    );
    tour.narrator
        .check("by paris itself", site_of(&asked.record) == "paris");
    tour.sees("paris", "virginia", "silent")?;
    tour.narrator.tell(&format!(
        "paris takes virginia for gone {:.1} s after the kill: its lease is over",
        killed.elapsed().as_secs_f64()
    ));
    let asked = tour.ask("paris", ACME, (texts::CAPITAL, "remote_preferred"))?;
    tour.narrator.check(
        "from then on nobody tries it",
        asked.record.fallbacks.is_empty() && asked.record.status == "ok",
    );

    with(&tour.fleet, |fleet| fleet.start_site("virginia"))??;
    tour.sees("paris", "virginia", "up")?;
    let after = tour.incarnation("paris", "virginia")?;
    tour.narrator
        .check("it is back, with a greater incarnation", after > before);
    let asked = tour.ask("paris", ACME, (texts::CAPITAL, "remote_required"))?;
    tour.why(&asked);
    tour.narrator
        .check("and serves paris again", site_of(&asked.record) == "virginia");
    Ok(())
}

fn without_the_bus(tour: &mut Tour) -> Result<(), Failure> {
    tour.narrator.scene("The NATS server is killed, and comes back");
    with(&tour.fleet, |fleet| {
        fleet.nats.iter_mut().for_each(NatsServer::kill);
    })?;
    tour.sees("paris", "virginia", "silent")?;
    let asked = tour.ask("paris", ACME, (texts::CAPITAL, "remote_preferred"))?;
    tour.narrator.check(
        "paris goes on alone",
        asked.record.status == "ok" && site_of(&asked.record) == "paris",
    );
    tour.restart(0)?;
    tour.sees("paris", "virginia", "up")?;
    tour.narrator
        .check("the sites found each other again by themselves", true);
    Ok(())
}

fn without_servers(tour: &mut Tour) -> Result<(), Failure> {
    tour.narrator
        .scene("Each NATS server in turn is killed; then two at once");
    tour.ordered("all three there")?;
    for lost in 0..3 {
        with(&tour.fleet, |fleet| fleet.nats[lost].kill())?;
        tour.ordered(&format!("server {} killed", lost + 1))?;
        let asked = tour.ask("paris", ACME, (texts::CAPITAL, "remote_required"))?;
        tour.narrator.check(
            "the sites go on together",
            asked.record.status == "ok" && site_of(&asked.record) != "paris",
        );
        tour.restart(lost)?;
        // It has to catch up before the next one goes.
        tour.ordered("it is back")?;
        std::thread::sleep(CATCHES_UP);
    }
    with(&tour.fleet, |fleet| {
        fleet.nats[1..].iter_mut().for_each(NatsServer::kill);
    })?;
    let refused = tour.order();
    tour.narrator.check(
        "one of three is no majority: an invalidation is not acknowledged",
        matches!(refused, Err(ClientError::Refused { status: 503, .. })),
    );
    let asked = tour.ask("paris", ACME, (texts::CAPITAL, "auto"))?;
    tour.narrator
        .check("paris serves all the same", asked.record.status == "ok");
    tour.restart(1)?;
    tour.restart(2)?;
    tour.ordered("both are back")
}

impl Tour {
    fn restart(&self, server: usize) -> Result<(), Failure> {
        with(&self.fleet, |fleet| fleet.nats[server].restart())?.map_err(Failure::new)
    }

    /// Orders an invalidation at paris, and waits until it holds everywhere.
    fn order(&self) -> Result<(), ClientError> {
        let http = with(&self.fleet, |fleet| fleet.http("paris"));
        let order = json!({"model": MODEL, "wait": true, "reason": "the demo"});
        let client = Client::new(&http.unwrap_or_default(), ADMIN);
        client.post("/v1/portolan/invalidate", &order).map(drop)
    }

    /// The same until it is acknowledged: servers that lost one agree first who leads.
    fn ordered(&mut self, when: &str) -> Result<(), Failure> {
        let began = Instant::now();
        while let Err(error) = self.order() {
            if began.elapsed() > PATIENCE {
                return Err(Failure::new(error));
            }
            std::thread::sleep(LOOK);
        }
        let text = format!(
            "{when}: an invalidation holds at every site after {:.1} s",
            began.elapsed().as_secs_f64()
        );
        self.narrator.check(&text, true);
        Ok(())
    }

    fn client(&self, site: &str, key: &str) -> Result<Client, Failure> {
        let http = with(&self.fleet, |fleet| fleet.http(site))?;
        Ok(Client::new(&http, key))
    }

    /// Asks a site, and says what it answered.
    fn ask(&self, site: &str, key: &str, (prompt, policy): (&str, &str)) -> Result<Asked, Failure> {
        let client = self.client(site, key)?;
        let body = json!({
            "model": MODEL,
            "messages": [{ "role": "user", "content": prompt }],
            "max_tokens": 32,
            "temperature": 0,
            "prefill_policy": policy,
        });
        let reply = client.post("/v1/chat/completions", &body).map_err(Failure::new)?;
        let text = reply
            .body
            .pointer("/choices/0/message/content")
            .and_then(Value::as_str);
        let text = text.unwrap_or_default().to_owned();
        let id = reply
            .request_id
            .ok_or_else(|| Failure::new("the response names no request id"))?;
        self.narrator
            .tell(&format!("{site} │ {}", text.replace('\n', " ")));
        let record = self.settled(&client, &id)?;
        Ok(Asked { text, record })
    }

    fn settled(&self, client: &Client, id: &str) -> Result<PathRecord, Failure> {
        let began = Instant::now();
        loop {
            let reply = client
                .get(&format!("/v1/portolan/requests/{id}"))
                .map_err(Failure::new)?;
            let record: PathRecord = serde_json::from_value(reply.body).map_err(Failure::new)?;
            if record.status != "running" || began.elapsed() > PATIENCE {
                return Ok(record);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Says where a request went.
    fn why(&self, asked: &Asked) {
        let record = &asked.record;
        if let Some(route) = &record.route {
            self.narrator.tell(&self.narrator.dim(&format!(
                "prompt of {} tokens computed at {}, answer generated at {}; {} of KV crossed, {} tokens reused; first token after {:.0} ms",
                record.prompt_tokens,
                route.prefill_site,
                route.decode_site,
                Bytes(record.kv.bytes_moved),
                record.kv.cached_tokens,
                record.ttft_ms.unwrap_or_default(),
            )));
        }
    }

    /// What `at` knows of a site.
    fn known(&self, at: &str, site: &str) -> Result<Value, Failure> {
        let fleet = self
            .client(at, ADMIN)?
            .get("/v1/portolan/fleet")
            .map_err(Failure::new)?
            .body;
        let sites = fleet["sites"].as_array().cloned().unwrap_or_default();
        let found = sites.into_iter().find(|known| known["name"] == site);
        found.ok_or_else(|| Failure::new(format!("{at} does not know {site}")))
    }

    fn incarnation(&self, at: &str, site: &str) -> Result<u64, Failure> {
        let known = self.known(at, site)?;
        let text = known["incarnation"].as_str().unwrap_or_default();
        text.parse().map_err(Failure::new)
    }

    /// Waits until `at` takes a site to be in `state`, and its instances with it.
    fn sees(&self, at: &str, site: &str, state: &str) -> Result<(), Failure> {
        let began = Instant::now();
        while self.known(at, site)?["state"] != state || (state == "up") != self.routes(at, site)? {
            if began.elapsed() > PATIENCE {
                return Err(Failure::new(format!(
                    "{at} does not see that {site} is {state} after {PATIENCE:?}"
                )));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Whether `at` would route to an instance of a site: one is ready, and its KV can come over.
    fn routes(&self, at: &str, site: &str) -> Result<bool, Failure> {
        let fleet = self
            .client(at, ADMIN)?
            .get("/v1/portolan/fleet")
            .map_err(Failure::new)?
            .body;
        let list = |name: &str| fleet[name].as_array().cloned().unwrap_or_default();
        let ready = |instance: &Value| instance["site"] == site && instance["ready"] == true;
        let joins = |link: &Value| link["from"] == site && link["to"] == at && link["up"] == true;
        Ok(list("instances").iter().any(ready) && list("links").iter().any(joins))
    }
}

fn site_of(record: &PathRecord) -> &str {
    record.route.as_ref().map_or("", |route| &route.prefill_site)
}
