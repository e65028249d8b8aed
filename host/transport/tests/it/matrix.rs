//! The rest of the failure matrix, row by row; `faults.rs` and `chaos.rs` hold the others.

use crate::world::*;
use portolan_base::Bytes;
use portolan_ports::{PullEvent, TransferError, Transport};
use portolan_transport::fault_proxy::{Direction, Fault, FaultKind, FaultPlan, FaultProxy};
use portolan_transport::{SiteTransport, TransportConfig};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::Instant;

/// How often a peer is restarted: `PORTOLAN_RESTARTS=1000` for the long run.
fn restarts() -> u64 {
    std::env::var("PORTOLAN_RESTARTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(60)
}

fn open_sockets() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let sockets = links.filter(|link| link.to_string_lossy().starts_with("socket:"));
    // A descriptor may be a copy: what counts is the socket.
    sockets.collect::<std::collections::BTreeSet<_>>().len()
}

async fn holder_at(address: SocketAddr, seed: u64) -> SiteTransport {
    let mut config = config("holder");
    config.listen = address;
    let random = Arc::new(Seed::new(seed));
    SiteTransport::bind(config, Source::new(Conduct::Whole), random)
        .await
        .unwrap()
}

async fn came(asker: &SiteTransport, order: &portolan_ports::KvOrder) -> bool {
    let pulled = match asker.pull(&site("holder"), order.clone()).await {
        Ok(mut pull) => drain(&mut pull).await,
        Err(error) => Err(error),
    };
    match pulled {
        Ok((pieces, _)) => {
            assert_whole(order, pieces);
            true
        }
        Err(TransferError::LinkDown { .. } | TransferError::Stalled { .. }) => false,
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_restarted_many_times_leaves_as_many_sockets_as_it_has_lanes() {
    let before = open_sockets();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut holder = holder_at(any, 0).await;
    let mut address = holder.address();
    let asker = asker(config("asker"), address).await;
    let order = order(1, 5);
    let mut most = 0;
    for restart in 1..=restarts() {
        // A transfer that meets the restart ends in a clean error; the next one finds the peer.
        let begun = Instant::now();
        while !came(&asker, &order).await {
            assert!(
                begun.elapsed() < Duration::from_secs(5),
                "restart {restart}: no transfer"
            );
        }
        holder.shutdown().await;
        // Every third time it comes back at another port.
        let next = if restart % 3 == 0 { any } else { address };
        holder = holder_at(next, restart).await;
        if holder.address() != address {
            address = holder.address();
            asker.add_peer(site("holder"), vec![address]);
        }
        most = most.max(open_sockets() - before);
    }
    // Two listeners; four lanes with both ends in this process; as many again may be closing at any moment.
    println!("{} restarts: at most {most} sockets", restarts());
    assert!(most <= 2 + 4 * 2 * 2, "{most}");
    let begun = Instant::now();
    while open_sockets() - before != 2 + 4 * 2 {
        let left = open_sockets() - before;
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{left} sockets are open"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_accepts_and_says_nothing_is_a_link_down_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let mut kept = Vec::new();
    tokio::spawn(async move {
        while let Ok(connection) = silent.accept().await {
            kept.push(connection);
        }
    });
    let asker = asker(config("asker"), address).await;
    let begun = Instant::now();
    let error = asker.pull(&site("holder"), order(1, 10)).await.unwrap_err();
    assert!(matches!(error, TransferError::LinkDown { .. }), "{error:?}");
    assert!(
        begun.elapsed() < Duration::from_millis(800 + 500),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_of_a_connection_is_survived() {
    let cases = [
        (
            "half-close by the holder",
            Direction::ToClient,
            FaultKind::Truncate,
        ),
        (
            "half-close by the receiver",
            Direction::ToUpstream,
            FaultKind::Truncate,
        ),
        ("lost acknowledgements", Direction::ToUpstream, FaultKind::Swallow),
        (
            "duplicated bytes",
            Direction::ToClient,
            FaultKind::Duplicate(40_000),
        ),
        (
            "duplicated acknowledgements",
            Direction::ToUpstream,
            FaultKind::Duplicate(60),
        ),
        ("a reset amid a chunk", Direction::ToClient, FaultKind::Reset),
    ];
    for (what, direction, kind) in cases {
        let holder = start(config("holder"), Source::new(Conduct::Whole)).await;
        let plan = FaultPlan {
            shuffle: Duration::from_millis(30),
            seed: 7,
            ..FaultPlan::clear(holder.address())
        };
        let proxy = FaultProxy::start(plan).await.unwrap();
        // Past the hello: some 600 bytes of either side.
        let after = if direction == Direction::ToClient {
            200_000
        } else {
            900
        };
        proxy.inject(Fault {
            connection: None,
            direction,
            after,
            kind,
        });
        let mut config = config("asker");
        config.lanes = 2;
        let asker = asker(config, proxy.address()).await;
        let order = order(1, 2000);
        let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
        assert_whole(&order, drain(&mut pull).await.unwrap().0);
        assert_eq!(proxy.pending(), 0, "{what} never happened");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_set_ordered_twice_at_once_comes_twice_and_whole() {
    let holder = start(config("holder"), Source::new(Conduct::Whole)).await;
    let asker = asker(config("asker"), holder.address()).await;
    let order = order(1, 1500);
    let peer = site("holder");
    let mut one = asker.pull(&peer, order.clone()).await.unwrap();
    let mut two = asker.pull(&peer, order.clone()).await.unwrap();
    assert_ne!(one.transfer, two.transfer);
    let (one, two) = tokio::join!(drain(&mut one), drain(&mut two));
    assert_whole(&order, one.unwrap().0);
    assert_whole(&order, two.unwrap().0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_hangs_is_let_go_at_the_deadline() {
    let source = Source::new(Conduct::UntilCancelled);
    let holder = start(config("holder"), Arc::clone(&source)).await;
    let mut impatient = config("asker");
    impatient.deadline = Duration::from_millis(500);
    let asker = asker(impatient, holder.address()).await;
    let begun = Instant::now();
    let mut pull = asker.pull(&site("holder"), order(1, 10)).await.unwrap();
    let error = drain(&mut pull).await.map(|_| "whole").unwrap_err();
    assert!(matches!(error, TransferError::Stalled { .. }), "{error:?}");
    let took = begun.elapsed();
    assert!((500..3000).contains(&took.as_millis()), "{took:?}");
    until("the source is told", Duration::from_secs(1), || {
        source.cancelled.lock().unwrap().is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_consumer_gets_everything() {
    let holder = start(config("holder"), Source::new(Conduct::Whole)).await;
    let mut tight = config("asker");
    tight.window = Bytes(256 << 10);
    let asker = asker(tight, holder.address()).await;
    let order = order(3, 1000);
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    let mut got = Vec::new();
    while let Some(event) = pull.events.recv().await {
        if let PullEvent::Piece(piece) = event.unwrap() {
            // One megabyte a second.
            tokio::time::sleep(Duration::from_micros(piece.bytes.len() as u64)).await;
            got.push(piece);
        }
    }
    assert_whole(&order, got);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_dropped_at_any_moment_leaves_nothing() {
    let holder = start(config("holder"), Source::new(Conduct::Whole)).await;
    let asker = asker(config("asker"), holder.address()).await;
    for events in 0..12 {
        let mut pull = asker.pull(&site("holder"), order(events, 800)).await.unwrap();
        for _ in 0..events {
            pull.events.recv().await.unwrap().unwrap();
        }
        drop(pull);
    }
    until("nothing is left", Duration::from_secs(3), || {
        asker.live_transfers().0 + holder.live_transfers().1 == 0 && asker.memory_reserved() == Bytes(0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_link_costs_next_to_nothing() {
    let holder = start(
        TransportConfig {
            stall: Duration::from_secs(2),
            ..config("holder")
        },
        Source::new(Conduct::Whole),
    )
    .await;
    let patient = TransportConfig {
        stall: Duration::from_secs(2),
        ..config("asker")
    };
    let asker = asker(patient, holder.address()).await;
    let mut pull = asker.pull(&site("holder"), order(1, 10)).await.unwrap();
    drain(&mut pull).await.unwrap();
    let seconds = 5;
    let mut least = u64::MAX;
    // The kernel counts whole ticks, and on a busy machine some of its neighbours': an idle link's own show every time.
    for _ in 0..3 {
        let before = cpu_ticks();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        least = least.min(cpu_ticks() - before);
        println!("at most {least} ticks of 10 ms in {seconds} s, both ends");
        if least <= seconds {
            return;
        }
    }
    panic!("more than a hundredth of a core: {least} ticks in {seconds} s");
}

/// Processor time of this process, in hundredths of a second.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_ascii_whitespace()
        .collect();
    fields[11..13]
        .iter()
        .map(|field| field.parse::<u64>().unwrap())
        .sum()
}

/// One thread, so that blocking it stops both ends: as SIGSTOP, a paused machine or a clock that jumps does.
#[tokio::test]
async fn a_pause_of_the_process_is_no_stall() {
    let holder = start(config("holder"), Source::new(Conduct::Whole)).await;
    let plan = FaultPlan {
        rate: Some(portolan_base::BitsPerSecond(40_000_000)),
        ..FaultPlan::clear(holder.address())
    };
    let proxy = FaultProxy::start(plan).await.unwrap();
    let asker = asker(config("asker"), proxy.address()).await;
    let order = order(1, 1500);
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    pull.events.recv().await.unwrap().unwrap();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        std::thread::sleep(Duration::from_millis(1200));
    }
    let mut pieces = Vec::new();
    loop {
        match pull.events.recv().await.unwrap().unwrap() {
            PullEvent::Piece(piece) => pieces.push(piece),
            PullEvent::Done(_) => break,
            PullEvent::Manifest(_) => panic!("a second manifest"),
        }
    }
    assert_whole(&order, pieces);
}
