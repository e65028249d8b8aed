//! KV of llama.cpp's server from one process to another, through saved slots.

use super::llama::{llama, python};
use super::world::*;
use super::*;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::JoinSet;

/// Longer than the shortest prompt that is parted, by any tokenizer.
const PROMPT: &str = "The history of navigation begins with coasts: a pilot of the thirteenth century had a chart of \
    the harbours, a compass, and a book that told how far and on which bearing each port lay from the next. The first";

fn slots(folder: &Path) -> Option<Connector> {
    Some(Connector::Slots {
        folder: folder.to_owned(),
    })
}

fn saved(folder: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|ext| ext == "slot"))
        .collect()
}

async fn decoded(decode: &ForeignInstance, body: &str, params: Option<Arc<str>>) -> (String, u64) {
    let (head, bytes) = all(decode.answer(job(body), params).await.unwrap())
        .await
        .unwrap();
    let answer: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(head.status, 200, "{answer}");
    let text = answer["choices"][0]["text"].as_str().unwrap().to_owned();
    (text, answer["timings"]["cache_n"].as_u64().unwrap_or(0))
}

#[tokio::test]
async fn a_prompt_computed_by_one_real_server_is_decoded_by_another_as_by_a_single_one() {
    let Some(python) = python() else { return };
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let at = |n: usize| folders[n].path();
    // Each saves in a folder of its own, so the file moves too.
    let ((prefill, _), (decode, _), (single, _)) = tokio::join!(
        llama(&python, at(0), slots(at(0))),
        llama(&python, at(1), slots(at(1))),
        llama(&python, at(2), None)
    );
    let body = completion(PROMPT, json!({"max_tokens": 24, "ignore_eos": true}));
    let (expected, _) = decoded(&single, &body, None).await;
    assert!(decode.is_parted(&job(&body), 40));
    let offer = prefill.offer(job(&body)).await.unwrap();
    offer.prefilling.await.unwrap();
    assert_eq!(saved(at(0)).len(), 1);
    let (text, reused) = decoded(&decode, &body, offer.params).await;
    assert_eq!(text, expected);
    assert!(reused > 30, "{reused} tokens were not computed again");
    assert!(
        saved(at(0)).is_empty() && saved(at(1)).is_empty(),
        "nothing stays on disk"
    );

    // Other bytes than were saved are not used, and nobody is told wrong tokens.
    let other = completion(
        &format!("Once more. {PROMPT}"),
        json!({"max_tokens": 24, "ignore_eos": true}),
    );
    let (expected, _) = decoded(&single, &other, None).await;
    let params = prefill.offer(job(&other)).await.unwrap().params;
    let file = saved(at(0)).pop().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(&file, bytes).unwrap();
    let (text, reused) = decoded(&decode, &other, params).await;
    assert_eq!(text, expected);
    assert!(reused < 30, "{reused} tokens of damaged KV were used");
    assert!(
        saved(at(0)).is_empty() && saved(at(1)).is_empty(),
        "nothing stays on disk"
    );

    // What nobody comes for is removed.
    let params = prefill.offer(job(&body)).await.unwrap().params.unwrap();
    decode.release(job(&body), params);
    assert!(saved(at(0)).is_empty());
}

#[tokio::test]
async fn a_server_that_saves_nothing_leaves_the_prompt_to_the_other() {
    let (address, _server) = server(|got, mut stream| async move {
        let ok = |body: &str| {
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length:";
            format!("{head} {}\r\n\r\n{body}", body.len())
        };
        let line = got.head.lines().next().unwrap_or_default().to_owned();
        let said = match line.as_str() {
            line if line.contains("/props") => ok(r#"{"total_slots":1}"#),
            line if line.contains("/slots/") => {
                "HTTP/1.1 501 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_owned()
            }
            _ => {
                let body = String::from_utf8_lossy(&got.body).into_owned();
                ok(&json!({"choices": [{"text": body}]}).to_string())
            }
        };
        let own = housekeeping(&got).filter(|_| !line.contains("/props") && !line.contains("/slots"));
        write(&mut stream, own.unwrap_or(said.as_bytes())).await;
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let stale = folder.path().join("portolan-0.slot");
    std::fs::write(&stale, b"left by an earlier process").unwrap();
    let instance = up(ForeignConfig {
        make: Make::LlamaCpp,
        connector: slots(folder.path()),
        ..config(address)
    })
    .await;
    assert!(!stale.exists());
    let body = completion(PROMPT, json!({}));
    let offer = instance.offer(job(&body)).await.unwrap();
    assert!(offer.params.is_none());
    assert_eq!(instance.shared.counts.unusable_offers.load(Relaxed), 1);
    // A file that is gone: the request goes on without it, and without a slot of its own.
    let gone =
        json!({"folder": folder.path(), "file": "portolan-1.slot", "tokens": 9, "digest": "0"}).to_string();
    let (sent, _) = decoded(&instance, &body, Some(gone.into())).await;
    assert!(!sent.contains("id_slot"), "{sent}");
    let forgetful = WholeJob {
        salt: CacheSalt {
            text: "once".into(),
            root: None,
        },
        ..job(&body)
    };
    assert!(
        !instance.is_parted(&forgetful, 100),
        "what may not be kept is not written down"
    );
}

/// A server that saves what it is told to, a while after it was, and is slow at whatever `slow` names.
async fn slow_server(folder: PathBuf, slow: &'static str) -> (SocketAddr, JoinSet<()>) {
    server(move |got, mut stream| {
        let folder = folder.clone();
        async move {
            let line = got.head.lines().next().unwrap_or_default().to_owned();
            let json = |value: Value| {
                let (body, head) = (value.to_string(), "HTTP/1.1 200 OK\r\nconnection: close");
                format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            };
            if !slow.is_empty() && line.contains(slow) {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            if line.contains("action=save") {
                let asked: Value = serde_json::from_slice(&got.body).unwrap();
                std::fs::write(folder.join(asked["filename"].as_str().unwrap()), b"KV").unwrap();
            }
            let said = match line.as_str() {
                line if line.contains("/props") => json(json!({"total_slots": 2})),
                line if line.contains("action=save") => json(json!({"n_saved": 9})),
                line if line.contains("action=restore") => json(json!({"n_restored": 9})),
                _ => json(json!({"choices": [{"text": ""}]})),
            };
            let own = housekeeping(&got).filter(|_| !line.contains("/props") && !line.contains("/slots"));
            write(&mut stream, own.unwrap_or(said.as_bytes())).await;
        }
    })
    .await
}

async fn with_slots(address: SocketAddr, folder: &Path) -> ForeignInstance {
    up(ForeignConfig {
        make: Make::LlamaCpp,
        connector: slots(folder),
        ..config(address)
    })
    .await
}

#[tokio::test]
async fn a_request_that_ends_while_its_slot_is_saved_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (address, _server) = slow_server(folder.path().to_owned(), "action=save").await;
    let instance = with_slots(address, folder.path()).await;
    let body = completion(PROMPT, json!({}));
    let cancelled = job(&body);
    let cancel = cancelled.cancel.clone();
    let (ended, ()) = tokio::join!(instance.offer(cancelled), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel.cancel();
    });
    assert!(matches!(ended, Err(EngineError::Cancelled)));
    let left = tokio::time::timeout(Duration::from_millis(100), instance.offer(job(&body))).await;
    assert!(left.is_err(), "the prefill's time is up");
    tokio::time::sleep(Duration::from_millis(400)).await;
    until("what was saved meanwhile is gone", || {
        saved(folder.path()).is_empty()
    })
    .await;
    // And the slots are free again: there are two.
    for _ in 0..2 {
        assert!(instance.offer(job(&body)).await.unwrap().params.is_some());
    }
    assert_eq!(saved(folder.path()).len(), 2, "they wait to be read");
}

#[tokio::test]
async fn a_request_that_ends_before_or_while_a_slot_is_restored_leaves_no_file() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let at = |n: usize| folders[n].path();
    let (address, _server) = slow_server(at(0).to_owned(), "").await;
    let prefill = with_slots(address, at(0)).await;
    let (address, _server) = slow_server(at(1).to_owned(), "action=restore").await;
    let decode = with_slots(address, at(1)).await;
    let body = completion(PROMPT, json!({}));
    for wait in [Duration::ZERO, Duration::from_millis(100)] {
        let params = prefill.offer(job(&body)).await.unwrap().params;
        assert_eq!(saved(at(0)).len(), 1);
        let cancelled = job(&body);
        let cancel = cancelled.cancel.clone();
        if wait.is_zero() {
            cancel.cancel();
        }
        let (ended, ()) = tokio::join!(decode.answer(cancelled, params), async {
            tokio::time::sleep(wait).await;
            cancel.cancel();
        });
        assert!(matches!(ended, Err(EngineError::Cancelled)), "after {wait:?}");
        until("nothing stays on disk", || {
            saved(at(0)).is_empty() && saved(at(1)).is_empty()
        })
        .await;
    }
}
