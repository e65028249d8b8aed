//! What one process binds the others hear of, in order, once they are there; strangers bind nothing.

use super::*;
use crate::bus::conformance::{Line, SECRET, config, name, topology, wait};
use crate::nats::NatsServer;
use portolan_base::{Moment, TenantName};
use portolan_ports::{BindingChange, BindingRecord, Reuse, RolloutRecord};
use std::time::Duration;
use tokio::time::timeout;

async fn join(server: &NatsServer, site: &str, secret: &[u8; 32]) -> (NatsBus, NatsPolicies) {
    let bus = NatsBus::connect(&config(server), &topology(), &[name(site)], secret)
        .await
        .unwrap();
    wait("the bus is connected", || bus.is_connected()).await;
    let policies = NatsPolicies::on(&bus, 1);
    (bus, policies)
}

fn slot(tenant: &str, sha256: &str) -> SharedSlot {
    let scope = Scope::Tenant(TenantName::new(tenant).unwrap());
    let question = QuestionKind::Routing;
    SharedSlot {
        scope: scope.clone(),
        question,
        binding: Some(BindingRecord {
            scope: scope.clone(),
            question,
            name: "mine".to_owned(),
            sha256: sha256.to_owned(),
            config: "{}".to_owned(),
            budget: None,
            reuse: Reuse::ByClass,
            how: BindingChange::Activate,
            in_place_of: None,
            ended: None,
            generation: 0,
            actor: "tess".to_owned(),
            reason: String::new(),
            at: Moment(1),
        }),
        rollout: RolloutRecord::plain(scope, question),
        versions: Vec::new(),
        actor: "tess".to_owned(),
        reason: String::new(),
    }
}

async fn share(
    policies: &NatsPolicies,
    slot: &SharedSlot,
    bytes: &[(String, Bytes)],
) -> Result<(), SharedError> {
    let (policies, slot, bytes) = (policies.clone(), slot.clone(), bytes.to_vec());
    tokio::task::spawn_blocking(move || policies.share(&slot, &bytes))
        .await
        .unwrap()
}

async fn next(slots: &mut SharedSlots) -> SharedSlot {
    timeout(Duration::from_secs(20), slots.next())
        .await
        .expect("a state comes")
}

#[tokio::test]
async fn what_one_binds_the_others_hear_of_and_one_that_comes_later_too() {
    let Some(Line::Nats(server, _folder)) = Line::nats() else {
        return;
    };
    let ((_a, paris), (_b, virginia)) = (
        join(&server, "paris", &SECRET).await,
        join(&server, "virginia", &SECRET).await,
    );
    let mut followed = virginia.follow();
    let component = Bytes::from(vec![7; 300_000]);
    share(
        &paris,
        &slot("acme", "c0"),
        &[("c0".to_owned(), component.clone())],
    )
    .await
    .unwrap();
    assert_eq!(next(&mut followed).await, slot("acme", "c0"));
    let asked = virginia.clone();
    let got = tokio::task::spawn_blocking(move || asked.component("c0"))
        .await
        .unwrap();
    assert_eq!(got.unwrap(), component);
    let asked = virginia.clone();
    let missing = tokio::task::spawn_blocking(move || asked.component("c9"))
        .await
        .unwrap();
    assert_eq!(missing, Err(SharedError::Missing("c9".to_owned())));

    share(&virginia, &slot("acme", "c1"), &[]).await.unwrap();
    share(&virginia, &slot("glo.bex", "c2"), &[]).await.unwrap();
    let mut late = join(&server, "tokyo", &SECRET).await.1.follow();
    let mut states = [next(&mut late).await, next(&mut late).await];
    states.sort_by_key(|a| a.scope.to_string());
    assert_eq!(
        states,
        [slot("acme", "c1"), slot("glo.bex", "c2")],
        "the newest of each"
    );
}

#[tokio::test]
async fn components_that_no_slot_names_go_after_a_while_and_come_again() {
    let Some(Line::Nats(server, _folder)) = Line::nats() else {
        return;
    };
    let (_bus, paris) = join(&server, "paris", &SECRET).await;
    assert_eq!(
        paris.sweep_after(Duration::ZERO).await,
        Ok(0),
        "there is nothing yet"
    );
    let bytes = |sha256: &str| vec![(sha256.to_owned(), Bytes::from(sha256.repeat(1000)))];
    for sha256 in ["c0", "c1"] {
        share(&paris, &slot("acme", sha256), &bytes(sha256))
            .await
            .unwrap();
    }
    share(&paris, &slot("globex", "c2"), &bytes("c2")).await.unwrap();
    let there = async |sha256: &'static str| {
        let asked = paris.clone();
        let got = tokio::task::spawn_blocking(move || asked.component(sha256)).await;
        got.unwrap()
    };
    assert_eq!(paris.sweep().await, Ok(0), "it may be named in a moment");
    assert!(there("c0").await.is_ok());
    assert_eq!(paris.sweep_after(Duration::ZERO).await, Ok(1));
    assert_eq!(there("c0").await, Err(SharedError::Missing("c0".to_owned())));
    assert!(there("c1").await.is_ok() && there("c2").await.is_ok());
    share(&paris, &slot("acme", "c0"), &bytes("c0")).await.unwrap();
    assert!(there("c0").await.is_ok(), "a roll-back brings it again");
}

#[tokio::test]
async fn of_two_changes_at_once_one_is_told_to_look_again() {
    let Some(Line::Nats(server, _folder)) = Line::nats() else {
        return;
    };
    let ((_a, paris), (_b, virginia)) = (
        join(&server, "paris", &SECRET).await,
        join(&server, "virginia", &SECRET).await,
    );
    share(&paris, &slot("acme", "c0"), &[]).await.unwrap();
    // Virginia has not looked yet.
    let refused = share(&virginia, &slot("acme", "c1"), &[]).await;
    assert_eq!(refused, Err(SharedError::ChangedElsewhere));
    let mut followed = virginia.follow();
    assert_eq!(next(&mut followed).await, slot("acme", "c0"));
    share(&virginia, &slot("acme", "c1"), &[]).await.unwrap();
    assert_eq!(
        share(&paris, &slot("acme", "c2"), &[]).await,
        Err(SharedError::ChangedElsewhere)
    );
}

#[tokio::test]
async fn nothing_is_acknowledged_without_a_server_and_what_was_is_there_after_it() {
    let Some(Line::Nats(mut server, _folder)) = Line::nats() else {
        return;
    };
    let ((bus, paris), (_b, virginia)) = (
        join(&server, "paris", &SECRET).await,
        join(&server, "virginia", &SECRET).await,
    );
    let mut followed = virginia.follow();
    share(&paris, &slot("acme", "c0"), &[]).await.unwrap();
    assert_eq!(next(&mut followed).await, slot("acme", "c0"));
    server.kill();
    wait("it is cut", || !bus.is_connected()).await;
    let refused = share(&paris, &slot("acme", "c1"), &[]).await;
    assert!(
        matches!(refused, Err(SharedError::NotAcknowledged(_))),
        "{refused:?}"
    );
    server.restart().unwrap();
    wait("it is back", || bus.is_connected()).await;
    share(&paris, &slot("acme", "c2"), &[]).await.unwrap();
    loop {
        let came = next(&mut followed).await;
        if came == slot("acme", "c2") {
            break;
        }
        assert_eq!(came, slot("acme", "c0"), "told again");
    }
}

#[tokio::test]
async fn who_can_write_to_the_server_and_has_no_secret_binds_nothing() {
    let Some(Line::Nats(server, _folder)) = Line::nats() else {
        return;
    };
    let ((_a, paris), (_b, stranger)) = (
        join(&server, "paris", &SECRET).await,
        join(&server, "virginia", &[1; 32]).await,
    );
    let mut followed = paris.follow();
    share(&stranger, &slot("acme", "evil"), &[]).await.unwrap();
    // A state of this fleet, moved to another slot.
    share(&paris, &slot("globex", "c0"), &[]).await.unwrap();
    let states = paris.0.states.open().await.unwrap();
    let stolen = states.get("globex.routing").await.unwrap().unwrap();
    states.put("victim.routing", stolen).await.unwrap();
    share(&paris, &slot("last", "c1"), &[]).await.unwrap();
    assert_eq!(next(&mut followed).await, slot("globex", "c0"));
    assert_eq!(next(&mut followed).await, slot("last", "c1"));
}
