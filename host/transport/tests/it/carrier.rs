//! Carriers: what they bring, and what comes over the connections when they do not.

use crate::world::*;
use async_trait::async_trait;
use bytes::Bytes;
use portolan_ports::Transport;
use portolan_transport::fault_proxy::{Direction, FaultPlan, FaultProxy};
use portolan_transport::{
    Backend, Carrier, CarrierError, PeerLink, PlainTcp, SiteTransport, TcpInfo, TransportParts, Window,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// 8 MiB of KV.
const TOKENS: usize = 4 << 10;

/// The memory of all sites, by window.
type Memory = Arc<Mutex<HashMap<u64, Vec<u8>>>>;

/// A carrier that copies, and what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ill {
    Nothing,
    NoLibrary,
    DiesAfter(usize),
    Flips,
    Lies,
    Stalls,
}

struct Copier {
    memory: Memory,
    ill: Ill,
    windows: AtomicU64,
    writes: AtomicUsize,
}

struct Lent {
    memory: Memory,
    id: u64,
    invitation: [u8; 8],
    bytes: u64,
}

#[async_trait]
impl Carrier for Copier {
    async fn open(&self, bytes: u64) -> Result<Arc<dyn Window>, CarrierError> {
        if self.ill == Ill::NoLibrary {
            return Err(CarrierError::Unavailable("no library".into()));
        }
        // Fewer slots than chunks: they have to be used again.
        let (id, bytes) = (self.windows.fetch_add(1, Ordering::SeqCst), bytes.min(2 << 20));
        self.memory.lock().unwrap().insert(id, vec![0; bytes as usize]);
        let (memory, invitation) = (Arc::clone(&self.memory), id.to_le_bytes());
        Ok(Arc::new(Lent {
            memory,
            id,
            invitation,
            bytes,
        }))
    }

    async fn write(&self, invitation: &[u8], at: u64, bytes: Bytes) -> Result<(), CarrierError> {
        let nth = self.writes.fetch_add(1, Ordering::SeqCst);
        match self.ill {
            Ill::DiesAfter(writes) if nth >= writes => return Err(CarrierError::Dead("signal 11".into())),
            Ill::Stalls if nth == 3 => std::future::pending().await,
            Ill::Lies => return Ok(()),
            _ => {}
        }
        let id = u64::from_le_bytes(invitation.try_into().unwrap());
        let mut memory = self.memory.lock().unwrap();
        let window = memory
            .get_mut(&id)
            .ok_or_else(|| CarrierError::Failed("it is closed".into()))?;
        let at = at as usize;
        window[at..at + bytes.len()].copy_from_slice(&bytes);
        if self.ill == Ill::Flips {
            window[at + bytes.len() / 2] ^= 4;
        }
        Ok(())
    }
}

impl Window for Lent {
    fn invitation(&self) -> &[u8] {
        &self.invitation
    }
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), CarrierError> {
        let memory = self.memory.lock().unwrap();
        into.copy_from_slice(&memory[&self.id][at as usize..][..into.len()]);
        Ok(())
    }
    fn settle(&self) {}
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.memory.lock().unwrap().remove(&self.id);
    }
}

fn copier(memory: &Memory, ill: Ill) -> Arc<Copier> {
    Arc::new(Copier {
        memory: Arc::clone(memory),
        ill,
        windows: AtomicU64::new(0),
        writes: AtomicUsize::new(0),
    })
}

fn parts(source: Arc<Source>, seed: u64, carrier: Option<Arc<Copier>>) -> TransportParts {
    TransportParts {
        source,
        random: Arc::new(Seed::new(seed)),
        wiring: Arc::new(PlainTcp),
        probe: Arc::new(TcpInfo),
        landing: None,
        carrier: carrier.map(|carrier| carrier as Arc<dyn Carrier>),
    }
}

struct Pair {
    _holder: SiteTransport,
    proxy: FaultProxy,
    asker: SiteTransport,
}

async fn pair(holding: Option<Arc<Copier>>, asking: Option<Arc<Copier>>) -> Pair {
    let source = Source::new(Conduct::Whole);
    let holder = SiteTransport::bind_parts(config("holder"), parts(source, 11, holding))
        .await
        .unwrap();
    let proxy = FaultProxy::start(FaultPlan::clear(holder.address()))
        .await
        .unwrap();
    let mut config = config("asker");
    let link = PeerLink {
        backend: Backend::Carrier,
        ..vec![proxy.address()].into()
    };
    config.peers.insert(site("holder"), link);
    let asker = SiteTransport::bind_parts(config, parts(Source::new(Conduct::Fails), 12, asking))
        .await
        .unwrap();
    Pair {
        _holder: holder,
        proxy,
        asker,
    }
}

/// Pulls a set and compares it; gives the bytes that went over connections.
async fn pulled(pair: &Pair, seed: u32) -> u64 {
    let before = pair.proxy.forwarded(Direction::ToClient);
    let order = order(seed, TOKENS);
    let mut pull = pair.asker.pull(&site("holder"), order.clone()).await.unwrap();
    let (pieces, _) = drain(&mut pull).await.unwrap();
    assert_whole(&order, pieces);
    pair.proxy.forwarded(Direction::ToClient) - before
}

fn total(seed: u32) -> u64 {
    pieces(&order(seed, TOKENS))
        .iter()
        .map(|piece| piece.bytes.len() as u64)
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_carrier_brings_the_bytes_and_the_connections_the_rest() {
    let memory = Memory::default();
    let carriers = (copier(&memory, Ill::Nothing), copier(&memory, Ill::Nothing));
    let pair = pair(Some(carriers.0.clone()), Some(carriers.1)).await;
    for seed in 1..=3 {
        let crossed = pulled(&pair, seed).await;
        // A chunk that finds no slot goes over its connection.
        assert!(
            crossed < total(seed) / 4 * 3,
            "{crossed} bytes of {}",
            total(seed)
        );
    }
    assert!(carriers.0.writes.load(Ordering::SeqCst) > 50);
    until("every window is closed", Duration::from_secs(2), || {
        memory.lock().unwrap().is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_wrong_with_a_carrier_costs_speed_and_not_a_byte() {
    for ill in [
        Ill::NoLibrary,
        Ill::DiesAfter(0),
        Ill::DiesAfter(5),
        Ill::Flips,
        Ill::Lies,
    ] {
        let memory = Memory::default();
        let pair = pair(Some(copier(&memory, ill)), Some(copier(&memory, ill))).await;
        for seed in 1..=2 {
            let crossed = pulled(&pair, seed).await;
            assert!(crossed > total(seed) / 2, "{ill:?}: it came by itself");
        }
        assert!(pair.asker.quarantine().is_empty(), "{ill:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_carrier_that_hangs_is_given_up_in_the_stall_time() {
    let memory = Memory::default();
    let pair = pair(
        Some(copier(&memory, Ill::Stalls)),
        Some(copier(&memory, Ill::Stalls)),
    )
    .await;
    let begun = Instant::now();
    pulled(&pair, 1).await;
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_side_without_a_carrier_is_served_over_connections() {
    let memory = Memory::default();
    let sound = || Some(copier(&memory, Ill::Nothing));
    for (holding, asking) in [(sound(), None), (None, sound()), (None, None)] {
        let pair = pair(holding, asking).await;
        assert!(pulled(&pair, 5).await >= total(5));
    }
}
