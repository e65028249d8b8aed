//! Transfers on a sound path, and peers that do not keep to the rules.

use crate::world::*;
use portolan_base::Bytes;
use portolan_ports::{TransferError, Transport};
use portolan_transport::ClusterSecret;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_of_any_size_arrive_equal_over_one_lane_and_over_four() {
    for lanes in [1, 4] {
        let holder = start(config("holder"), Source::new(Conduct::Whole)).await;
        let mut config = config("asker");
        config.lanes = lanes;
        let asker = asker(config, holder.address()).await;
        for tokens in [0, 1, 63, 64, 65, 300, 3000] {
            let order = order(lanes.into(), tokens);
            let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
            let (pieces, report) = drain(&mut pull).await.unwrap();
            assert_eq!(
                report.bytes.0,
                pieces.iter().map(|p| p.bytes.len() as u64).sum::<u64>()
            );
            assert_eq!((report.prefill.computed, report.chunks_resent), (7, 0));
            assert_whole(&order, pieces);
        }
        until("all forgotten", Duration::from_secs(2), || {
            asker.live_transfers().0 == 0 && holder.live_transfers().1 == 0
        })
        .await;
        let reading = asker.link(&site("holder")).unwrap();
        assert!(
            reading.up && reading.received > Bytes(6 << 20) && reading.loss.0 == 0,
            "{reading:?}"
        );
        let unknown = asker.pull(&site("nowhere"), order(1, 1)).await;
        assert_eq!(unknown.unwrap_err(), TransferError::UnknownPeer(site("nowhere")));
        holder.shutdown().await;
        asker.shutdown().await;
        asker.shutdown().await;
        assert_eq!((holder.live_tasks(), asker.live_tasks()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_smaller_chunk_of_two_peers_is_used() {
    let mut small = config("holder");
    small.chunk = Bytes(1000);
    let holder = start(small, Source::new(Conduct::Whole)).await;
    let asker = asker(config("asker"), holder.address()).await;
    let order = order(5, 200);
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    assert_whole(&order, drain(&mut pull).await.unwrap().0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_transfers_share_the_lanes() {
    let holder = start(config("holder"), Source::new(Conduct::Whole)).await;
    let asker = Arc::new(asker(config("asker"), holder.address()).await);
    let mut running = tokio::task::JoinSet::new();
    for seed in 0..100 {
        let asker = Arc::clone(&asker);
        running.spawn(async move {
            let order = order(seed, 100 + seed as usize);
            let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
            assert_whole(&order, drain(&mut pull).await.unwrap().0);
        });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    until("all forgotten", Duration::from_secs(2), || {
        holder.live_transfers().1 == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_pull_reaches_the_source_at_once() {
    let source = Source::new(Conduct::UntilCancelled);
    let holder = start(config("holder"), Arc::clone(&source)).await;
    let asker = asker(config("asker"), holder.address()).await;
    let mut pull = asker.pull(&site("holder"), order(1, 10)).await.unwrap();
    pull.events.recv().await.unwrap().unwrap();
    let dropped = Instant::now();
    drop(pull);
    until("cancelled", Duration::from_secs(1), || {
        source.cancelled.lock().unwrap().is_some()
    })
    .await;
    let took = source.cancelled.lock().unwrap().unwrap() - dropped;
    println!("cancellation took {took:?}");
    assert!(took < Duration::from_millis(100), "{took:?}");
    until("forgotten", Duration::from_secs(1), || {
        holder.live_transfers().1 + asker.live_transfers().0 == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn computing_without_pieces_is_no_stall() {
    let holder = start(config("holder"), Source::new(Conduct::UntilCancelled)).await;
    let mut config = config("asker");
    config.stall = Duration::from_millis(400);
    let asker = asker(config, holder.address()).await;
    let mut pull = asker.pull(&site("holder"), order(1, 10)).await.unwrap();
    pull.events.recv().await.unwrap().unwrap();
    let more = tokio::time::timeout(Duration::from_millis(1200), pull.events.recv()).await;
    assert!(
        more.is_err(),
        "three stall times of computing ended with {more:?}"
    );
    assert!(asker.link(&site("holder")).unwrap().rtt > Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misconduct_of_a_source_ends_in_a_clean_error() {
    for (conduct, refused) in [
        (Conduct::Fails, true),
        (Conduct::Panics, true),
        (Conduct::NoManifest, true),
        (Conduct::WrongManifest, false),
        (Conduct::ForeignPiece, false),
        (Conduct::TwicePiece, false),
    ] {
        let holder = start(config("holder"), Source::new(conduct)).await;
        let asker = asker(config("asker"), holder.address()).await;
        let mut pull = asker.pull(&site("holder"), order(1, 300)).await.unwrap();
        let error = drain(&mut pull).await.unwrap_err();
        match error {
            TransferError::Refused { detail, .. } if refused => assert!(!detail.is_empty()),
            TransferError::Protocol { .. } if !refused => {}
            other => panic!("{other:?}"),
        }
        until("forgotten", Duration::from_secs(2), || {
            holder.live_transfers().1 + asker.live_transfers().0 == 0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_without_the_secret_gets_nothing() {
    let source = Source::new(Conduct::Whole);
    let holder = start(config("holder"), Arc::clone(&source)).await;
    let mut stranger = config("asker");
    stranger.secret = ClusterSecret::derive("guess");
    let stranger = asker(stranger, holder.address()).await;
    let error = stranger.pull(&site("holder"), order(1, 10)).await.unwrap_err();
    let TransferError::LinkDown { detail, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(detail.contains("secret"), "{detail}");
    assert_eq!(source.begun.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_of_another_site_is_noticed() {
    let wrong = start(config("elsewhere"), Source::new(Conduct::Whole)).await;
    let asker = asker(config("asker"), wrong.address()).await;
    let error = asker.pull(&site("holder"), order(1, 10)).await.unwrap_err();
    assert!(error.to_string().contains("elsewhere"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_port_is_dropped_and_harms_nobody() {
    let holder = start(config("holder"), Source::new(Conduct::Whole)).await;
    let seed = Seed::new(3);
    for i in 0..50usize {
        let mut stream = tokio::net::TcpStream::connect(holder.address()).await.unwrap();
        let mut garbage: Vec<u8> = (0..seed.below(300)).map(|_| seed.below(256) as u8).collect();
        if i % 2 == 0 {
            garbage.splice(0..0, *b"PTLNKV\x00\x01");
        }
        let _ = stream.write_all(&garbage).await;
        let _ = stream.shutdown().await;
        let closed = tokio::time::timeout(Duration::from_secs(2), stream.read_to_end(&mut Vec::new())).await;
        assert!(closed.is_ok(), "the listener keeps a connection of garbage open");
    }
    let asker = asker(config("asker"), holder.address()).await;
    let order = order(5, 200);
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    assert_whole(&order, drain(&mut pull).await.unwrap().0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipv6_works() {
    let mut six = config("holder");
    six.listen = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    if tokio::net::TcpListener::bind(six.listen).await.is_err() {
        println!("skipped: this machine has no ::1");
        return;
    }
    let holder = start(six, Source::new(Conduct::Whole)).await;
    let asker = asker(config("asker"), holder.address()).await;
    let order = order(5, 200);
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    assert_whole(&order, drain(&mut pull).await.unwrap().0);
}
