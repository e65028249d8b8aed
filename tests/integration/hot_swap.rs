//! Policies are swapped while requests stream: no request fails, no stream is cut or changed.

use portolan_policy::QuestionKind;
use portolan_tests::world::{ACME, GLOBEX, shipped};
use portolan_tests::{Ask, Link, Oracle, World, oracle_folder};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const SWAPS: usize = 200;

#[test]
fn two_hundred_swaps_under_load_fail_nothing_and_cut_nothing() {
    let world = World::start(
        &oracle_folder("tiny-qwen3"),
        Link {
            delay_ms: 0,
            rate_mbps: 0,
        },
    );
    let cases = Oracle::of("tiny-qwen3").prompts;
    let components = ["threshold", "lowest-cost", "round-robin", "offload"].map(shipped);
    let (stop, served) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let _stop = StopWhenGone(&stop);
        for key in [ACME, ACME, GLOBEX] {
            let (world, cases, stop, served) = (&world, &cases, &stop, &served);
            scope.spawn(move || {
                let client = world.client(key);
                for case in cases.iter().cycle() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let body = Ask::tokens(&case.prompt_ids).body(true);
                    let streamed = stream(&client, &body);
                    assert_eq!(
                        streamed,
                        (case.greedy_ids.clone(), true),
                        "a stream was cut or changed"
                    );
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for swap in 0..SWAPS {
            let component = &components[swap % components.len()];
            let pushed = world.push(ACME, ("acme", "routing"), component, "");
            assert_eq!(pushed.unwrap()["generation"].as_u64(), Some(swap as u64 + 1));
        }
    });
    let served = served.load(Ordering::Relaxed);
    println!("{SWAPS} swaps, {served} streams, none failed");
    assert!(served > 20, "only {served} streams ran beside the swaps");
}

/// Ends the streams when the swaps are over, failed ones too: a scope waits for its threads.
struct StopWhenGone<'a>(&'a AtomicBool);

impl Drop for StopWhenGone<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The tokens of a stream, and whether it ended as it should.
fn stream(client: &portolan::client::Client, body: &Value) -> (Vec<u32>, bool) {
    let (mut tokens, mut finished, mut done) = (Vec::new(), false, false);
    let streamed = client.stream("/v1/completions", body, &mut |data| {
        if data == "[DONE]" {
            done = true;
            return true;
        }
        let event: Value = serde_json::from_str(data).unwrap();
        assert!(event["error"].is_null(), "{event}");
        let choice = &event["choices"][0];
        let ids = choice["token_ids"].as_array().into_iter().flatten();
        tokens.extend(ids.map(|id| id.as_u64().unwrap() as u32));
        finished |= choice["finish_reason"] == "length";
        true
    });
    streamed.unwrap();
    (tokens, finished && done)
}

/// From the first byte of an upload to the answer of a request that the new version decided, the check, the compilation
/// and the flush included. The bound holds for the fastest, since a busy machine delays any of them; the median is told.
#[test]
fn a_new_version_decides_within_300_ms_of_its_upload() {
    let world = World::start(
        &oracle_folder("tiny-qwen3"),
        Link {
            delay_ms: 0,
            rate_mbps: 0,
        },
    );
    let prompt = Oracle::of("tiny-qwen3").prompts[0].prompt_ids.clone();
    world.ask(&Ask::tokens(&prompt).max(1));
    let mut took: Vec<Duration> = (0..9)
        .map(|number| {
            let component = never_seen(&shipped("lowest-cost"), number);
            let begun = Instant::now();
            let pushed = world.push(ACME, ("acme", "routing"), &component, "").unwrap();
            let answer = world.ask(&Ask::tokens(&prompt).max(1));
            let took = begun.elapsed();
            let routing = answer
                .record
                .policies
                .iter()
                .find(|p| p.question == QuestionKind::Routing);
            assert_eq!(routing.unwrap().version, pushed["version"].as_str().unwrap());
            took
        })
        .collect();
    took.sort();
    println!(
        "upload to first decision: fastest {:?}, median {:?}, slowest {:?}",
        took[0], took[4], took[8]
    );
    assert!(took[0] < Duration::from_millis(300), "{took:?}");
}

/// The same component with a section of its own, so that nothing of it is compiled yet.
fn never_seen(component: &[u8], number: u8) -> Vec<u8> {
    let custom = [0, 6, 4, b's', b'e', b'e', b'n', number];
    [component, &custom].concat()
}
