//! KV of llama.cpp's server with the host: out of one process's slots, into another's.

use super::llama::{files, llama_with, python};
use super::world::*;
use super::*;
use bytes::Bytes;
use portolan_base::kv::{KvDtype, KvLayout, LayerKv};
use portolan_base::{BlockHash, ModelName, Provenance};
use portolan_ports::{CacheSalt, KeepJob, KvEvent, KvSet};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

const STORY: &str = "The history of navigation begins with coasts: a pilot of the thirteenth century had a chart of \
    the harbours, a compass, and a book that told how far and on which bearing each port lay from the next. Sailors \
    of the Mediterranean measured such distances in miles and bearings in quarter winds, and their charts were drawn \
    on the skin of a sheep, with the neck to the west. The first";

const BLOCK: usize = 16;

/// Tokens of an answer: enough that rounding shows.
const SAID: u32 = 24;

/// Far above what an answer takes.
const LONGEST: Duration = Duration::from_secs(60);

/// As the host describes an instance whose saved slots lie with it.
fn layout() -> KvLayout {
    let layout = files().1.layout(ModelName::new("tiny").unwrap(), 1);
    let channels = |layer: &LayerKv| match *layer {
        LayerKv::FullAttention { kv_heads, head_dim } => LayerKv::FullAttention {
            kv_heads: kv_heads * head_dim,
            head_dim: 1,
        },
        other => other,
    };
    KvLayout {
        dtype: KvDtype::F16,
        block_tokens: BLOCK as u32,
        layers: layout.layers.iter().map(channels).collect(),
        ..layout
    }
}

async fn keeping(python: &str, folder: &Path) -> ForeignInstance {
    let kept = |config: &mut ForeignConfig| {
        config.description.layout = Arc::new(layout());
        config.kv_store = Some(KvStoreConfig {
            place: KvPlace::Slots(folder.to_owned()),
            most: 256 << 20,
        });
    };
    llama_with(python, folder, kept).await.0
}

/// A prompt of the tenant's, by its tokens.
fn asks(tenant: &str, prompt: &[u32], tokens: u32) -> WholeJob {
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true});
    WholeJob {
        salt: CacheSalt {
            text: key(tenant).cache_salt().into(),
            root: Some(BlockHash::root(&key(tenant))),
        },
        prompt: prompt.into(),
        ..job(&body.to_string())
    }
}

/// What it says, and how many of the prompt's tokens it did not compute.
async fn said(instance: &ForeignInstance, job: WholeJob) -> (String, u64) {
    let (_, bytes) = all(instance.answer(job, None).await.unwrap()).await.unwrap();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    let text = answer["choices"][0]["text"].as_str();
    let text = text.unwrap_or_else(|| panic!("{answer}")).to_owned();
    (text, answer["timings"]["cache_n"].as_u64().unwrap_or(0))
}

/// What the server says by itself to a prompt of which it has `left` tokens, as they were when it computed `computed`: it
/// is asked past the host for that one, for another that leaves no more of it, then for the prompt.
///
/// KV in a slot is not what computing anew would give: the server rounds otherwise where it computes fewer tokens in one
/// go, and greedy answers turn on it. So what it says from a file is held against what it says from the same KV of its own.
async fn from_its_own(instance: &ForeignInstance, computed: &[u32], left: usize, asked: &[u32]) -> String {
    let cut = [&computed[..left], &[asked[left] ^ 1]].concat();
    let mut said = Value::Null;
    for (prompt, tokens, again) in [(computed, 1, false), (&cut, 1, true), (asked, SAID, true)] {
        let ask = json!({"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": true, "id_slot": 0, "cache_prompt": again});
        let ask = Bytes::from(ask.to_string());
        let answer = instance
            .shared
            .upstream
            .ask("/v1/completions", ask, LONGEST)
            .await;
        said = serde_json::from_slice(&answer.unwrap().1).unwrap();
    }
    assert_eq!(said["timings"]["cache_n"], left, "{said}");
    said["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// Tokens of the prompt that lie with the host.
fn kept(instance: &ForeignInstance, prompt: &[u32]) -> u32 {
    instance.kept(&key("acme"), prompt, &[]).tokens
}

fn left_in(folder: &Path) -> usize {
    let all = std::fs::read_dir(folder).unwrap();
    all.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .path()
            .extension()
            .is_some_and(|ext| ext == "slot")
    })
    .count()
}

#[tokio::test]
async fn blocks_out_of_one_servers_slots_are_used_by_another_which_says_what_the_first_would() {
    let Some(python) = python() else { return };
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [first, second, third] = &folders;
    let (first, second, third) = tokio::join!(
        keeping(&python, first.path()),
        keeping(&python, second.path()),
        keeping(&python, third.path())
    );
    let mut events = first.events();
    let prompt = files().1.text().encode(STORY, true).unwrap();
    let whole = (prompt.len() - 1) / BLOCK * BLOCK;
    assert!(whole >= 64, "{} tokens", prompt.len());
    let (_, cached) = said(&first, asks("acme", &prompt, SAID)).await;
    assert_eq!(cached, 0);
    until("its blocks lie with the host", || {
        kept(&first, &prompt) as usize >= whole
    })
    .await;
    assert!(
        matches!(events.try_recv(), Ok(KvEvent::Stored { .. })),
        "the index is told"
    );
    assert_eq!(
        first.kept(&key("globex"), &prompt, &[]).tokens,
        0,
        "another tenant's"
    );

    // As fetches bring them: all of them to one server, some to another.
    let held = first.kept(&key("acme"), &prompt[..whole], &[]);
    let other = [&prompt[..whole], &prompt[3..40]].concat();
    for (to, tokens, asked) in [(&second, whole, &other), (&third, 2 * BLOCK, &prompt)] {
        let pieces = held.pieces.iter();
        let pieces = pieces.filter(|piece| piece.id.tokens.end as usize <= tokens);
        let job = KeepJob {
            key: key("acme"),
            tokens: prompt[..tokens].into(),
            kv: KvSet::assemble(
                Arc::new(layout()),
                tokens as u32,
                pieces.cloned().collect::<Vec<_>>(),
            )
            .unwrap(),
            about: Arc::new(Provenance::public(ModelName::new("tiny").unwrap(), 1)),
        };
        assert_eq!(to.keep(&job).0 as usize, tokens);
        let expected = from_its_own(&first, &prompt, tokens, asked).await;
        let (text, cached) = said(to, asks("acme", asked, SAID)).await;
        assert_eq!((text, cached), (expected, tokens as u64));
    }
    until("the rest was computed and is kept", || {
        kept(&third, &prompt) as usize >= whole
    })
    .await;
    until("files live as long as a save", || {
        folders.iter().all(|folder| left_in(folder.path()) == 0)
    })
    .await;
}

#[tokio::test]
async fn what_nobody_may_find_again_is_not_kept_and_damage_is_computed() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let instance = keeping(&python, folder.path()).await;
    let prompt = files().1.text().encode(STORY, true).unwrap();
    let mut once = asks("acme", &prompt, 8);
    once.salt.root = None;
    let (expected, _) = said(&instance, once).await;
    assert_eq!(kept(&instance, &prompt), 0);
    // Several answers have slots of the server's own choice.
    let mut two = asks("acme", &prompt, 8);
    let body = String::from_utf8(two.body.to_vec())
        .unwrap()
        .replace("\"temperature\":0", "\"temperature\":0,\"n\":2");
    two.body = body.into();
    said(&instance, two).await;
    assert_eq!(kept(&instance, &prompt), 0);

    let (text, _) = said(&instance, asks("acme", &prompt, 8)).await;
    assert_eq!(text, expected);
    until("it is kept", || kept(&instance, &prompt) > 64).await;
    // Both slots are used by others, then a folder that nothing can be written to.
    for n in 0..2 {
        said(&instance, asks("globex", &prompt[n + 5..], 2)).await;
    }
    let refused = &instance.shared.store.as_ref().unwrap().counts.refused;
    let before = refused.load(Relaxed);
    std::fs::remove_dir_all(folder.path()).unwrap();
    let (text, cached) = said(&instance, asks("acme", &prompt, 8)).await;
    assert_eq!(text, expected, "computed, {cached} found");
    assert!(refused.load(Relaxed) > before);
}
