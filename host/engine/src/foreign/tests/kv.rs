//! Cache events of a modelled engine, over sockets, into an index.

use super::world::*;
use super::*;
use crate::modelled::{EventPorts, Faults, ModelledEngine, Profile};
use portolan_base::{BlockHash, Bytes};
use portolan_kv::Place;
use portolan_kv::index::{Holder, Lookup, SharedIndex};
use std::sync::atomic::Ordering::Relaxed;

/// What a site's agent keeps of one instance.
pub(super) struct Index {
    index: SharedIndex,
    events: broadcast::Receiver<KvEvent>,
}

impl Index {
    pub(super) fn of(instance: &ForeignInstance) -> Self {
        Self {
            index: SharedIndex::new(Bytes(1 << 24)),
            events: instance.events(),
        }
    }

    /// Tokens of a tenant's prompt that are held.
    pub(super) fn held(&mut self, tenant: &str, prompt: &str) -> u32 {
        while let Ok(event) = self.events.try_recv() {
            match event {
                KvEvent::Stored {
                    part, parent, blocks, ..
                } => {
                    self.index.stored(Holder::part(0, part), parent, &blocks);
                }
                KvEvent::Removed { part, blocks } => self.index.removed(Holder::part(0, part), &blocks),
                KvEvent::Cleared { rank } => self.index.clear(Place { instance: 0, rank }),
            }
        }
        let tokens: Vec<u32> = prompt.bytes().map(u32::from).collect();
        let mut lookup = Lookup::default();
        self.index
            .look_up(&BlockHash::chain(&key(tenant), &tokens), &mut lookup);
        lookup
            .matches()
            .iter()
            .map(|found| found.blocks * 16)
            .max()
            .unwrap_or(0)
    }
}

fn listening(engine: &ModelledEngine) -> ForeignConfig {
    ForeignConfig {
        events: Some(EventsConfig {
            endpoint: engine.events().unwrap().to_owned(),
            replay: engine.replay().map(str::to_owned),
            ranks: 1,
        }),
        ..config(engine.address())
    }
}

const PROMPT: &str = "0123456789abcdef0123456789abcdef0123456789abcdef tail";

async fn ask(instance: &ForeignInstance, tenant: &str, prompt: &str) {
    let mut job = job(&completion(prompt, json!({})));
    job.salt = salt(tenant);
    all(instance.answer(job, None).await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn what_an_engine_stores_and_drops_is_in_the_index_of_its_tenant_only() {
    let small = Profile {
        kv: crate::modelled::KvRoom {
            blocks: 36,
            ..quick().kv
        },
        context_tokens: 512,
        ..quick()
    };
    let engine = modelled(small, "127.0.0.1:0", Some(any_ports())).await;
    let instance = up(listening(&engine)).await;
    let mut index = Index::of(&instance);
    ask(&instance, "acme", PROMPT).await;
    until("the prompt's blocks are known", || {
        index.held("acme", PROMPT) == 48
    })
    .await;
    assert_eq!(index.held("globex", PROMPT), 0);
    // Two long prompts push the first out.
    for fill in ["y", "z"] {
        ask(&instance, "globex", &fill.repeat(400)).await;
    }
    until("they were dropped", || index.held("acme", PROMPT) == 0).await;
    until("the last is known", || {
        index.held("globex", &"z".repeat(400)) == 400
    })
    .await;
}

#[tokio::test]
async fn what_was_stored_before_anyone_listened_is_replayed_once_its_salt_is_known() {
    let engine = modelled(quick(), "127.0.0.1:0", Some(any_ports())).await;
    let deaf = up(config(engine.address())).await;
    ask(&deaf, "acme", PROMPT).await;
    let instance = ForeignInstance::start(listening(&engine)).unwrap();
    instance.expect(&salt("acme"));
    let mut index = Index::of(&instance);
    until("the replay came", || index.held("acme", PROMPT) == 48).await;
    assert_eq!(instance.shared.counts.replays.load(Relaxed), 1);
}

#[tokio::test]
async fn gaps_are_filled_by_replays() {
    let faults = Faults {
        lose_events_permille: 500,
        seed: 5,
        ..Faults::default()
    };
    let engine = modelled(Profile { faults, ..quick() }, "127.0.0.1:0", Some(any_ports())).await;
    let instance = up(listening(&engine)).await;
    let mut index = Index::of(&instance);
    let prompts: Vec<String> = (0..12).map(|n| format!("{n:016}{PROMPT}")).collect();
    for prompt in &prompts {
        ask(&instance, "acme", prompt).await;
    }
    // The last batches may be lost, and nothing that follows shows it: one more that is not.
    for n in 0..8 {
        ask(&instance, "acme", &format!("{n:016}{PROMPT} and more {n}")).await;
    }
    until("every prompt is known in spite of what was lost", || {
        prompts.iter().all(|prompt| index.held("acme", prompt) == 64)
    })
    .await;
    assert!(instance.shared.counts.replays.load(Relaxed) > 1);
}

#[tokio::test]
async fn a_restarted_engine_is_another_and_holds_nothing() {
    let ports = any_ports();
    let engine = modelled(quick(), "127.0.0.1:0", Some(ports)).await;
    let (address, publish, replay) = (
        engine.address(),
        engine.events().unwrap().to_owned(),
        engine.replay().unwrap().to_owned(),
    );
    let instance = up(listening(&engine)).await;
    let mut index = Index::of(&instance);
    ask(&instance, "acme", PROMPT).await;
    until("it is known", || index.held("acme", PROMPT) == 48).await;
    drop(engine);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let again = EventPorts {
        publish,
        replay: Some(replay),
        topic: "kv@v@tiny".to_owned(),
    };
    let _engine = modelled(quick(), &address.to_string(), Some(again)).await;
    until("what it held is gone", || index.held("acme", PROMPT) == 0).await;
    until("it is up again", || instance.is_up()).await;
    ask(&instance, "acme", PROMPT).await;
    until("and what it holds is known", || index.held("acme", PROMPT) == 48).await;
}

#[tokio::test]
async fn requests_without_events_are_an_alarm() {
    let engine = modelled(quick(), "127.0.0.1:0", Some(any_ports())).await;
    // Nobody publishes at this address.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let instance = up(ForeignConfig {
        events: Some(EventsConfig {
            endpoint: format!("tcp://{}", silent.local_addr().unwrap()),
            replay: None,
            ranks: 1,
        }),
        connector: Some(Connector::Nixl),
        ..config(engine.address())
    })
    .await;
    // Prompts that are computed for another engine fill blocks as well.
    for n in 0..3 {
        ask(&instance, "acme", &format!("{n} {PROMPT}")).await;
        let offer = instance.offer(job(&completion(&format!("{n} for another: {PROMPT}"), json!({}))));
        offer.await.unwrap().prefilling.await.unwrap();
    }
    let begun = Instant::now();
    let silent = || instance.shared.counts.silent.load(Relaxed) == 1;
    while !silent() && begun.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(silent());
    assert!(
        begun.elapsed() > Duration::from_secs(8),
        "one slow batch is no alarm"
    );
}
