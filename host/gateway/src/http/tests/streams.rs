//! Answers as server-sent events.

use super::support::{ACME, App, merged};
use portolan_ports::{EngineError, EngineFault};
use serde_json::{Value, json};

fn chat(changes: Value) -> Value {
    let body = json!({
        "model": "fake", "temperature": 0, "max_tokens": 4, "stream": true, "request_id": "s1",
        "messages": [{"role": "user", "content": "hi"}],
    });
    merged(body, changes)
}

fn completion(changes: Value) -> Value {
    let body = json!({
        "model": "fake", "temperature": 0, "max_tokens": 2, "prompt": "hello", "stream": true, "request_id": "s2",
    });
    merged(body, changes)
}

#[tokio::test]
async fn a_chat_stream_is_exactly_this() {
    let reply = App::new().chat(chat(json!({"max_tokens": 2}))).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), "text/event-stream; charset=utf-8");
    assert_eq!(
        (reply.header("cache-control"), reply.header("x-accel-buffering")),
        ("no-cache", "no")
    );
    assert_eq!(reply.header("x-portolan-request-id"), "s1");
    let head = r#""id":"chatcmpl-s1","object":"chat.completion.chunk","created":1767225600,"model":"fake""#;
    let piece = |delta: &str, finish: &str| {
        let choice = format!(r#"{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish}}}"#);
        format!("data: {{{head},\"choices\":[{choice}]}}\n\n")
    };
    let expected = [
        piece(r#"{"role":"assistant","content":""}"#, "null"),
        piece(r#"{"content":"u"}"#, "null"),
        piece(r#"{"content":"s"}"#, "null"),
        piece("{}", r#""length""#),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(String::from_utf8(reply.body.to_vec()).unwrap(), expected.concat());
}

#[tokio::test]
async fn a_completion_stream_is_exactly_this() {
    let reply = App::new().complete(completion(json!({}))).await;
    let head = r#""id":"cmpl-s2","object":"text_completion","created":1767225600,"model":"fake""#;
    let piece = |text: &str, finish: &str| {
        let choice = format!(r#"{{"index":0,"text":"{text}","logprobs":null,"finish_reason":{finish}}}"#);
        format!("data: {{{head},\"choices\":[{choice}]}}\n\n")
    };
    let expected = [
        piece("h", "null"),
        piece("e", "null"),
        piece("", r#""length""#),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(String::from_utf8(reply.body.to_vec()).unwrap(), expected.concat());
}

#[tokio::test]
async fn logprobs_come_with_their_tokens() {
    let app = App::new();
    let wanted = json!({"logprobs": true, "top_logprobs": 1, "max_tokens": 1});
    let chunks = app.chat(chat(wanted)).await.chunks();
    let content = json!({"token": "u", "logprob": -0.5, "bytes": [117],
        "top_logprobs": [{"token": "\u{0}", "logprob": -0.5, "bytes": [0]}]});
    assert_eq!(
        chunks[1]["choices"][0]["logprobs"],
        json!({"content": [content], "refusal": null})
    );
    assert!(chunks[0]["choices"][0]["logprobs"].is_null());
    let chunks = app
        .complete(completion(json!({"logprobs": 0, "stream": true})))
        .await
        .chunks();
    let told = |token: &str, at: usize| json!({"text_offset": [at], "token_logprobs": [-0.5], "tokens": [token], "top_logprobs": [{token: -0.5}]});
    assert_eq!(chunks[0]["choices"][0]["logprobs"], told("h", 0));
    assert_eq!(chunks[1]["choices"][0]["logprobs"], told("e", 1));
    let whole = app
        .complete(completion(json!({"logprobs": 0, "stream": false})))
        .await
        .json();
    assert_eq!(whole["choices"][0]["logprobs"]["tokens"], json!(["h", "e"]));
    assert_eq!(whole["choices"][0]["logprobs"]["text_offset"], json!([0, 1]));
}

#[tokio::test]
async fn usage_comes_last_when_asked_for() {
    let chunks = App::new()
        .chat(chat(json!({"stream_options": {"include_usage": true}})))
        .await
        .chunks();
    let (last, rest) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        (
            &last["usage"]["prompt_tokens"],
            &last["usage"]["completion_tokens"]
        ),
        (&json!(20), &json!(4))
    );
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert!(
        rest.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)),
        "null in every other chunk"
    );
    let without = App::new()
        .chat(chat(json!({"stream_options": {"include_usage": false}})))
        .await
        .chunks();
    assert!(without.iter().all(|chunk| chunk.get("usage").is_none()));
}

#[tokio::test]
async fn choices_are_told_apart_by_index() {
    let body = chat(json!({"n": 3, "temperature": 1, "seed": 0, "max_tokens": 3}));
    let chunks = App::new().chat(body).await.chunks();
    let mut texts = vec![String::new(); 3];
    let mut finished = vec![0; 3];
    for chunk in &chunks {
        let choice = &chunk["choices"][0];
        let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
        assert_eq!(finished[index], 0, "nothing after the end");
        if choice["delta"]["role"] == "assistant" {
            assert_eq!(texts[index], "", "the role comes first");
        }
        texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        finished[index] += usize::from(choice["finish_reason"] == "length");
        assert_eq!(chunk["id"], chunks[0]["id"]);
    }
    assert_eq!(texts, ["use", "ser", "er:"]);
    assert_eq!(finished, [1, 1, 1]);
}

#[tokio::test]
async fn a_token_without_text_is_sent_only_for_its_id() {
    let prompt = "éa";
    let plain = App::new()
        .complete(completion(json!({"prompt": prompt, "max_tokens": 3})))
        .await
        .chunks();
    let texts: Vec<_> = plain
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["é", "a", ""]);
    let body = completion(json!({"prompt": prompt, "max_tokens": 3, "return_token_ids": true}));
    let with_ids = App::new().complete(body).await.chunks();
    let ids: Vec<_> = with_ids
        .iter()
        .map(|chunk| chunk["choices"][0]["token_ids"].clone())
        .collect();
    assert_eq!(ids, [json!([0xc3]), json!([0xa9]), json!([97]), json!([])]);
    let prompts: Vec<_> = with_ids
        .iter()
        .map(|chunk| chunk["choices"][0].get("prompt_token_ids").cloned())
        .collect();
    assert_eq!(prompts, [Some(json!([0xc3, 0xa9, 97])), None, None, None]);
}

#[tokio::test]
async fn text_that_looks_like_framing_is_only_text() {
    let prompt = "data: [DONE]\n\nid: 1\r\n";
    let chunks = App::new()
        .complete(completion(json!({"prompt": prompt, "max_tokens": 100})))
        .await
        .chunks();
    let text: String = chunks
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, prompt);
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_with_an_error_event() {
    let app = App::new();
    app.engine.set_fault(Some(EngineFault::FailDecode(
        2,
        EngineError::Broken("10.0.0.7 caught fire".into()),
    )));
    let reply = app.chat(chat(json!({}))).await;
    assert_eq!(reply.status, 200, "the stream had begun");
    let events = reply.events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert!(last["error"]["message"].is_string(), "{events:?}");
    let fields = last["error"].as_object().unwrap();
    assert_eq!(fields.len(), 4, "{last}");
    assert!(
        !String::from_utf8_lossy(&reply.body).contains("[DONE]"),
        "no clean end"
    );
    assert!(
        !String::from_utf8_lossy(&reply.body).contains("10.0.0.7"),
        "no address of ours"
    );
    assert_eq!(
        app.get(ACME, "/v1/portolan/requests/s1").await.json()["status"],
        "failed"
    );
}

#[tokio::test]
async fn a_failure_before_the_first_token_has_a_status() {
    let app = App::new();
    app.engine.set_fault(Some(EngineFault::FailDecode(
        0,
        EngineError::Broken("oops".into()),
    )));
    for body in [
        chat(json!({})),
        chat(json!({"stream": false})),
        chat(json!({"n": 2})),
    ] {
        let reply = app.chat(body).await;
        assert!(reply.status.is_server_error(), "{reply:?}");
        assert_eq!(reply.header("content-type"), "application/json");
        assert!(reply.json()["error"]["type"].is_string());
        assert_eq!(reply.header("x-portolan-request-id"), "s1");
    }
}
