//! One site whose instances compute as on a GPU, the other with the processor's own kernels: one KV, the same answers.

use portolan_engine::ComputeDevice;
use portolan_tests::{Ask, Link, Oracle, World, oracle_folder};

const FAST: Link = Link {
    delay_ms: 1,
    rate_mbps: 0,
};

#[test]
fn a_prompt_computed_on_another_kind_of_device_is_answered_as_the_reference_does() {
    for tensors_at in ["paris", "virginia"] {
        let world = World::start_changed(&oracle_folder("tiny-qwen3"), FAST, |config| {
            let sites = config.sites.iter_mut();
            for site in sites.filter(|site| site.name.as_str() == tensors_at) {
                for instance in &mut site.instances {
                    instance.device = ComputeDevice::CpuTensors;
                }
            }
        });
        for case in Oracle::of("tiny-qwen3").prompts {
            let ask = Ask::tokens(&case.prompt_ids);
            let there = world.ask(&ask.clone().remote());
            assert_eq!(there.tokens, case.greedy_ids, "tensors at {tensors_at}");
            assert!(there.record.kv.bytes_moved > 0, "{:?}", there.record.kv);
            let again = world.ask(&ask.local());
            assert_eq!(again.tokens, case.greedy_ids, "tensors at {tensors_at}, cached");
            let reusable = (case.prompt_ids.len() as u32 - 1) / 64 * 64;
            assert_eq!(again.record.kv.cached_tokens, reusable);
        }
    }
}
