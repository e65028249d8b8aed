//! One fault at a time, each with its named consequence.

use crate::world::*;
use portolan_base::{BitsPerSecond, Bytes};
use portolan_ports::{PullEvent, TransferError, Transport};
use portolan_transport::fault_proxy::{Direction, Fault, FaultKind, FaultPlan, FaultProxy};
use portolan_transport::{SiteTransport, TransportConfig};
use std::time::Duration;
use tokio::time::Instant;

struct World {
    holder: SiteTransport,
    proxy: FaultProxy,
    asker: SiteTransport,
}

async fn world(asker_config: TransportConfig, rate: Option<u64>) -> World {
    let mut holder_config = config("holder");
    holder_config.stall = asker_config.stall;
    let holder = start(holder_config, Source::new(Conduct::Whole)).await;
    let plan = FaultPlan {
        rate: rate.map(BitsPerSecond),
        ..FaultPlan::clear(holder.address())
    };
    let proxy = FaultProxy::start(plan).await.unwrap();
    let asker = asker(asker_config, proxy.address()).await;
    World { holder, proxy, asker }
}

/// 8 MiB of KV and the rate at which it takes about two seconds.
const TOKENS: usize = 4 << 10;
const SLOW: Option<u64> = Some(40_000_000);

fn to_client(connection: Option<usize>, after: u64, kind: FaultKind) -> Fault {
    Fault {
        connection,
        direction: Direction::ToClient,
        after,
        kind,
    }
}

fn one_lane() -> TransportConfig {
    let mut config = config("asker");
    config.lanes = 1;
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_a_payload_is_sent_again_once() {
    let w = world(one_lane(), None).await;
    // Hello, manifest and first chunk head take a few hundred bytes; 500,000 lies amid the chunks' payloads.
    w.proxy.inject(to_client(None, 500_000, FaultKind::FlipBit(3)));
    let order = order(1, 1000);
    let mut pull = w.asker.pull(&site("holder"), order.clone()).await.unwrap();
    let (pieces, report) = drain(&mut pull).await.unwrap();
    assert_eq!((w.proxy.pending(), report.chunks_resent), (0, 1));
    assert_whole(&order, pieces);
    assert!(w.asker.link(&site("holder")).unwrap().loss.0 > 0);
    assert_eq!(w.proxy.accepted(), 1, "the lane was kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_anywhere_near_a_head_costs_a_lane_at_most() {
    // Walks a flip over the first bytes after the hello: head and fields of the manifest and of a chunk.
    for after in (420..900).step_by(23) {
        let w = world(one_lane(), None).await;
        w.proxy
            .inject(to_client(Some(0), after, FaultKind::FlipBit((after % 8) as u8)));
        let order = order(1, 100);
        let mut pull = w.asker.pull(&site("holder"), order.clone()).await.unwrap();
        let (pieces, _) = drain(&mut pull).await.unwrap();
        assert_eq!(w.proxy.pending(), 0, "byte {after} never came");
        assert_whole(&order, pieces);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_that_stays_damaged_ends_the_transfer_and_the_second_time_its_set_is_quarantined() {
    let mut config = one_lane();
    // The whole piece is one chunk, so every resend can be hit.
    config.chunk = Bytes(4 << 20);
    let mut holder_config = crate::world::config("holder");
    holder_config.chunk = Bytes(4 << 20);
    let holder = start(holder_config, Source::new(Conduct::Whole)).await;
    let proxy = FaultProxy::start(FaultPlan::clear(holder.address()))
        .await
        .unwrap();
    // A hit every 50 kB: the large pieces are hit whenever they come again. A hit on one of the rare heads between them
    // costs the connection, so the next ones are hit as well.
    for (connection, hit) in (0..20).flat_map(|connection| (1..400).map(move |hit| (connection, hit))) {
        proxy.inject(to_client(
            Some(connection),
            3_000 + hit * 50_021,
            FaultKind::FlipBit(1),
        ));
    }
    let asker = asker(config, proxy.address()).await;
    let order = order(1, 1000);
    for failure in 1..=2 {
        assert!(asker.quarantine().is_empty(), "after {} failures", failure - 1);
        let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
        let error = drain(&mut pull).await.map(|_| "it came whole").unwrap_err();
        assert!(
            matches!(error, TransferError::Damaged { attempts: 4, .. }),
            "{error:?}"
        );
    }
    let again = asker.pull(&site("holder"), order.clone()).await.unwrap_err();
    assert!(matches!(again, TransferError::Quarantined { .. }), "{again:?}");
    let listed = asker.quarantine();
    let [set] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!(
        (set.peer.as_str(), set.tenant.as_str(), set.evidence.len()),
        ("holder", "t", 2)
    );
    for evidence in &set.evidence {
        assert!(
            evidence.chunk.is_some() && evidence.layer.is_some(),
            "{evidence:?}"
        );
        assert_ne!(evidence.expected_checksum, evidence.found_checksum);
    }
    assert_eq!(asker.link(&site("holder")).unwrap().quarantined, 1);
    // Only this set: other tokens are asked for as ever.
    asker
        .pull(&site("holder"), crate::world::order(2, 10))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_lane_costs_only_what_was_not_acknowledged() {
    let w = world(config("asker"), SLOW).await;
    w.proxy.inject(to_client(None, 1_500_000, FaultKind::Reset));
    let order = order(1, TOKENS);
    let mut pull = w.asker.pull(&site("holder"), order.clone()).await.unwrap();
    let (pieces, report) = drain(&mut pull).await.unwrap();
    assert_eq!(w.proxy.pending(), 0, "the reset never happened");
    let chunks = report.bytes.0.div_ceil(64 << 10);
    println!(
        "{} of about {chunks} chunks sent again after a reset",
        report.chunks_resent
    );
    assert!(
        report.chunks_resent >= 1,
        "the chunk that was cut off must come again"
    );
    assert!(
        u64::from(report.chunks_resent) < chunks / 2,
        "{} of {chunks}",
        report.chunks_resent
    );
    assert_whole(&order, pieces);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_cut_of_all_lanes_is_survived() {
    let w = world(config("asker"), SLOW).await;
    let order = order(1, TOKENS);
    let mut pull = w.asker.pull(&site("holder"), order.clone()).await.unwrap();
    let first = pull.events.recv().await.unwrap().unwrap();
    assert!(matches!(first, PullEvent::Manifest(_)));
    w.proxy.cut();
    tokio::time::sleep(Duration::from_millis(200)).await;
    w.proxy.heal();
    let mut pieces = Vec::new();
    loop {
        match pull.events.recv().await.unwrap().unwrap() {
            PullEvent::Piece(piece) => pieces.push(piece),
            PullEvent::Done(report) => {
                break println!("{} chunks sent again after a cut", report.chunks_resent);
            }
            PullEvent::Manifest(_) => panic!("a second manifest"),
        }
    }
    assert_whole(&order, pieces);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_cut_for_good_are_a_link_down() {
    let w = world(config("asker"), SLOW).await;
    let mut pull = w.asker.pull(&site("holder"), order(1, TOKENS)).await.unwrap();
    pull.events.recv().await.unwrap().unwrap();
    let cut = Instant::now();
    w.proxy.cut();
    let error = drain_after_manifest(&mut pull).await;
    println!("link down after {:?}: {error}", cut.elapsed());
    assert!(matches!(error, TransferError::LinkDown { .. }), "{error:?}");
    assert!(
        cut.elapsed() < Duration::from_millis(800 + 500),
        "{:?}",
        cut.elapsed()
    );
    assert!(!w.asker.link(&site("holder")).unwrap().up);
    let again = w.asker.pull(&site("holder"), order(1, 1)).await;
    assert!(matches!(again, Err(TransferError::LinkDown { .. })), "{again:?}");
    // The holder forgets the session, its transfers with it.
    until("forgotten", Duration::from_secs(4), || {
        w.holder.live_transfers().1 == 0
    })
    .await;
    w.proxy.heal();
    let order = order(2, 10);
    let mut pull = w.asker.pull(&site("holder"), order.clone()).await.unwrap();
    assert_whole(&order, drain(&mut pull).await.unwrap().0);
}

async fn drain_after_manifest(pull: &mut portolan_ports::Pull) -> TransferError {
    loop {
        match pull.events.recv().await.expect("an error must come") {
            Ok(PullEvent::Done(_)) => panic!("the transfer was too quick for the fault"),
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_on_all_lanes_is_a_stall() {
    let w = world(config("asker"), SLOW).await;
    let mut pull = w.asker.pull(&site("holder"), order(1, TOKENS)).await.unwrap();
    pull.events.recv().await.unwrap().unwrap();
    let frozen = Instant::now();
    w.proxy.freeze();
    let error = drain_after_manifest(&mut pull).await;
    println!("stalled after {:?}: {error}", frozen.elapsed());
    assert!(matches!(error, TransferError::Stalled { .. }), "{error:?}");
    assert!(
        frozen.elapsed() < Duration::from_millis(800 + 500),
        "{:?}",
        frozen.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_lane_is_replaced() {
    let w = world(config("asker"), None).await;
    w.proxy.inject(to_client(None, 1_000_000, FaultKind::Swallow));
    let order = order(1, TOKENS);
    let mut pull = w.asker.pull(&site("holder"), order.clone()).await.unwrap();
    let (pieces, report) = drain(&mut pull).await.unwrap();
    println!(
        "{} chunks sent again after a half-open lane",
        report.chunks_resent
    );
    assert_eq!(w.proxy.pending(), 0);
    assert_whole(&order, pieces);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_is_noticed_quickly() {
    let w = world(config("asker"), SLOW).await;
    // Without the proxy the dials are refused, which is a firm answer.
    let direct = asker(config("direct"), w.holder.address()).await;
    let mut pulls = [
        w.asker.pull(&site("holder"), order(1, TOKENS)).await.unwrap(),
        direct.pull(&site("holder"), order(1, 64 << 10)).await.unwrap(),
    ];
    for pull in &mut pulls {
        pull.events.recv().await.unwrap().unwrap();
    }
    let killed = Instant::now();
    w.holder.shutdown().await;
    assert_eq!(w.holder.live_tasks(), 0);
    for (pull, limit) in pulls.iter_mut().rev().zip([1300, 1300]) {
        let error = drain_after_manifest(pull).await;
        println!("killed holder: {error} after {:?}", killed.elapsed());
        // Behind the proxy, bytes in its queue can keep a lane open a little longer: then it is a stall.
        let clean = matches!(
            error,
            TransferError::LinkDown { .. } | TransferError::Stalled { .. }
        );
        assert!(clean, "{error:?}");
        assert!(
            killed.elapsed() < Duration::from_millis(limit),
            "{:?}",
            killed.elapsed()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_holder_ends_old_transfers_and_serves_new_ones() {
    let w = world(config("asker"), None).await;
    let address = w.holder.address();
    let asker = asker(config("direct"), address).await;
    let mut pull = asker.pull(&site("holder"), order(1, 64 << 10)).await.unwrap();
    pull.events.recv().await.unwrap().unwrap();
    w.holder.shutdown().await;
    let mut again = config("holder");
    again.listen = address;
    let source = Source::new(Conduct::Whole);
    let seed = std::sync::Arc::new(Seed::new(99));
    let _holder = SiteTransport::bind(again, source, seed).await.unwrap();
    let error = drain_after_manifest(&mut pull).await;
    let clean = matches!(
        error,
        TransferError::LinkDown { .. } | TransferError::Stalled { .. }
    );
    assert!(clean, "{error:?}");
    let order = order(2, 10);
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    assert_whole(&order, drain(&mut pull).await.unwrap().0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_proxy_delays_without_throttling_and_throttles_to_the_rate() {
    let holder = start(config("holder"), Source::new(Conduct::Whole)).await;
    let delay = Duration::from_millis(50);
    let plan = FaultPlan {
        one_way_delay: delay,
        ..FaultPlan::clear(holder.address())
    };
    let proxy = FaultProxy::start(plan).await.unwrap();
    let asker = asker(config("asker"), proxy.address()).await;
    let order = order(1, TOKENS);
    let begun = Instant::now();
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    drain(&mut pull).await.unwrap();
    println!("8 MiB at 100 ms RTT in {:?}, hello included", begun.elapsed());
    assert!(
        begun.elapsed() < Duration::from_millis(1500),
        "{:?}",
        begun.elapsed()
    );
    until("an RTT", Duration::from_secs(2), || {
        asker.rtt_min(&site("holder")).unwrap() >= delay * 2
    })
    .await;
    assert!(asker.rtt_min(&site("holder")).unwrap() < delay * 3);

    let w = world(config("asker"), SLOW).await;
    let begun = Instant::now();
    let mut pull = w.asker.pull(&site("holder"), order).await.unwrap();
    let (_, report) = drain(&mut pull).await.unwrap();
    let ideal = report.bytes.time_at(BitsPerSecond(40_000_000));
    println!(
        "{} at 40 Mbit/s in {:?}, ideal {ideal:?}",
        report.bytes,
        begun.elapsed()
    );
    assert!(begun.elapsed() > ideal.mul_f64(0.95) && begun.elapsed() < ideal.mul_f64(1.4));
}
