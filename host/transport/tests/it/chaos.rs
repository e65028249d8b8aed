//! Random schedules of faults: every transfer ends whole and equal, or in a clean error.

use crate::world::*;
use portolan_base::Bytes;
use portolan_ports::{TransferError, Transport};
use portolan_transport::fault_proxy::{Direction, Fault, FaultKind, FaultPlan, FaultProxy};
use portolan_transport::{Coding, Compression};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// How many: `PORTOLAN_SCHEDULES=10000` for the long run, `PORTOLAN_SCHEDULE_FROM=N` to begin elsewhere.
fn schedules() -> (u64, u64) {
    let number = |name, default| {
        std::env::var(name)
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(default)
    };
    (
        number("PORTOLAN_SCHEDULE_FROM", 0),
        number("PORTOLAN_SCHEDULES", 200),
    )
}

/// Schedules under way at once: most wait for a timeout most of the time.
const ABREAST: usize = 8;

fn fault(seed: &Seed, bytes: u64) -> Fault {
    let kind = match seed.below(12) {
        10 => FaultKind::Duplicate(1 + seed.below(5000) as usize),
        11 => FaultKind::Stall(Duration::from_millis(seed.below(60))),
        0..5 => FaultKind::FlipBit(seed.below(8) as u8),
        5 | 6 => FaultKind::Reset,
        7 => FaultKind::Truncate,
        8 => FaultKind::Stall(Duration::from_millis(seed.below(600))),
        _ => FaultKind::Swallow,
    };
    let to_client = seed.below(4) > 0;
    let (direction, range) = if to_client {
        (Direction::ToClient, bytes)
    } else {
        (Direction::ToUpstream, 3000)
    };
    let connection = Some(seed.below(4) as usize).filter(|_| seed.below(3) > 0);
    Fault {
        connection,
        direction,
        after: seed.below(range),
        kind,
    }
}

async fn schedule(number: u64) -> &'static str {
    let seed = Seed::new(number);
    let mut holder_config = config("holder");
    holder_config.chunk = Bytes(1 << (10 + seed.below(7)));
    holder_config.stall = Duration::from_millis(300);
    holder_config.compression = match seed.below(4) {
        0 => Compression::Always(Coding::Lz4),
        1 => Compression::Always(Coding::Zstd),
        _ => Compression::WhenItPays,
    };
    let holder = start(holder_config.clone(), Source::new(Conduct::Whole)).await;
    let jitter = Duration::from_millis(seed.below(3));
    let plan = FaultPlan {
        jitter,
        shuffle: Duration::from_millis(seed.below(20)),
        seed: number,
        ..FaultPlan::clear(holder.address())
    };
    let proxy = FaultProxy::start(plan).await.unwrap();
    let tokens = seed.below(700) as usize;
    let lanes = 1 + seed.below(4);
    for _ in 0..=seed.below(5) {
        proxy.inject(fault(&seed, (tokens as u64 * 2 * 1024 + 70_000) / lanes + 600));
    }
    let mut asker_config = config("asker");
    asker_config.stall = Duration::from_millis(300);
    asker_config.lanes = lanes as u16;
    asker_config.window = Bytes(1 << (14 + seed.below(8)));
    asker_config.memory = Bytes(asker_config.window.0 * (1 + seed.below(4)));
    let asker = asker(asker_config, proxy.address()).await;
    let compressible = COMPRESSIBLE * u32::from(seed.below(3) == 0);
    let order = order(number as u32 + compressible, tokens);
    // One in ten is let go of at some moment.
    let patience = Some(Duration::from_millis(seed.below(400))).filter(|_| seed.below(10) == 0);
    let result = match asker.pull(&site("holder"), order.clone()).await {
        Ok(mut pull) if patience.is_some() => {
            let drained = tokio::time::timeout(patience.unwrap_or_default(), drain(&mut pull)).await;
            drained.unwrap_or(Err(TransferError::Cancelled))
        }
        Ok(mut pull) => {
            let limit = Duration::from_secs(20);
            tokio::time::timeout(limit, drain(&mut pull))
                .await
                .unwrap_or_else(|_| panic!("{number} hangs"))
        }
        Err(error) => Err(error),
    };
    let verdict = match result {
        Ok((pieces, report)) => {
            assert_whole(&order, pieces);
            if report.chunks_resent > 0 {
                "whole after resends"
            } else {
                "whole"
            }
        }
        Err(TransferError::LinkDown { .. }) => "link down",
        Err(TransferError::Stalled { .. }) => "stalled",
        Err(TransferError::Damaged { .. }) => "damaged",
        Err(TransferError::Cancelled) => "let go of",
        Err(other) => panic!("schedule {number}: {other:?}"),
    };
    let ended = Instant::now();
    let left = || {
        let (received, served) = (asker.live_transfers().0, holder.live_transfers().1);
        (received, served, asker.memory_reserved().0)
    };
    while left() != (0, 0, 0) {
        let left = left();
        assert!(
            ended.elapsed() < Duration::from_secs(5),
            "schedule {number}, {verdict}: {left:?} transfers received, served and bytes reserved are left"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for site in [&asker, &holder] {
        site.shutdown().await;
        assert_eq!(site.live_tasks(), 0);
    }
    proxy.shutdown().await;
    assert_eq!(proxy.open(), 0);
    verdict
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_never_bring_a_wrong_byte_or_leave_anything_behind() {
    let mut verdicts = BTreeMap::<_, u32>::new();
    let mut running = tokio::task::JoinSet::new();
    let (from, count) = schedules();
    for number in from..from + count {
        if running.len() == ABREAST {
            *verdicts
                .entry(running.join_next().await.unwrap().unwrap())
                .or_default() += 1;
        }
        running.spawn(schedule(number));
    }
    while let Some(verdict) = running.join_next().await {
        *verdicts.entry(verdict.unwrap()).or_default() += 1;
    }
    println!("{count} schedules from {from}: {verdicts:?}");
    let whole = verdicts
        .iter()
        .filter(|(verdict, _)| verdict.starts_with("whole"))
        .map(|(_, n)| n)
        .sum::<u32>();
    assert!(
        u64::from(whole) > count * 55 / 100,
        "most schedules can be survived: {verdicts:?}"
    );
}
