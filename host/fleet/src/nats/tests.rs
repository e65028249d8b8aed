//! What only a bus between processes can do wrong: tell the wrong ones, believe strangers, keep what is stale.

use super::*;
use crate::bus::conformance::{Line, SECRET, config, name, presence, told, topology, wait};
use crate::nats::{NatsLogin, NatsTls};
use portolan_ports::{Beat, ControlEvent, ControlStream, Reading};
use std::fmt::Write;

fn counted(bus: &NatsBus, name: &str) -> u64 {
    let samples = bus.samples();
    let sample = samples.iter().find(|sample| sample.name == name).unwrap();
    match sample.value {
        Reading::Counter(value) | Reading::Gauge(value) => value,
        Reading::Times { .. } => unreachable!("the bus counts"),
    }
}

async fn connect(server: &NatsServer, sites: &[&str], secret: &[u8; 32]) -> NatsBus {
    let here: Vec<_> = sites.iter().map(|site| name(site)).collect();
    let bus = NatsBus::connect(&config(server), &topology(), &here, secret)
        .await
        .unwrap();
    wait("the bus is connected", || bus.is_connected()).await;
    bus
}

/// Publishes until `heard` says that it came.
async fn say(bus: &NatsBus, said: &BusMessage, heard: impl Fn() -> bool) {
    for _ in 0..1000 {
        bus.publish(said.clone());
        tokio::time::sleep(Duration::from_millis(10)).await;
        if heard() {
            return;
        }
    }
    panic!("{said:?} was not heard");
}

#[tokio::test]
async fn a_summary_goes_to_its_receiver_and_nobody_else() {
    let Some(Line::Nats(server, _folder)) = Line::nats() else {
        return;
    };
    let virginia = connect(&server, &["virginia"], &SECRET).await;
    let paris = connect(&server, &["paris"], &SECRET).await;
    let tokyo = connect(&server, &["tokyo"], &SECRET).await;
    let mut overheard = tokyo.subscribe();
    say(&virginia, &told("virginia", "paris", b"x"), || {
        counted(&paris, "bus_heard") > 0
    })
    .await;
    say(&virginia, &presence("virginia", 1), || {
        counted(&tokyo, "bus_heard") > 0
    })
    .await;
    while let Ok(message) = overheard.try_recv() {
        assert!(matches!(message, BusMessage::Presence(_)), "{message:?}");
    }
}

#[tokio::test]
async fn sites_of_one_process_need_no_server_for_each_other() {
    let Some(Line::Nats(server, _folder)) = Line::nats() else {
        return;
    };
    let both = connect(&server, &["paris", "virginia"], &SECRET).await;
    let tokyo = connect(&server, &["tokyo"], &SECRET).await;
    let mut heard = both.subscribe();
    both.publish(told("virginia", "paris", b"x"));
    assert_eq!(heard.try_recv().unwrap(), told("virginia", "paris", b"x"));
    say(&both, &presence("paris", 1), || counted(&tokyo, "bus_heard") > 0).await;
    assert_eq!(counted(&both, "bus_heard"), 0, "its own words do not come back");
    // The summary never left the process: only heartbeats did.
    assert_eq!(counted(&tokyo, "bus_heard"), counted(&both, "bus_sent"));
}

#[tokio::test]
async fn who_has_another_secret_is_not_heard() {
    let Some(Line::Nats(server, _folder)) = Line::nats() else {
        return;
    };
    let paris = connect(&server, &["paris"], &SECRET).await;
    let stranger = connect(&server, &["virginia"], &[1; 32]).await;
    let mut heard = paris.subscribe();
    say(&stranger, &presence("virginia", 1), || {
        counted(&paris, "bus_refused") > 0
    })
    .await;
    assert!(heard.try_recv().is_err());
    // One who has the secret, and speaks under another site's subject.
    let client = async_nats::connect(server.address()).await.unwrap();
    let subject = Subjects::new("test", &topology()).facts(&name("tokyo")).unwrap();
    let payloads = Seal::new(&SECRET).payloads(&subject, &presence("virginia", 1));
    let refused = counted(&paris, "bus_refused");
    client.publish(subject, payloads[0].clone()).await.unwrap();
    wait("it is refused", || counted(&paris, "bus_refused") > refused).await;
    assert!(heard.try_recv().is_err());
}

#[tokio::test]
async fn what_is_said_during_a_cut_is_not_said_later() {
    let Some(Line::Nats(mut server, _folder)) = Line::nats() else {
        return;
    };
    let virginia = connect(&server, &["virginia"], &SECRET).await;
    let paris = connect(&server, &["paris"], &SECRET).await;
    say(&virginia, &presence("virginia", 0), || {
        counted(&paris, "bus_heard") > 0
    })
    .await;
    let mut heard = paris.subscribe();
    server.kill();
    wait("both know that they are cut", || {
        !virginia.is_connected() && !paris.is_connected()
    })
    .await;
    for n in 1..=50 {
        virginia.publish(presence("virginia", n));
    }
    wait("it is given up", || counted(&virginia, "bus_dropped") >= 50).await;
    server.restart().unwrap();
    let before = counted(&paris, "bus_heard");
    say(&virginia, &presence("virginia", 51), || {
        counted(&paris, "bus_heard") > before
    })
    .await;
    while let Ok(message) = heard.try_recv() {
        assert_eq!(message, presence("virginia", 51));
    }
    assert!(counted(&paris, "bus_connections") >= 2);
}

#[tokio::test]
async fn a_process_starts_before_its_server_does() {
    let Some(Line::Nats(mut server, _folder)) = Line::nats() else {
        return;
    };
    server.kill();
    let connect = |site| {
        let server = &server;
        async move {
            let bus = NatsBus::connect(&config(server), &topology(), &[name(site)], &SECRET).await;
            bus.unwrap()
        }
    };
    let (virginia, paris) = (connect("virginia").await, connect("paris").await);
    assert!(!paris.is_connected());
    paris.publish(presence("paris", 0));
    server.restart().unwrap();
    say(&virginia, &presence("virginia", 1), || {
        counted(&paris, "bus_heard") > 0
    })
    .await;
}

#[tokio::test]
async fn last_words_are_sent() {
    let Some(Line::Nats(server, _folder)) = Line::nats() else {
        return;
    };
    let virginia = connect(&server, &["virginia"], &SECRET).await;
    let paris = connect(&server, &["paris"], &SECRET).await;
    say(&virginia, &presence("virginia", 0), || {
        counted(&paris, "bus_heard") > 0
    })
    .await;
    let before = counted(&paris, "bus_heard");
    (1..=20).for_each(|n| virginia.publish(presence("virginia", n)));
    virginia.close().await;
    wait("all twenty came", || counted(&paris, "bus_heard") == before + 20).await;
}

/// A server that knows the sites, each with what [`Subjects::permissions`] says, keeps them apart.
#[tokio::test]
async fn a_server_with_permissions_by_site_and_jurisdiction_lets_nobody_read_or_say_more() {
    let mut users = String::new();
    for site in ["paris", "virginia", "tokyo"] {
        let Permissions { publish, subscribe } = Subjects::new("test", &topology()).permissions(&name(site));
        writeln!(
            users,
            "{{user: {site}, password: pw-{site}, permissions: {{publish: {publish:?}, subscribe: {subscribe:?}}}}}"
        )
        .unwrap();
    }
    let Some(Line::Nats(server, _folder)) =
        Line::nats_with(&format!("authorization: {{users: [\n{users}]}}"))
    else {
        return;
    };
    let passwords = tempfile::tempdir().unwrap();
    let log_in = |site: &str, password: &str| {
        let file = passwords.path().join(site);
        std::fs::write(&file, password).unwrap();
        NatsConfig {
            login: NatsLogin::Password {
                user: site.to_owned(),
                file,
            },
            ..config(&server)
        }
    };
    let as_itself = |site: &'static str| {
        let config = log_in(site, &format!("pw-{site}"));
        async move {
            NatsBus::connect(&config, &topology(), &[name(site)], &SECRET)
                .await
                .unwrap()
        }
    };
    let (virginia, paris) = (as_itself("virginia").await, as_itself("paris").await);
    wait("both are let in", || {
        virginia.is_connected() && paris.is_connected()
    })
    .await;
    say(&virginia, &told("virginia", "paris", b"x"), || {
        counted(&paris, "bus_heard") > 0
    })
    .await;

    // The control stream is within what they may do, and another site's beats are not.
    let (at_paris, at_virginia) = (NatsControl::on(&paris, 1), NatsControl::on(&virginia, 1));
    let mut followed = at_paris.follow(None).await.unwrap();
    let beat = |site: &str| {
        ControlEvent::Beat(Beat {
            site: name(site),
            incarnation: 1,
            number: 0,
        })
    };
    at_virginia.append(beat("virginia")).await.unwrap();
    assert_eq!(followed.next().await.unwrap().event, beat("virginia"));
    assert!(at_virginia.append(beat("paris")).await.is_err());

    // Virginia's login, for somebody who wants to be Tokyo: neither heard nor told.
    let config = log_in("virginia", "pw-virginia");
    let false_tokyo = NatsBus::connect(&config, &topology(), &[name("tokyo")], &SECRET)
        .await
        .unwrap();
    wait("it is let in", || false_tokyo.is_connected()).await;
    let heard = counted(&paris, "bus_heard");
    let mut overheard = false_tokyo.subscribe();
    for n in 0..20 {
        false_tokyo.publish(presence("tokyo", n));
        virginia.publish(told("virginia", "tokyo", b"secret"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(counted(&paris, "bus_heard"), heard);
    while let Ok(message) = overheard.try_recv() {
        assert_eq!(message.from(), &name("tokyo"), "only what it said itself");
    }
    let wrong = NatsBus::connect(&log_in("paris", "guess"), &topology(), &[name("paris")], &SECRET).await;
    let wrong = wrong.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!wrong.is_connected());
}

/// An authority, and certificates for who it names: PEM files in `folder`.
fn certificates(folder: &std::path::Path) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let write = |file: &str, pem: String| std::fs::write(folder.join(file), pem).unwrap();
    for authority in ["ca", "other"] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        write(
            &format!("{authority}.pem"),
            params.self_signed(&key).unwrap().pem(),
        );
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        write(
            &format!("{authority}-leaf.pem"),
            params.signed_by(&key, &issuer).unwrap().pem(),
        );
        write(&format!("{authority}-leaf.key"), key.serialize_pem());
    }
}

#[tokio::test]
async fn under_tls_both_ends_prove_themselves() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let at = |file: &str| folder.path().join(file);
    let quoted = |file: &str| format!("{:?}", at(file).display().to_string());
    let tls = format!(
        "tls: {{cert_file: {}, key_file: {}, ca_file: {}, verify: true}}",
        quoted("ca-leaf.pem"),
        quoted("ca-leaf.key"),
        quoted("ca.pem")
    );
    let Some(Line::Nats(server, _folder)) = Line::nats_with(&tls) else {
        return;
    };
    let with = |ca: &str, leaf: &str| NatsConfig {
        tls: Some(NatsTls {
            ca: Some(at(ca)),
            own: Some((at(&format!("{leaf}.pem")), at(&format!("{leaf}.key")))),
        }),
        ..config(&server)
    };
    let connect = async |config: NatsConfig, site: &str| {
        NatsBus::connect(&config, &topology(), &[name(site)], &SECRET)
            .await
            .unwrap()
    };
    let virginia = connect(with("ca.pem", "ca-leaf"), "virginia").await;
    let paris = connect(with("ca.pem", "ca-leaf"), "paris").await;
    say(&virginia, &presence("virginia", 0), || {
        counted(&paris, "bus_heard") > 0
    })
    .await;
    for (ca, leaf) in [("other.pem", "ca-leaf"), ("ca.pem", "other-leaf")] {
        let stranger = connect(with(ca, leaf), "tokyo").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!stranger.is_connected(), "{ca} {leaf}");
    }
}

#[tokio::test]
async fn a_password_that_was_changed_is_read_again() {
    let users = "authorization: {users: [{user: paris, password: pw-new}]}";
    let Some(Line::Nats(server, _folder)) = Line::nats_with(users) else {
        return;
    };
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("paris.password");
    std::fs::write(&file, "pw-old\n").unwrap();
    let login = NatsConfig {
        login: NatsLogin::Password {
            user: "paris".to_owned(),
            file: file.clone(),
        },
        ..config(&server)
    };
    let paris = NatsBus::connect(&login, &topology(), &[name("paris")], &SECRET)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!paris.is_connected(), "the old password lets nobody in");
    std::fs::write(&file, "pw-new\n").unwrap();
    wait("the new one does", || paris.is_connected()).await;
}

#[tokio::test]
async fn an_address_that_is_none_and_a_file_that_is_missing_are_named() {
    let with = |servers: &str, login: NatsLogin| NatsConfig {
        name: "test".to_owned(),
        servers: vec![servers.to_owned()],
        login,
        tls: Some(NatsTls { ca: None, own: None }),
    };
    let refused = async |config: NatsConfig| {
        let bus = NatsBus::connect(&config, &topology(), &[name("paris")], &SECRET).await;
        bus.err().expect("it is refused").to_string()
    };
    let error = refused(with("nats://[::1", NatsLogin::None)).await;
    assert!(error.contains("nats://[::1"), "{error}");
    let missing = NatsLogin::Credentials("/nowhere/paris.creds".into());
    let error = refused(with("nats://127.0.0.1:4222", missing)).await;
    assert!(error.contains("/nowhere/paris.creds"), "{error}");
}
