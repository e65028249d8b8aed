//! Jobs that cannot be done, jobs that nobody waits for, and jobs that wait for a slot.

use crate::support::{
    MODELS, answer, config, decode_job, key, kv_for, load, prefill, prefill_job, prompt, start,
};
use portolan_base::{Bytes, ModelName, Provenance, TenantKey, TenantName};
use portolan_engine::{InstanceConfig, NativeInstance};
use portolan_ports::{
    DecodeEvent, DecodeJob, Engine, EngineError, FinishReason, KvSet, PrefillJob, Role, Sampling,
};
use std::sync::Arc;
use tokio::sync::mpsc;

fn reason(error: EngineError) -> String {
    match error {
        EngineError::BadJob(reason) => reason,
        other => panic!("a bad job expected: {other:?}"),
    }
}

#[tokio::test]
async fn impossible_prefills_are_refused_with_the_numbers() {
    let engine = start(&load("tiny-qwen3"));
    let cases = [
        (prefill_job(&[], 0), vec!["empty"]),
        (prefill_job(&[1, 2048], 0), vec!["2048", "position 1"]),
        (prefill_job(&prompt(2048), 0), vec!["2049", "2048"]),
        (prefill_job(&prompt(100), 63), vec!["63", "64"]),
        (prefill_job(&prompt(100), 128), vec!["128", "100"]),
    ];
    for (job, expected) in cases {
        let refused = reason(prefill(&engine, job).await.unwrap_err());
        assert!(
            expected.iter().all(|part| refused.contains(part)),
            "{refused:?} lacks one of {expected:?}"
        );
    }
    let decoding = NativeInstance::start(load("tiny-qwen3"), config("d", Role::Decode)).unwrap();
    assert!(reason(prefill(&decoding, prefill_job(&[1], 0)).await.unwrap_err()).contains("role"));
}

#[tokio::test]
async fn impossible_decodes_are_refused_with_the_numbers() {
    let model = load("tiny-qwen3");
    let engine = start(&model);
    let prompt = prompt(10);
    let kv = kv_for(&engine, &prompt).await;
    let newer = InstanceConfig {
        model_version: 2,
        ..config("n", Role::Both)
    };
    let newer = kv_for(
        &NativeInstance::start(Arc::clone(&model), newer).unwrap(),
        &prompt,
    )
    .await;
    let renamed = InstanceConfig {
        model: ModelName::new("other").unwrap(),
        ..config("n", Role::Both)
    };
    let renamed = kv_for(&NativeInstance::start(model, renamed).unwrap(), &prompt).await;
    let hybrid = kv_for(&start(&load("tiny-qwen3_5")), &prompt).await;
    let job = |kv: &KvSet| decode_job(&prompt, kv.clone(), 4);
    let sampling = |temperature, top_p| Sampling {
        temperature,
        top_p,
        ..Sampling::GREEDY
    };
    let cases: [(DecodeJob, &str); 10] = [
        (
            DecodeJob {
                prompt: [].into(),
                ..job(&kv)
            },
            "empty",
        ),
        (
            DecodeJob {
                prompt: [5000; 10].into(),
                ..job(&kv)
            },
            "5000",
        ),
        (
            DecodeJob {
                max_tokens: 2039,
                ..job(&kv)
            },
            "2049",
        ),
        (
            DecodeJob {
                max_tokens: 0,
                ..job(&kv)
            },
            "max_tokens",
        ),
        (
            DecodeJob {
                prompt: prompt[..9].into(),
                ..job(&kv)
            },
            "covers 9 tokens",
        ),
        (job(&newer), "version 2"),
        (job(&renamed), "other"),
        (job(&hybrid), "8 layers"),
        (
            DecodeJob {
                sampling: sampling(f32::NAN, 1.0),
                ..job(&kv)
            },
            "temperature",
        ),
        (
            DecodeJob {
                sampling: sampling(1.0, 0.0),
                ..job(&kv)
            },
            "top_p",
        ),
    ];
    for (job, expected) in cases {
        match answer(engine.decode(job)).await.end {
            Some(DecodeEvent::Failed(EngineError::BadJob(reason))) => {
                assert!(reason.contains(expected), "{reason:?} lacks {expected:?}");
            }
            other => panic!("{expected}: a refusal expected: {other:?}"),
        }
    }
    assert_eq!(
        answer(engine.decode(job(&kv))).await.tokens.len(),
        4,
        "the instance goes on"
    );
}

#[tokio::test]
async fn a_cancelled_prefill_stops_and_leaves_the_queue() {
    let engine = Arc::new(start(&load("tiny-qwen3_5")));
    let job = prefill_job(&prompt(2000), 0);
    let cancel = job.cancel.clone();
    let (sender, mut pieces) = mpsc::unbounded_channel();
    let running = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { engine.prefill(job, sender).await }
    });
    pieces.recv().await.unwrap();
    cancel.cancel();
    assert_eq!(running.await.unwrap(), Err(EngineError::Cancelled));
    let mut sent = 1;
    while pieces.recv().await.is_some() {
        sent += 1;
    }
    // 2 attention layers of 32 blocks, and 6 recurrent states.
    assert!(sent < 70, "all {sent} pieces were sent");
    let (_, report) = prefill(&*engine, prefill_job(&[1, 2, 3], 0)).await.unwrap();
    assert_eq!(report.computed, 3);
    assert_eq!(engine.load().prefill_queued_tokens, 0);
}

#[tokio::test]
async fn a_prefill_whose_caller_is_gone_stops() {
    let engine = start(&load("tiny-qwen3_5"));
    let (sender, mut pieces) = mpsc::unbounded_channel();
    {
        let running = engine.prefill(prefill_job(&prompt(2000), 0), sender);
        tokio::pin!(running);
        tokio::select! {
            _ = &mut running => panic!("2000 tokens take longer than one piece"),
            piece = pieces.recv() => assert!(piece.is_some()),
        }
    }
    let mut sent = 1;
    while pieces.recv().await.is_some() {
        sent += 1;
    }
    assert!(sent < 70, "all {sent} pieces were sent");
}

#[tokio::test]
async fn a_decode_waits_for_a_slot_and_a_dropped_receiver_frees_one() {
    let model = load("tiny-qwen3");
    let one_slot = InstanceConfig {
        decode_slots: 1,
        ..config("a", Role::Both)
    };
    let engine = NativeInstance::start(model, one_slot).unwrap();
    let prompt = prompt(10);
    let kv = kv_for(&engine, &prompt).await;
    let mut long = engine.decode(decode_job(&prompt, kv.clone(), 2000));
    assert!(matches!(long.recv().await, Some(DecodeEvent::Logits(_))));
    let mut next = engine.decode(decode_job(&prompt, kv.clone(), 3));
    assert_eq!(engine.load().decode_running, 2);
    assert!(matches!(long.recv().await, Some(DecodeEvent::Token(_))));
    assert!(next.try_recv().is_err(), "the only slot is taken");
    drop(long);
    let second = answer(next).await;
    assert_eq!(
        (second.tokens.len(), second.end),
        (3, Some(DecodeEvent::Finished(FinishReason::Length)))
    );
    let cancelled = decode_job(&prompt, kv, 2000);
    let cancel = cancelled.cancel.clone();
    let mut events = engine.decode(cancelled);
    events.recv().await.unwrap();
    cancel.cancel();
    assert_eq!(
        answer(events).await.end,
        None,
        "a cancelled job ends without an event"
    );
    assert_eq!(engine.load().decode_running, 0);
}

#[tokio::test]
async fn a_stop_token_ends_the_answer_and_is_not_sent() {
    let engine = start(&load("tiny-qwen3"));
    let prompt = prompt(10);
    let kv = kv_for(&engine, &prompt).await;
    let free = answer(engine.decode(decode_job(&prompt, kv.clone(), 6))).await;
    let stop = free.tokens[3];
    let first = free.tokens.iter().position(|token| *token == stop).unwrap();
    let stopped = answer(engine.decode(DecodeJob {
        stop_ids: vec![stop],
        ..decode_job(&prompt, kv, 6)
    }))
    .await;
    assert_eq!(stopped.tokens, free.tokens[..first]);
    assert_eq!(stopped.end, Some(DecodeEvent::Finished(FinishReason::Stop)));
}

#[tokio::test]
async fn load_tells_speeds_from_the_beginning_and_a_dropped_instance_fails_its_jobs() {
    let engine = start(&load("tiny-qwen3"));
    let load = engine.load();
    assert!(load.prefill_ns_per_token > 0 && load.decode_step_us > 0);
    let prompt = prompt(10);
    let kv = kv_for(&engine, &prompt).await;
    let events = engine.decode(decode_job(&prompt, kv, 2000));
    assert_eq!(engine.held(&key(), &prompt, &[]).tokens, 0);
    drop(engine);
    assert!(matches!(
        answer(events).await.end,
        Some(DecodeEvent::Failed(EngineError::Broken(_)))
    ));
}

#[tokio::test]
async fn sequences_that_outgrow_their_memory_take_turns_and_answer_as_with_room() {
    for name in MODELS {
        let model = load(name);
        let roomy = start(&model);
        let prompts: Vec<Vec<u32>> = (0..4u32)
            .map(|n| {
                prompt(70 + 9 * n as usize)
                    .iter()
                    .map(|token| (token + n) % 2000)
                    .collect()
            })
            .collect();
        let layout = Arc::clone(&roomy.describe().layout);
        // Two answers grow to some 190 tokens each within it, four do not.
        let pool = Bytes(3 * layout.fixed_bytes().0 + 400 * layout.bytes_per_token().0);
        let tight = InstanceConfig {
            pool,
            ..config("t", Role::Both)
        };
        let tight = NativeInstance::start(Arc::clone(&model), tight).unwrap();
        let (mut expected, mut running) = (Vec::new(), Vec::new());
        for prompt in &prompts {
            let kv = kv_for(&roomy, prompt).await;
            expected.push(answer(roomy.decode(decode_job(prompt, kv.clone(), 90))).await);
            running.push(decode_job(prompt, kv, 90));
        }
        let running: Vec<_> = running.into_iter().map(|job| tight.decode(job)).collect();
        for (events, expected) in running.into_iter().zip(expected) {
            let got = answer(events).await;
            assert_eq!((got.tokens.len(), &got), (90, &expected), "{name}");
        }
        assert!(tight.times_set_aside() > 0, "{name}: all four fit");
        assert_eq!(roomy.times_set_aside(), 0);
    }
}

#[tokio::test]
async fn answers_side_by_side_are_those_of_each_alone() {
    for name in MODELS {
        let engine = start(&load(name));
        let (mut alone, mut together) = (Vec::new(), Vec::new());
        for n in [3, 64, 65, 130] {
            let prompt = prompt(n);
            let kv = kv_for(&engine, &prompt).await;
            alone.push(answer(engine.decode(decode_job(&prompt, kv.clone(), 20))).await);
            together.push(decode_job(&prompt, kv, 20));
        }
        let together: Vec<_> = together.into_iter().map(|job| engine.decode(job)).collect();
        for (events, alone) in together.into_iter().zip(alone) {
            let answer = answer(events).await;
            assert_eq!(answer.bits(), alone.bits(), "{name}");
            assert_eq!(answer.tokens, alone.tokens, "{name}");
        }
    }
}

#[tokio::test]
async fn a_tenant_that_has_nothing_running_gets_a_slot_of_the_one_that_has_them_all() {
    let engine = start(&load("tiny-qwen3"));
    let prompt = prompt(40);
    let kv = kv_for(&engine, &prompt).await;
    let alone = answer(engine.decode(decode_job(&prompt, kv.clone(), 400))).await;
    let mut burst: Vec<_> = (0..4)
        .map(|_| {
            engine.decode(DecodeJob {
                logits: false,
                ..decode_job(&prompt, kv.clone(), 400)
            })
        })
        .collect();
    for events in &mut burst {
        let first = events.recv().await;
        assert_eq!(first, Some(DecodeEvent::Token(alone.tokens[0])), "it runs");
    }
    let another = TenantName::new("another").unwrap();
    let other = DecodeJob {
        key: TenantKey::derive(&[1; 32], "another", "model", 1),
        about: Arc::new(Provenance::of(another, ModelName::new("model").unwrap(), 1)),
        ..decode_job(&prompt, kv, 3)
    };
    let answered = answer(engine.decode(other)).await;
    assert_eq!(answered.tokens, alone.tokens[..3]);
    assert_eq!(engine.load().decode_running, 4, "the burst is not over");
    for events in burst {
        assert_eq!(answer(events).await.tokens, alone.tokens[1..]);
    }
    assert_eq!(engine.times_set_aside(), 1);
}

/// A salt of the client's own, a newer version or an order of which nothing is kept changes the key, and not whose it is.
#[tokio::test]
async fn another_key_of_the_same_tenant_waits_for_a_slot_as_its_other_requests_do() {
    let engine = start(&load("tiny-qwen3"));
    let prompt = prompt(40);
    let kv = kv_for(&engine, &prompt).await;
    let mut burst: Vec<_> = (0..4)
        .map(|_| {
            engine.decode(DecodeJob {
                logits: false,
                ..decode_job(&prompt, kv.clone(), 60)
            })
        })
        .collect();
    for events in &mut burst {
        assert!(
            matches!(events.recv().await, Some(DecodeEvent::Token(_))),
            "it runs"
        );
    }
    let salted = DecodeJob {
        key: key().salted("fresh"),
        ..decode_job(&prompt, kv, 3)
    };
    assert_eq!(answer(engine.decode(salted)).await.tokens.len(), 3);
    for events in burst {
        assert_eq!(answer(events).await.tokens.len(), 59);
    }
    assert_eq!(engine.times_set_aside(), 0, "nobody gave a slot up for it");
}

#[tokio::test]
async fn another_key_of_the_same_tenant_gets_no_turns_of_its_own_for_its_prompt() {
    let engine = Arc::new(start(&load("tiny-qwen3")));
    let fresh = |salt: &str| PrefillJob {
        key: key().salted(salt),
        ..prefill_job(&prompt(640), 0)
    };
    let (first, second) = (fresh("one"), fresh("two"));
    let ((_, first), (_, second)) =
        tokio::try_join!(prefill(engine.as_ref(), first), prefill(engine.as_ref(), second)).unwrap();
    // In turns with it, the second would begin after one piece of the first.
    assert!(
        second.queue_us * 2 > first.compute_us,
        "{} of {} us",
        second.queue_us,
        first.compute_us
    );
}
