//! KV through NIXL's library, in two processes of this program: `make check-nixl`.

use crate::world::*;
use portolan_base::Bytes;
use portolan_ports::Transport;
use portolan_transport::fault_proxy::{Direction, FaultPlan, FaultProxy};
use portolan_transport::{
    Backend, Carrier, CarrierError, NixlCarrier, NixlConfig, PeerLink, PlainTcp, SiteTransport, TcpInfo,
    TransportParts,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// 8 MiB of KV.
const TOKENS: usize = 4 << 10;

/// Says that this process is the one that uses the library.
const WORKER: &str = "PORTOLAN_NIXL_WORKER";

/// This program as a NIXL process: a test that does nothing unless it was started as one.
#[test]
fn worker() {
    if std::env::var_os(WORKER).is_none() {
        return;
    }
    let mut args = std::env::args().rev();
    let (name, memory) = (args.next().unwrap(), args.next().unwrap());
    portolan_transport::nixl_worker(&PathBuf::from(memory), &name).unwrap();
}

fn config_of(libraries: bool) -> NixlConfig {
    // The worker's own variable; tests of this binary that are not started as one never read it.
    let packages = PathBuf::from(std::env::var("PORTOLAN_NIXL").expect("run it by `make check-nixl`"));
    let folder = packages.join(".nixl_cu12.mesonpy.libs");
    let wrapper = "exec env PORTOLAN_NIXL_WORKER=1 \"$0\" --exact nixl::worker --nocapture \"$@\"";
    let this = std::env::current_exe().unwrap().display().to_string();
    NixlConfig {
        program: PathBuf::from("/bin/sh"),
        arguments: vec!["-c".into(), wrapper.into(), this],
        libraries: libraries.then(|| folder.clone()),
        plugins: libraries.then(|| folder.join("plugins")),
        memory: Bytes(16 << 20),
    }
}

fn carrier(seed: u64, libraries: bool) -> Arc<NixlCarrier> {
    Arc::new(NixlCarrier::new(config_of(libraries), Arc::new(Seed::new(seed))))
}

struct Pair {
    _holder: SiteTransport,
    proxy: FaultProxy,
    asker: SiteTransport,
}

async fn pair(holding: &Arc<NixlCarrier>, asking: &Arc<NixlCarrier>) -> Pair {
    let parts = |source, seed, carrier: &Arc<NixlCarrier>| TransportParts {
        source,
        random: Arc::new(Seed::new(seed)),
        wiring: Arc::new(PlainTcp),
        probe: Arc::new(TcpInfo),
        landing: None,
        carrier: Some(Arc::clone(carrier) as Arc<dyn Carrier>),
    };
    let mut slow = config("holder");
    slow.stall = Duration::from_secs(2);
    let holder = SiteTransport::bind_parts(slow, parts(Source::new(Conduct::Whole), 21, holding))
        .await
        .unwrap();
    let proxy = FaultProxy::start(FaultPlan::clear(holder.address()))
        .await
        .unwrap();
    let mut config = config("asker");
    config.stall = Duration::from_secs(2);
    let link = PeerLink {
        backend: Backend::Carrier,
        ..vec![proxy.address()].into()
    };
    config.peers.insert(site("holder"), link);
    let asker = SiteTransport::bind_parts(config, parts(Source::new(Conduct::Fails), 22, asking))
        .await
        .unwrap();
    Pair {
        _holder: holder,
        proxy,
        asker,
    }
}

/// Pulls a set and compares it; gives the share of it that went over connections, in percent.
async fn pulled(pair: &Pair, seed: u32) -> u64 {
    let before = pair.proxy.forwarded(Direction::ToClient);
    let order = order(seed, TOKENS);
    let mut pull = pair.asker.pull(&site("holder"), order.clone()).await.unwrap();
    let (pieces, report) = drain(&mut pull).await.unwrap();
    assert_whole(&order, pieces);
    (pair.proxy.forwarded(Direction::ToClient) - before) * 100 / report.bytes.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kv_crosses_through_the_library_and_is_whole_also_when_its_process_is_killed() {
    let (holding, asking) = (carrier(1, true), carrier(2, true));
    asking.probe().await.unwrap();
    holding.probe().await.unwrap();
    let pair = pair(&holding, &asking).await;
    let begun = Instant::now();
    // Agents meet with the first chunk.
    pulled(&pair, 1).await;
    let shares = [pulled(&pair, 2).await, pulled(&pair, 3).await];
    assert!(
        shares.iter().all(|share| *share < 60),
        "over connections: {shares:?} percent"
    );
    println!(
        "over connections: {shares:?} percent, three sets in {:?}",
        begun.elapsed()
    );

    for side in [&holding, &asking] {
        let id = side.process().await.unwrap().to_string();
        assert!(
            std::process::Command::new("kill")
                .args(["-9", &id])
                .status()
                .unwrap()
                .success()
        );
        let share = pulled(&pair, 4).await;
        println!("after a kill: {share} percent over connections");
        assert!(pair.asker.quarantine().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_library_or_program_is_an_error_that_says_so_and_kv_goes_over_connections() {
    let missing = carrier(3, false);
    let error = missing.probe().await.unwrap_err();
    assert!(
        matches!(&error, CarrierError::Unavailable(why) if why.contains("libnixl_capi.so")),
        "{error:?}"
    );
    let pair = pair(&missing, &missing).await;
    assert!(pulled(&pair, 5).await >= 100);
    let nothing = NixlConfig {
        program: PathBuf::from("/nonexistent/portolan"),
        ..config_of(true)
    };
    let error = NixlCarrier::new(nothing, Arc::new(Seed::new(4)))
        .probe()
        .await
        .unwrap_err();
    assert!(matches!(error, CarrierError::Unavailable(_)), "{error:?}");
}
