//! Three servers that keep the stream together: one may be lost, two may not, and nothing acknowledged is.

use super::*;
use std::net::TcpListener;
use tempfile::TempDir;

/// How long three servers may take to agree on who leads, on a machine with other work.
const ELECTED: Duration = Duration::from_secs(60);

/// Servers of one cluster on this machine.
struct Cluster {
    servers: Vec<NatsServer>,
    _folder: TempDir,
}

impl Cluster {
    /// None, said aloud, where there is no `nats-server`.
    fn start() -> Option<Self> {
        // Says that it is missing, and whether that is allowed.
        Line::nats()?;
        let folder = tempfile::tempdir().unwrap();
        let held: Vec<_> = (0..3)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let ports: Vec<u16> = held.iter().map(|l| l.local_addr().unwrap().port()).collect();
        drop(held);
        let routes: Vec<String> = ports
            .iter()
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .collect();
        let start = |(number, port): (usize, &u16)| {
            let own = folder.path().join(number.to_string());
            std::fs::create_dir(&own).unwrap();
            let more = format!(
                "server_name: n{number}\ncluster {{name: three, listen: '127.0.0.1:{port}', routes: [{}]}}",
                routes.join(", ")
            );
            NatsServer::start(&own, &more).unwrap()
        };
        let servers = ports.iter().enumerate().map(start).collect();
        Some(Self {
            servers,
            _folder: folder,
        })
    }

    /// A site that knows all three, and its stream, kept by all three.
    async fn control(&self, site: &str) -> (NatsBus, NatsControl) {
        let config = NatsConfig {
            servers: self.servers.iter().map(NatsServer::address).collect(),
            ..config(&self.servers[0])
        };
        let bus = NatsBus::connect(&config, &topology(), &[name(site)], &SECRET)
            .await
            .unwrap();
        wait("the bus is connected", || bus.is_connected()).await;
        let control = NatsControl::on(&bus, 3);
        (bus, control)
    }
}

/// Appends until it is acknowledged; how long that took.
async fn acknowledged(control: &NatsControl, event: ControlEvent) -> (Sequence, Duration) {
    let began = Instant::now();
    loop {
        match control.append(event.clone()).await {
            Ok(sequence) => return (sequence, began.elapsed()),
            Err(error) => assert!(began.elapsed() < ELECTED, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// All orders up to this one. Followed anew where it breaks off: servers that returned agree once more on who leads.
async fn all_until(control: &NatsControl, last: &str) -> Vec<(String, u64)> {
    let began = Instant::now();
    'anew: loop {
        assert!(began.elapsed() < ELECTED, "the stream cannot be followed");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let Ok(mut followed) = control.follow(None).await else {
            continue;
        };
        let mut there = Vec::new();
        loop {
            match tokio::time::timeout(ELECTED / 4, followed.next()).await {
                Ok(Ok(entry)) => match entry.event {
                    ControlEvent::Invalidation(order) if order.id == last => return there,
                    ControlEvent::Invalidation(order) => there.push((order.id, entry.sequence.0)),
                    _ => {}
                },
                Ok(Err(_)) | Err(_) => continue 'anew,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_servers_one_may_be_lost_and_nothing_acknowledged_is() {
    let Some(mut cluster) = Cluster::start() else {
        return;
    };
    let (_a, paris) = cluster.control("paris").await;
    let (_b, virginia) = cluster.control("virginia").await;
    let mut kept = Vec::new();
    let (_, took) = acknowledged(&paris, order("0")).await;
    println!("the first order was acknowledged after {took:.1?}");
    for n in 1..20 {
        kept.push((n, acknowledged(&paris, order(&n.to_string())).await.0));
    }
    for lost in 0..3 {
        cluster.servers[lost].kill();
        let n = 20 + 10 * lost;
        let (sequence, took) = acknowledged(&paris, order(&n.to_string())).await;
        println!("without server {lost}: acknowledged after {took:.1?}");
        kept.push((n, sequence));
        for n in n + 1..n + 10 {
            kept.push((n, acknowledged(&virginia, order(&n.to_string())).await.0));
        }
        cluster.servers[lost].restart().unwrap();
        acknowledged(&paris, beat(n as u64)).await;
        // The one that came back has to have caught up before the next one goes.
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    cluster.servers[0].kill();
    cluster.servers[1].kill();
    let refused = paris.append(order("alone")).await;
    assert!(
        matches!(refused, Err(ControlError::NotAcknowledged(_))),
        "one of three is no majority: {refused:?}"
    );
    cluster.servers[0].restart().unwrap();
    cluster.servers[1].restart().unwrap();
    acknowledged(&virginia, order("back")).await;
    let there = all_until(&virginia, "back").await;
    for (n, sequence) in kept {
        assert!(
            there.contains(&(n.to_string(), sequence.0)),
            "order {n} at {sequence}: {there:?}"
        );
    }
}
