//! SmolLM2-135M-Instruct, the demo's model. Runs where `PORTOLAN_MODEL_DIR` holds its file.

use crate::support::{answer, config, decode_job, kv_for};
use portolan_engine::{NativeInstance, load_model};
use portolan_ports::{ChatMessage, Engine, Role};
use std::path::PathBuf;
use std::sync::Arc;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

#[tokio::test]
async fn it_knows_the_capital_of_france() {
    let path = std::env::var_os("PORTOLAN_MODEL_DIR").map(|folder| PathBuf::from(folder).join(FILE));
    let Some(path) = path.filter(|path| path.exists()) else {
        println!("skipped: PORTOLAN_MODEL_DIR holds no {FILE}");
        return;
    };
    let model = Arc::new(load_model(&path).unwrap());
    let text = model.text();
    let question = ChatMessage {
        role: "user".to_owned(),
        content: "What is the capital of France?".to_owned(),
        rest: serde_json::Map::new(),
    };
    let prompt = text
        .encode(&text.render_chat(&[question]).unwrap(), false)
        .unwrap();
    let first = NativeInstance::start(Arc::clone(&model), config("p", Role::Prefill)).unwrap();
    let second = NativeInstance::start(Arc::clone(&model), config("d", Role::Decode)).unwrap();
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
