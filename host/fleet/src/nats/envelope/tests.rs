//! Messages come back as they were, or not at all.

use super::*;
use portolan_ports::SiteState;

const SUBJECT: &str = "f.prefixes.eu.paris.virginia";

fn told(bytes: usize) -> BusMessage {
    let summary: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
    BusMessage::Prefixes(PrefixSummary {
        from: SiteName::new("virginia").unwrap(),
        instance: InstanceName::new("v1").unwrap(),
        to: SiteName::new("paris").unwrap(),
        summary: summary.into(),
    })
}

fn presence() -> BusMessage {
    BusMessage::Presence(SitePresence {
        site: SiteName::new("paris").unwrap(),
        incarnation: u64::MAX,
        sequence: 3,
        state: SiteState::Draining,
        lease_ms: 5000,
    })
}

#[test]
fn a_message_comes_back_as_it_was() {
    let seal = Seal::new(&[7; 32]);
    let mut assembly = Assembly::default();
    for message in [presence(), told(0), told(100), told(PART), told(3 * PART + 1)] {
        let payloads = seal.payloads(SUBJECT, &message);
        let (last, before) = payloads.split_last().unwrap();
        for payload in before {
            assert_eq!(seal.open(SUBJECT, payload, &mut assembly), Ok(None));
        }
        assert_eq!(seal.open(SUBJECT, last, &mut assembly), Ok(Some(message)));
    }
    assert!(assembly.0.is_empty());
}

#[test]
fn a_summary_with_a_part_missing_doubled_or_of_another_is_not_put_together() {
    let seal = Seal::new(&[7; 32]);
    let (a, b) = (
        seal.payloads(SUBJECT, &told(3 * PART)),
        seal.payloads(SUBJECT, &told(2 * PART)),
    );
    for order in [
        vec![&a[0], &a[2]],
        vec![&a[1], &a[2]],
        vec![&a[0], &a[1], &b[1], &a[2]],
        vec![&a[0], &a[0], &a[2]],
    ] {
        let mut assembly = Assembly::default();
        for payload in order {
            assert_eq!(seal.open(SUBJECT, payload, &mut assembly), Ok(None));
        }
    }
}

#[test]
fn another_secret_another_subject_and_changed_bytes_are_refused() {
    let seal = Seal::new(&[7; 32]);
    let payload = &seal.payloads(SUBJECT, &presence())[0];
    let mut none = Assembly::default();
    let stranger = Seal::new(&[8; 32]);
    assert_eq!(
        stranger.open(SUBJECT, payload, &mut none),
        Err(EnvelopeError::Mark)
    );
    assert_eq!(seal.open("f.other", payload, &mut none), Err(EnvelopeError::Mark));
    for at in 0..payload.len() {
        let mut changed = payload.to_vec();
        changed[at] ^= 1;
        assert!(seal.open(SUBJECT, &changed, &mut none).is_err(), "byte {at}");
        assert!(
            seal.open(SUBJECT, &payload[..at], &mut none).is_err(),
            "cut at {at}"
        );
    }
}

#[test]
fn no_bytes_make_the_reader_break() {
    let seal = Seal::new(&[7; 32]);
    let mut assembly = Assembly::default();
    // Rightly marked nonsense: what a faulty site of this fleet could send.
    for kind in 0..=5 {
        for length in 0..40 {
            let body: Vec<u8> = (0..length).map(|n| (n * 37 + length) as u8).collect();
            let payload = seal.seal(SUBJECT, kind, &body);
            assert!(!matches!(
                seal.open(SUBJECT, &payload, &mut assembly),
                Ok(Some(_))
            ));
        }
    }
}
