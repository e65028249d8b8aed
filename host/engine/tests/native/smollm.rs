//! SmolLM2-135M-Instruct, the demo's model. Runs where `PORTOLAN_MODEL_DIR` holds its file.

use crate::support::{answer, config, decode_job, kv_for, prefill, prefill_job, prompt};
use portolan_base::Moment;
use portolan_engine::{LoadedModel, NativeInstance, load_model};
use portolan_ports::{ChatMessage, Engine, Role, TemplateValues};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// The model, or `None` with a line that says so.
fn model() -> Option<Arc<LoadedModel>> {
    let path = std::env::var_os("PORTOLAN_MODEL_DIR").map(|folder| PathBuf::from(folder).join(FILE));
    let Some(path) = path.filter(|path| path.exists()) else {
        // Past the harness, which would swallow the line of a test that passes.
        let line = format!("skipped: PORTOLAN_MODEL_DIR holds no {FILE}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    };
    Some(Arc::new(load_model(&path).unwrap()))
}

fn start(model: &Arc<LoadedModel>, role: Role) -> NativeInstance {
    NativeInstance::start(Arc::clone(model), config("a", role)).unwrap()
}

#[tokio::test]
async fn it_knows_the_capital_of_france() {
    let Some(model) = model() else { return };
    let text = model.text();
    let question = ChatMessage {
        role: "user".to_owned(),
        content: "What is the capital of France?".to_owned(),
        rest: serde_json::Map::new(),
    };
    let prompt = text
        .encode(
            &text
                .render_chat(&[question], &TemplateValues::new(), Moment(0))
                .unwrap(),
            false,
        )
        .unwrap();
    let (first, second) = (start(&model, Role::Prefill), start(&model, Role::Decode));
    let mut job = decode_job(&prompt, kv_for(&first, &prompt).await, 32);
    job.stop_ids = text.stop_ids().to_vec();
    let answer = answer(second.decode(job)).await;
    let mut stream = text.stream();
    let words: String = answer
        .tokens
        .iter()
        .map(|token| stream.push(*token).unwrap())
        .collect();
    assert_eq!(words, "The capital of France is Paris.");
}

/// The widths of a real model, where the matrix products are cut into many tiles.
#[tokio::test]
async fn a_cached_prefix_changes_no_bit_at_real_widths() {
    let Some(model) = model() else { return };
    let prompt = prompt(150);
    let (cold, warm) = (start(&model, Role::Both), start(&model, Role::Both));
    prefill(&warm, prefill_job(&prompt[..64], 0)).await.unwrap();
    let mut answers = Vec::new();
    for engine in [&cold, &warm, &warm] {
        answers.push(answer(engine.decode(decode_job(&prompt, kv_for(engine, &prompt).await, 3))).await);
    }
    assert!(!answers[0].logits.is_empty());
    assert!(answers.iter().all(|answer| answer.bits() == answers[0].bits()));
}
