//! Mutual TLS: who is at the other end, and who may order.

use crate::world::*;
use portolan_ports::{TransferError, Transport};
use portolan_transport::fault_proxy::{Direction, Fault, FaultKind, FaultPlan, FaultProxy};
use portolan_transport::{
    Admission, Egress, Issued, MutualTls, SiteIssuer, SiteTransport, TlsError, TlsIdentity, TransportConfig,
    Wiring,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const YEAR: i32 = 2026;

struct Authority {
    issuer: SiteIssuer,
    ca: Issued,
}

impl Authority {
    fn new() -> Self {
        let (issuer, ca) = SiteIssuer::create(YEAR).unwrap();
        Self { issuer, ca }
    }

    fn identity(&self, name: &str) -> TlsIdentity {
        let issued = self.issuer.issue(&site(name)).unwrap();
        TlsIdentity {
            ca: self.ca.certificate.clone(),
            certificate: issued.certificate,
            key: issued.key,
        }
    }

    fn tls(&self, name: &str) -> Arc<dyn Wiring> {
        Arc::new(MutualTls::new(&site(name), &self.identity(name)).unwrap())
    }
}

async fn bind(config: TransportConfig, source: Arc<Source>, wiring: Arc<dyn Wiring>) -> SiteTransport {
    let seed = Arc::new(Seed::new(wiring_seed(&config)));
    SiteTransport::bind_with(config, source, seed, wiring)
        .await
        .unwrap()
}

fn wiring_seed(config: &TransportConfig) -> u64 {
    config.site.as_str().bytes().map(u64::from).sum()
}

async fn pull_error(asker: &SiteTransport) -> String {
    match asker.pull(&site("holder"), order(1, 10)).await.unwrap_err() {
        TransferError::LinkDown { detail, .. } => detail,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kv_crosses_under_tls_and_no_byte_of_it_can_be_read_on_the_way() {
    let authority = Authority::new();
    let holder = bind(
        config("holder"),
        Source::new(Conduct::Whole),
        authority.tls("holder"),
    )
    .await;
    // A wire-tap: what the holder sends passes through here.
    let tap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, upstream) = (tap.local_addr().unwrap(), holder.address());
    let (seen_in, mut seen) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (client, _) = tap.accept().await.unwrap();
            let (mut client_in, mut client_out) = client.into_split();
            let (mut holder_in, mut holder_out) = TcpStream::connect(upstream).await.unwrap().into_split();
            tokio::spawn(async move { tokio::io::copy(&mut client_in, &mut holder_out).await });
            let seen_in = seen_in.clone();
            tokio::spawn(async move {
                let mut block = vec![0; 64 << 10];
                while let Ok(read @ 1..) = holder_in.read(&mut block).await {
                    let _ = seen_in.send(block[..read].to_vec());
                    if client_out.write_all(&block[..read]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    let mut asker_config = config("asker");
    asker_config.lanes = 1;
    asker_config.peers.insert(site("holder"), vec![address].into());
    let asker = bind(asker_config, Source::new(Conduct::Fails), authority.tls("asker")).await;
    let order = order(3, 1000);
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    assert_whole(&order, drain(&mut pull).await.unwrap().0);
    let mut tapped = Vec::new();
    while let Ok(block) = seen.try_recv() {
        tapped.extend(block);
    }
    assert!(tapped.len() > 2 << 20, "{} bytes were tapped", tapped.len());
    let secret = &pieces(&order)[1].bytes[..32];
    let found = |needle: &[u8]| tapped.windows(needle.len()).any(|window| window == needle);
    assert!(!found(secret), "KV crossed in the clear");
    assert!(!found(b"PTLNKV"), "the hello crossed in the clear");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_proves_new_connections_and_open_ones_live_on() {
    let (before, after) = (Authority::new(), Authority::new());
    let tls = |name: &str| Arc::new(MutualTls::new(&site(name), &before.identity(name)).unwrap());
    let (holder_tls, asker_tls) = (tls("holder"), tls("asker"));
    let holder = bind(
        config("holder"),
        Source::new(Conduct::Whole),
        Arc::clone(&holder_tls) as _,
    )
    .await;
    let over = async |name: &str, wiring: Arc<dyn Wiring>| {
        let mut config = config(name);
        config.peers.insert(site("holder"), vec![holder.address()].into());
        bind(config, Source::new(Conduct::Fails), wiring).await
    };
    let asker = over("asker", Arc::clone(&asker_tls) as _).await;
    let whole = async |asker: &SiteTransport, seed| {
        let order = order(seed, 300);
        let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
        assert_whole(&order, drain(&mut pull).await.unwrap().0);
    };
    whole(&asker, 1).await;
    // A new authority, taken up by both.
    let renewed = after.identity("holder");
    assert!(holder_tls.renew(&renewed).unwrap());
    assert!(!holder_tls.renew(&renewed).unwrap(), "the same again");
    assert!(
        holder_tls.renew(&after.identity("asker")).is_err(),
        "another site's"
    );
    assert!(asker_tls.renew(&after.identity("asker")).unwrap());
    whole(&asker, 2).await;
    // Whoever comes from here on has to show the new one.
    pull_error(&over("late", before.tls("late")).await).await;
    whole(&over("late", after.tls("late")).await, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_byte_under_tls_costs_a_lane_and_no_answer() {
    let authority = Authority::new();
    let holder = bind(
        config("holder"),
        Source::new(Conduct::Whole),
        authority.tls("holder"),
    )
    .await;
    let proxy = FaultProxy::start(FaultPlan::clear(holder.address()))
        .await
        .unwrap();
    proxy.inject(Fault {
        connection: None,
        direction: Direction::ToClient,
        after: 300_000,
        kind: FaultKind::FlipBit(2),
    });
    let mut asker_config = config("asker");
    asker_config
        .peers
        .insert(site("holder"), vec![proxy.address()].into());
    let asker = bind(asker_config, Source::new(Conduct::Fails), authority.tls("asker")).await;
    let order = order(3, 2000);
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    assert_whole(&order, drain(&mut pull).await.unwrap().0);
    assert_eq!(proxy.pending(), 0, "the flip never happened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_prove_its_name_gets_nothing() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let source = Source::new(Conduct::Whole);
    let holder = bind(config("holder"), Arc::clone(&source), authority.tls("holder")).await;
    for (name, wiring, expected) in [
        // A certificate of another authority: neither side trusts the other.
        ("asker", stranger.tls("asker"), "certificate"),
        // A site of the cluster that calls itself by another's name.
        (
            "asker",
            authority.tls("other"),
            "the certificate is not that of site asker",
        ),
        // A peer without TLS.
        (
            "asker",
            Arc::new(portolan_transport::PlainTcp) as Arc<dyn Wiring>,
            "",
        ),
    ] {
        let mut asker_config = config(name);
        asker_config
            .peers
            .insert(site("holder"), vec![holder.address()].into());
        let asker = bind(asker_config, Source::new(Conduct::Fails), wiring).await;
        let detail = pull_error(&asker).await;
        assert!(detail.contains(expected), "{detail}");
    }
    // The dialer, too, wants to know whom it reached.
    let impostor = bind(config("holder"), Arc::clone(&source), authority.tls("elsewhere")).await;
    let mut asker_config = config("asker");
    asker_config
        .peers
        .insert(site("holder"), vec![impostor.address()].into());
    let asker = bind(asker_config, Source::new(Conduct::Fails), authority.tls("asker")).await;
    let detail = pull_error(&asker).await;
    assert!(detail.contains("certificate"), "{detail}");
    assert_eq!(source.begun.load(Ordering::SeqCst), 0, "an order was served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_named_peers_may_order_where_that_is_asked_for() {
    let mut closed = config("holder");
    closed.admission = Admission::NamedPeers;
    let holder = start(closed, Source::new(Conduct::Whole)).await;
    let asker = asker(config("asker"), holder.address()).await;
    let detail = pull_error(&asker).await;
    assert!(
        detail.contains("no link leads from site holder to site asker"),
        "{detail}"
    );
    holder.admit(site("asker"), Egress::default());
    let order = order(1, 10);
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    assert_whole(&order, drain(&mut pull).await.unwrap().0);
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_at_the_start() {
    let authority = Authority::new();
    let mine = authority.identity("mine");
    assert!(MutualTls::new(&site("mine"), &mine).is_ok());
    let other = MutualTls::new(&site("other"), &mine).unwrap_err();
    assert!(matches!(other, TlsError::OtherSite(_)), "{other}");
    let unnamable = MutualTls::new(&site("a..b"), &mine).unwrap_err();
    assert!(matches!(unnamable, TlsError::Name(_)), "{unnamable}");
    let wrong_key = TlsIdentity {
        key: authority.identity("mine").key,
        ..mine.clone()
    };
    let unfit = MutualTls::new(&site("mine"), &wrong_key).unwrap_err();
    assert!(matches!(unfit, TlsError::Unfit(_)), "{unfit}");
    let no_pem = TlsIdentity {
        key: "no key".to_owned(),
        ..mine
    };
    let pem = MutualTls::new(&site("mine"), &no_pem).unwrap_err();
    assert!(matches!(pem, TlsError::Pem { what: "key", .. }), "{pem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_authoritys_key_alone_signs_for_a_further_site() {
    let authority = Authority::new();
    let own = authority.identity("asker");
    let again = SiteIssuer::open(&authority.ca.key, YEAR).unwrap();
    let issued = again.issue(&site("asker")).unwrap();
    let identity = TlsIdentity {
        certificate: issued.certificate,
        key: issued.key,
        ..own
    };
    let holder = bind(
        config("holder"),
        Source::new(Conduct::Whole),
        authority.tls("holder"),
    )
    .await;
    let mut asker_config = config("asker");
    asker_config
        .peers
        .insert(site("holder"), vec![holder.address()].into());
    let wiring = Arc::new(MutualTls::new(&site("asker"), &identity).unwrap());
    let asker = bind(asker_config, Source::new(Conduct::Fails), wiring).await;
    let order = order(1, 10);
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    assert_whole(&order, drain(&mut pull).await.unwrap().0);
}
