//! What agents tell each other, over each kind of bus: sites join, leave, die and return; messages that come twice or not
//! at all change nothing but when something is known.

use super::*;
use crate::bus::conformance::{Line, wait};
use portolan_ports::{MemberState, Service};

const VIRGINIA: usize = 1;

/// Says everything twice, and old things again.
struct Twice {
    bus: Arc<dyn Bus>,
    old: Mutex<Vec<BusMessage>>,
}

impl Bus for Twice {
    fn publish(&self, message: BusMessage) {
        let mut old = self.old.lock();
        self.bus.publish(message.clone());
        self.bus.publish(message.clone());
        // The tenth message from now on, out of its place.
        old.push(message);
        if old.len() > 10 {
            self.bus.publish(old.remove(0));
        }
    }

    fn subscribe(&self) -> Receiver<BusMessage> {
        self.bus.subscribe()
    }
}

fn virginia_at(site: &Site) -> (MemberState, u64, bool) {
    let member = site.chart.members()[VIRGINIA];
    let ready = site.chart.view().instances[VIRGINIA].standing.is_ready();
    (member.state, member.incarnation, ready)
}

async fn see(paris: &Site, what: (MemberState, u64, bool)) {
    wait(&format!("{what:?}"), || virginia_at(paris) == what).await;
}

async fn sites_join_leave_die_and_return(line: Option<Line>) {
    let Some(line) = line else { return };
    let (at_paris, at_virginia) = (line.join("paris").await, line.join("virginia").await);
    // The shortest lease a configuration takes.
    let lease = Duration::from_secs(2);
    let paris = start_with(&at_paris, "paris", 1, lease);
    assert_eq!(virginia_at(&paris), (MemberState::Unheard, 0, false));
    assert_eq!(paris.chart.load_ages(), [Some(Duration::ZERO), None]);
    let virginia = start_with(&at_virginia, "virginia", 10, lease);
    see(&paris, (MemberState::Up, 10, true)).await;
    let age = paris.chart.load_ages()[VIRGINIA].unwrap();
    assert!(age < lease, "{age:?}");

    virginia
        .chart
        .set_service(&instance(), Service::Draining)
        .unwrap();
    see(&paris, (MemberState::Draining, 10, false)).await;
    virginia.chart.set_service(&instance(), Service::Open).unwrap();
    wait("it is back", || virginia_at(&paris).0 == MemberState::Up).await;

    virginia.farewell.say();
    let left = Instant::now();
    see(&paris, (MemberState::Left, 10, false)).await;
    assert!(
        left.elapsed() < lease,
        "its routes vanish at once: {:?}",
        left.elapsed()
    );
    drop(virginia);

    let virginia = start_with(&at_virginia, "virginia", 11, lease);
    wait("it returns", || virginia_at(&paris).0 == MemberState::Up).await;
    drop(virginia);
    see(&paris, (MemberState::Silent, 11, false)).await;
    let held = paris.chart.members()[VIRGINIA].age.unwrap();
    assert!(held >= lease, "its routes vanish with its lease: {held:?}");
    let _virginia = start_with(&at_virginia, "virginia", 12, lease);
    wait("and again", || virginia_at(&paris).0 == MemberState::Up).await;
}

async fn messages_that_come_twice_and_late_do_no_harm(line: Option<Line>) {
    let Some(line) = line else { return };
    let (at_paris, at_virginia) = (line.join("paris").await, line.join("virginia").await);
    let twice: Arc<dyn Bus> = Arc::new(Twice {
        bus: at_virginia,
        old: Mutex::default(),
    });
    let (paris, virginia) = (start(&at_paris, "paris", 1), start(&twice, "virginia", 10));
    let tokens: Vec<u32> = (0..1024).map(|n| 900_000 + n * 41).collect();
    let chain = BlockHash::chain(&key(), &tokens);
    compute(&virginia, &tokens).await;
    assert_eq!(held(&paris, &chain, 1024).await, 1024);
    // Long enough for late messages to have come.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(held(&paris, &chain, 1024).await, 1024);
    assert_eq!(virginia_at(&paris), (MemberState::Up, 10, true));
}

async fn what_was_computed_during_a_cut_is_found_after_it(line: Option<Line>) {
    let Some(mut line) = line else { return };
    let (at_paris, at_virginia) = (line.join("paris").await, line.join("virginia").await);
    let (paris, virginia) = (start(&at_paris, "paris", 1), start(&at_virginia, "virginia", 10));
    let tokens = |seed: u32| -> Vec<u32> { (0..512).map(|n| seed + n * 43).collect() };
    let chain = |tokens: &[u32]| BlockHash::chain(&key(), tokens);
    let (before, during) = (tokens(100_000), tokens(500_000));
    compute(&virginia, &before).await;
    assert_eq!(held(&paris, &chain(&before), 512).await, 512);
    line.cut();
    compute(&virginia, &during).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    line.mend();
    wait("both are known", || {
        let held = |tokens: &[u32]| paris.chart.held(&model(), &chain(tokens))[VIRGINIA];
        (held(&before), held(&during)) == (512, 512)
    })
    .await;
    wait("it is taken to be there", || {
        virginia_at(&paris).0 == MemberState::Up
    })
    .await;
}

macro_rules! suite {
    ($($test:ident),+ $(,)?) => {
        mod embedded {
            use super::Line;
            $(#[tokio::test]
            async fn $test() {
                super::$test(Line::embedded()).await;
            })+
        }
        mod nats {
            use super::Line;
            $(#[tokio::test]
            async fn $test() {
                super::$test(Line::nats()).await;
            })+
        }
    };
}

suite!(
    sites_join_leave_die_and_return,
    messages_that_come_twice_and_late_do_no_harm,
    what_was_computed_during_a_cut_is_found_after_it,
);
