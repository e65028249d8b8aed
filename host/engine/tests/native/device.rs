//! The network on the tensor library, which is what runs on a GPU: on the processor in every run, on a GPU where there is
//! one.

use crate::support::{
    MODELS, answer, config, decode_job, floats, folder, kv_for, load, npy, oracle, prefill, prefill_job,
    prompt, start, worst,
};
use portolan_base::Bytes;
use portolan_base::kv::KvWindow;
use portolan_engine::{
    ComputeDevice, DeviceError, InstanceConfig, LoadedModel, NativeInstance, generate, load_model,
};
use portolan_ports::{DecodeEvent, Engine, EngineError, FinishReason, Role};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Once};

/// As in the tests of the crate's own kernels.
const TOLERANCE: f32 = 2e-3;

const DENSE: &str = "tiny-qwen3";

/// A line past the harness, which would swallow that of a test that passes.
fn say(line: &str) {
    std::io::stderr()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
}

/// A tiny model on every device of this machine that runs this code, and the same model on the processor's kernels.
fn everywhere(name: &str) -> (Arc<LoadedModel>, Vec<(ComputeDevice, Arc<LoadedModel>)>) {
    let host = load(name);
    let tensors = host.on(ComputeDevice::CpuTensors).unwrap();
    let mut devices = vec![(ComputeDevice::CpuTensors, tensors)];
    devices.extend(on_gpu(&host).map(|model| (ComputeDevice::Cuda(0), model)));
    (host, devices)
}

/// The model on the first GPU; none where there is none, which is said.
fn on_gpu(model: &Arc<LoadedModel>) -> Option<Arc<LoadedModel>> {
    match model.on(ComputeDevice::Cuda(0)) {
        Ok(model) => Some(model),
        Err(error) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                let why = source.unwrap_or_default();
                say(&format!(
                    "skipped on a GPU: {error} {}",
                    why.lines().next().unwrap_or_default()
                ));
            });
            // A GPU that should be there and cannot be used is no reason to skip.
            assert!(std::env::var_os("PORTOLAN_GPU").is_none(), "{error}");
            None
        }
    }
}

#[tokio::test]
async fn every_device_answers_as_the_reference_does() {
    for name in MODELS {
        for (device, model) in everywhere(name).1 {
            let first = NativeInstance::start(Arc::clone(&model), config("p", Role::Prefill)).unwrap();
            let second = NativeInstance::start(Arc::clone(&model), config("d", Role::Decode)).unwrap();
            for case in oracle(name).prompts {
                let at = format!("{name} on {device}, {}", case.logits);
                let kv = kv_for(&first, &case.prompt_ids).await;
                let max_tokens = case.greedy_ids.len() as u32;
                let answer = answer(second.decode(decode_job(&case.prompt_ids, kv, max_tokens))).await;
                let difference = worst(&answer.logits, &npy(&folder(name).join(&case.logits)));
                println!("{at}: logits differ by {difference:e}");
                assert!(difference < TOLERANCE, "{at}: {difference}");
                case.check_greedy(&answer.tokens, &at);
                assert_eq!(answer.end, Some(DecodeEvent::Finished(FinishReason::Length)));
            }
        }
    }
}

/// KV goes from either kind of instance to either, in one form.
#[tokio::test]
async fn kv_crosses_between_the_processors_kernels_and_a_device_both_ways() {
    for name in MODELS {
        let (host, devices) = everywhere(name);
        for (device, model) in devices {
            let (ours, theirs) = (start(&host), start(&model));
            for case in oracle(name).prompts {
                let at = format!("{name} across {device}, {}", case.logits);
                let (expected, _) = prefill(&ours, prefill_job(&case.prompt_ids, 0)).await.unwrap();
                let (pieces, _) = prefill(&theirs, prefill_job(&case.prompt_ids, 0)).await.unwrap();
                assert_eq!(pieces.len(), expected.len());
                for (piece, expected) in pieces.iter().zip(&expected) {
                    assert_eq!(piece.id, expected.id);
                    let difference = worst(&floats(&piece.bytes), &floats(&expected.bytes));
                    assert!(difference < TOLERANCE, "{at} {:?}: {difference}", piece.id);
                }
                for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
                    let kv = kv_for(from, &case.prompt_ids).await;
                    let max_tokens = case.greedy_ids.len() as u32;
                    let answer = answer(to.decode(decode_job(&case.prompt_ids, kv, max_tokens))).await;
                    let difference = worst(&answer.logits, &npy(&folder(name).join(&case.logits)));
                    assert!(difference < TOLERANCE, "{at}: {difference}");
                    case.check_greedy(&answer.tokens, &at);
                }
            }
        }
    }
}

/// The scheduler is the one of the processor's instances: answers run together, prefixes are found again, and those whose
/// KV outgrows its memory give it up and go on later.
#[tokio::test]
async fn the_scheduler_drives_a_device_as_it_drives_the_processor() {
    for name in ["tiny-qwen3", "tiny-qwen3_5"] {
        let (host, devices) = everywhere(name);
        let all: Vec<Vec<u32>> = (0..4).map(|n| prompt(70 + n)[n..].to_vec()).collect();
        let reference = start(&host);
        let mut expected = Vec::new();
        for prompt in &all {
            let alone = reference.decode(decode_job(prompt, kv_for(&reference, prompt).await, 90));
            expected.push(answer(alone).await.tokens);
        }
        let layout = Arc::clone(&reference.describe().layout);
        for (device, model) in devices {
            // All four prompts fit, and not all of their answers.
            let tight = InstanceConfig {
                pool: Bytes(4 * layout.fixed_bytes().0 + 400 * layout.bytes_per_token().0),
                ..config("a", Role::Both)
            };
            let engine = NativeInstance::start(Arc::clone(&model), tight).unwrap();
            let mut jobs = Vec::new();
            for prompt in &all {
                jobs.push(decode_job(prompt, kv_for(&engine, prompt).await, 90));
            }
            let running: Vec<_> = jobs.into_iter().map(|job| engine.decode(job)).collect();
            for (events, expected) in running.into_iter().zip(&expected) {
                assert_eq!(&answer(events).await.tokens, expected, "{name} on {device}");
            }
            assert!(engine.times_set_aside() > 0, "{name} on {device}: all four fit");
            // A whole block and no more, so that a recurrent state is kept after it.
            let block = prefill_job(&all[3][..64], 0);
            prefill(&engine, block).await.unwrap();
            let (_, again) = prefill(&engine, prefill_job(&all[3], 0)).await.unwrap();
            assert_eq!(again.cached, 64, "{name} on {device}");
        }
    }
}

#[test]
fn a_real_models_widths_and_pairs_are_computed_as_the_processors_kernels_do() {
    let file = "SmolLM2-135M-Instruct.Q4_1.gguf";
    let path = std::env::var_os("PORTOLAN_MODEL_DIR").map(|folder| PathBuf::from(folder).join(file));
    let Some(path) = path.filter(|path| path.exists()) else {
        say(&format!("skipped: PORTOLAN_MODEL_DIR holds no {file}"));
        return;
    };
    let host = Arc::new(load_model(&path).unwrap());
    let tensors = host.on(ComputeDevice::CpuTensors).unwrap();
    let probes = |model: &LoadedModel| -> Vec<f32> {
        model
            .probe()
            .unwrap()
            .iter()
            .flat_map(|part| floats(part))
            .collect()
    };
    let expected = probes(&host);
    let scale = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    for model in [Some(tensors), on_gpu(&host)].into_iter().flatten() {
        let difference = worst(&probes(&model), &expected) / scale;
        println!("KV of a block differs by {difference:e} of its largest value");
        assert!(difference < 1e-4, "{difference}");
        let prompt: Vec<u32> = (0..80).map(|n| n * 37 % 49_000).collect();
        let ours = generate(&host, &prompt, 6, &mut drop).unwrap().tokens;
        assert_eq!(generate(&model, &prompt, 6, &mut drop).unwrap().tokens, ours);
    }
}

#[test]
fn a_gpu_in_a_build_without_it_and_a_window_are_refused_with_what_to_do() {
    let model = load(DENSE);
    if !cfg!(feature = "cuda") {
        let refused = model.on(ComputeDevice::Cuda(0)).unwrap_err();
        assert!(matches!(refused, DeviceError::NotBuilt));
        assert!(refused.to_string().contains("--features cuda"), "{refused}");
    }
    let window = KvWindow { tokens: 64, sinks: 4 };
    let windowed = Arc::new(load_model(&folder(DENSE)).unwrap().with_window(window));
    assert!(matches!(
        windowed.on(ComputeDevice::CpuTensors),
        Err(DeviceError::Window)
    ));
    assert_eq!(model.on(ComputeDevice::Cpu).unwrap().layers(), model.layers());
}

/// The pieces of a cancelled prompt stop between two layers, and the instance goes on.
#[tokio::test]
async fn a_cancelled_prompt_leaves_the_device_free() {
    for (device, model) in everywhere(DENSE).1 {
        let engine = start(&model);
        let job = prefill_job(&prompt(1500), 0);
        let cancel = job.cancel.clone();
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let (ended, _) = tokio::join!(engine.prefill(job, sender), async {
            receiver.recv().await.unwrap();
            cancel.cancel();
        });
        assert_eq!(ended.unwrap_err(), EngineError::Cancelled, "{device}");
        assert!(prefill(&engine, prefill_job(&prompt(20), 0)).await.is_ok());
    }
}
