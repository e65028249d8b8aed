//! What one site changes the others hear of, once they are there; nobody else reads or changes it.

use super::*;
use crate::bus::conformance::{Line, SECRET, config, name, topology, wait};
use crate::nats::NatsServer;
use portolan_base::Moment;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;

#[derive(Default)]
struct Counter(AtomicU64);

impl Random for Counter {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

async fn join(server: &NatsServer, site: &str, secret: &[u8; 32]) -> (NatsBus, NatsConfiguration) {
    let bus = NatsBus::connect(&config(server), &topology(), &[name(site)], secret)
        .await
        .unwrap();
    wait("the bus is connected", || bus.is_connected()).await;
    let configuration = NatsConfiguration::on(&bus, 1, secret, Arc::<Counter>::default());
    (bus, configuration)
}

fn told(text: &str) -> SharedConfig {
    SharedConfig {
        sections: [("tenants".to_owned(), text.to_owned())].into(),
        digest: "d".to_owned(),
        from: name("paris"),
        actor: "operator alice".to_owned(),
        reason: String::new(),
        at: Moment(1),
    }
}

const NONE: FleetVersion = FleetVersion {
    founded: 0,
    number: 0,
};

async fn share(
    to: &NatsConfiguration,
    told: SharedConfig,
    over: FleetVersion,
) -> Result<FleetVersion, ConfigRefusal> {
    let to = to.clone();
    tokio::task::spawn_blocking(move || to.share(&told, over))
        .await
        .unwrap()
}

async fn next(feed: &mut ConfigFeed) -> ConfigNews {
    timeout(Duration::from_secs(20), feed.next())
        .await
        .expect("news come")
}

#[tokio::test]
async fn what_one_changes_the_others_hear_of_and_one_that_comes_later_the_newest() {
    let Some(Line::Nats(server, _folder)) = Line::nats() else {
        return;
    };
    let ((_a, paris), (_b, virginia)) = (
        join(&server, "paris", &SECRET).await,
        join(&server, "virginia", &SECRET).await,
    );
    let mut feed = virginia.follow();
    let first = share(&paris, told("a"), NONE).await.unwrap();
    assert_eq!(next(&mut feed).await, ConfigNews::Common(first, told("a")));
    // Virginia has not taken the first over.
    let refused = share(&virginia, told("b"), NONE).await;
    assert_eq!(refused, Err(ConfigRefusal::ChangedElsewhere));
    let second = share(&virginia, told("b"), first).await.unwrap();
    assert!(second > first);

    let runs = SiteRuns {
        fleet: second,
        version: 3,
        differs: false,
        refused: Some((first, "no".to_owned())),
    };
    let (site, said) = (virginia.clone(), runs.clone());
    tokio::task::spawn_blocking(move || site.report(&name("virginia"), &said))
        .await
        .unwrap()
        .unwrap();
    let mut late = paris.follow();
    let mut came = [next(&mut late).await, next(&mut late).await];
    came.sort_by_key(|news| matches!(news, ConfigNews::Runs(..)));
    assert_eq!(
        came,
        [
            ConfigNews::Common(second, told("b")),
            ConfigNews::Runs(name("virginia"), runs)
        ]
    );
}

#[tokio::test]
async fn whoever_carries_it_neither_reads_nor_changes_it() {
    let Some(Line::Nats(server, _folder)) = Line::nats() else {
        return;
    };
    let ((_a, paris), (_b, stranger)) = (
        join(&server, "paris", &SECRET).await,
        join(&server, "virginia", &[1; 32]).await,
    );
    let mut feed = paris.follow();
    let first = share(&paris, told("[{name: acme, keys: [key-acme]}]"), NONE)
        .await
        .unwrap();
    assert!(matches!(next(&mut feed).await, ConfigNews::Common(version, _) if version == first));
    let states = paris.0.states.open().await.unwrap();
    let carried = states.get(COMMON).await.unwrap().unwrap();
    assert!(!carried.windows(8).any(|window| window == b"key-acme"));

    // A stranger's, one that was changed on its way, and what a site said under another's name.
    let second = share(&stranger, told("evil"), first).await.unwrap();
    let mut changed = carried.to_vec();
    changed[40] ^= 1;
    states
        .update(COMMON, changed.into(), second.number)
        .await
        .unwrap();
    let (site, runs) = (paris.clone(), SiteRuns::default());
    tokio::task::spawn_blocking(move || site.report(&name("paris"), &runs))
        .await
        .unwrap()
        .unwrap();
    let said = states.get("sites.paris").await.unwrap().unwrap();
    states.put("sites.tokyo", said).await.unwrap();
    let last = states.put(COMMON, carried).await.unwrap();
    let paris_runs = ConfigNews::Runs(name("paris"), SiteRuns::default());
    assert_eq!(next(&mut feed).await, paris_runs);
    assert!(matches!(next(&mut feed).await, ConfigNews::Common(version, _) if version.number == last));
}

#[tokio::test]
async fn servers_that_lost_everything_begin_anew() {
    let Some(Line::Nats(server, _folder)) = Line::nats() else {
        return;
    };
    let (_a, paris) = join(&server, "paris", &SECRET).await;
    let mut over = NONE;
    for text in ["a", "b", "c"] {
        over = share(&paris, told(text), over).await.unwrap();
    }
    let bucket = &paris.0.states;
    bucket.jetstream.delete_key_value(&bucket.name).await.unwrap();
    let anew = share(&paris, told("d"), over).await.unwrap();
    assert!(
        anew.number < over.number && anew > over,
        "{anew:?} after {over:?}"
    );
}
