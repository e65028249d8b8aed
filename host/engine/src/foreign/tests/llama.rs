//! llama.cpp's own server, started and watched by the adapter. Runs where `PORTOLAN_XLLAMACPP` names a Python that has
//! `xllamacpp`, as `make test` sees to.

use super::world::*;
use super::*;
use crate::load::ModelFiles;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// A Python with the server, where there is one.
pub(super) fn python() -> Option<String> {
    let python = std::env::var("PORTOLAN_XLLAMACPP").ok();
    if python.is_none() {
        let line = "skipped: PORTOLAN_XLLAMACPP is not set; make test brings llama.cpp's server\n";
        // To the real stderr, which the test runner shows.
        drop(std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()));
    }
    python
}

/// The model's tokenizer and shapes.
pub(super) fn files() -> (PathBuf, ModelFiles) {
    let models =
        std::env::var_os("PORTOLAN_MODEL_DIR").expect("PORTOLAN_MODEL_DIR names the folder of models");
    let model = Path::new(&models).join(MODEL);
    let files = ModelFiles::read(&model).unwrap();
    (model, files)
}

/// An instance that starts the server; slots and log are in `folder`.
pub(super) async fn llama(
    python: &str,
    folder: &Path,
    connector: Option<Connector>,
) -> (ForeignInstance, SocketAddr) {
    llama_with(python, folder, |config| config.connector = connector).await
}

/// The same, with more said of it.
pub(super) async fn llama_with(
    python: &str,
    folder: &Path,
    more: impl FnOnce(&mut ForeignConfig),
) -> (ForeignInstance, SocketAddr) {
    let (model, files) = files();
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/engines/llama-server.py");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let mut config = ForeignConfig {
        make: Make::LlamaCpp,
        command: Some(CommandConfig {
            command: vec![
                python.to_owned(),
                text(&script),
                text(&model),
                address.port().to_string(),
                text(folder),
            ],
            env: Vec::new(),
            log: folder.join("llama.log"),
            ready_within: Duration::from_secs(120),
        }),
        text: files.text(),
        ..config(address)
    };
    config.description.vocabulary = files.vocabulary();
    config.description.context_tokens = Tokens(1024);
    more(&mut config);
    let instance = ForeignInstance::start(config).unwrap();
    let said = || std::fs::read_to_string(folder.join("llama.log")).unwrap_or_default();
    assert!(instance.until_up(Duration::from_secs(120)).await, "{}", said());
    (instance, address)
}

#[tokio::test]
async fn the_real_server_serves_cuts_text_as_the_host_does_and_ends_with_the_instance() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (instance, address) = llama(&python, folder.path(), None).await;
    assert_eq!(
        instance.shared.counts.token_mismatches.load(Relaxed),
        0,
        "text is cut as here"
    );
    assert!(instance.load().prefill_ns_per_token > 0);
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/texts/alice.txt");
    let book = std::fs::read_to_string(book).unwrap();
    let mut compared = 0;
    for line in book.lines().filter(|line| !line.trim().is_empty()) {
        let theirs = instance.shared.their_tokens_of_text(line).await.unwrap();
        assert_eq!(
            Some(instance.shared.text.encode(line, true).unwrap()),
            theirs,
            "{line}"
        );
        compared += 1;
    }
    assert!(compared > 80, "{compared} lines");

    let asked = json!({"max_tokens": 12, "unknown_field": 1});
    let first = answered(&instance, &completion("The capital of France is", asked.clone())).await;
    let again = answered(&instance, &completion("The capital of France is", asked)).await;
    let words = |answer: &Value| answer["choices"][0]["text"].as_str().unwrap().to_owned();
    assert!(words(&first).contains("Paris"), "{first}");
    assert_eq!(words(&first), words(&again));
    assert_eq!(first["usage"]["completion_tokens"], 12);

    let chat = json!({"model": "tiny", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8,
        "temperature": 0, "stream": true});
    let job = WholeJob {
        path: WholePath::Chat,
        ..job(&chat.to_string())
    };
    let (head, bytes) = all(instance.answer(job, None).await.unwrap()).await.unwrap();
    let stream = String::from_utf8(bytes).unwrap();
    assert_eq!(head.status, 200);
    assert!(
        stream.starts_with("data: {") && stream.ends_with("data: [DONE]\n\n"),
        "{stream}"
    );

    drop(instance);
    let gone = async {
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), gone)
        .await
        .expect("its process ends with the instance");
}
