//! Everything a client can get wrong, with what it is told.

use super::support::{ACME, App, OPERATOR, expect_error, merged, request};
use crate::site::Limits;
use axum::body::Body;
use axum::http::{Method, Request};
use portolan_ports::FakeText;
use serde_json::{Value, json};

/// A bad input: what is sent, and the status, type, param and a phrase of the message that come back.
struct Bad(
    &'static str,
    Value,
    (u16, &'static str, Option<&'static str>, &'static str),
);

pub(super) const INVALID: &str = "invalid_request_error";

/// A completion with some fields changed; a null removes the field.
pub(super) fn completion(changes: Value) -> Value {
    merged(
        json!({"model": "fake", "prompt": "hello", "max_tokens": 4}),
        changes,
    )
}

fn chat(changes: Value) -> Value {
    merged(
        json!({"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}),
        changes,
    )
}

async fn check(app: &App, path: &str, cases: Vec<Bad>) {
    for Bad(what, body, expected) in cases {
        let reply = app.post(path, body).await;
        expect_error(what, &reply, expected);
    }
}

#[tokio::test]
async fn bad_completions() {
    let bad = |field| (400, INVALID, Some(field));
    let case = |what, changes: Value, (status, kind, param): (u16, _, _), phrase| {
        Bad(what, completion(changes), (status, kind, param, phrase))
    };
    let long = "x".repeat(512);
    #[rustfmt::skip] // one case a line
    let cases = vec![
        case("unknown model", json!({"model": "nope"}), (404, "not_found_error", Some("model")), "Available models: fake."),
        case("no model", json!({"model": null}), bad("model"), "model is missing; use one of fake"),
        case("model is a number", json!({"model": 7}), bad("model"), "expected a string"),
        case("no prompt", json!({"prompt": null}), bad("prompt"), "prompt is missing"),
        case("empty prompt", json!({"prompt": ""}), bad("prompt"), "prompt is empty"),
        case("empty list", json!({"prompt": []}), bad("prompt"), "at least one prompt"),
        case("one of several empty", json!({"prompt": ["a", ""]}), bad("prompt"), "prompt[1] is empty"),
        case("empty token list", json!({"prompt": [[1], []]}), bad("prompt"), "prompt[1] is empty"),
        case("mixed list", json!({"prompt": ["a", 1]}), bad("prompt"), "expected a string"),
        case("prompt is an object", json!({"prompt": {"a": 1}}), bad("prompt"), "a list of token ids"),
        case("prompt is a number", json!({"prompt": 5}), bad("prompt"), "a list of token ids"),
        case("id above", json!({"prompt": [1, 999_999]}), bad("prompt"), "token id 999999 is out of vocabulary; this model's ids are 0 to 256"),
        case("id just above", json!({"prompt": [257]}), bad("prompt"), "token id 257"),
        case("id below", json!({"prompt": [-1]}), bad("prompt"), "token id -1"),
        case("id in a batch", json!({"prompt": [[1], [300]]}), bad("prompt"), "prompt[1]: token id 300"),
        case("fraction as id", json!({"prompt": [1.5]}), bad("prompt"), "prompt cannot be used"),
        case("prompt fills the context", json!({"prompt": long}), bad("prompt"), "context length is 512 tokens. However, your prompt contains 512"),
        case("too many prompts", json!({"prompt": vec!["a"; 65]}), bad("prompt"), "65 prompts, at most 64"),
        case("too many answers", json!({"prompt": vec!["a"; 40], "n": 2}), bad("n"), "80 answers"),
        case("no tokens", json!({"max_tokens": 0}), bad("max_tokens"), "max_tokens must be at least 1, got 0"),
        case("negative tokens", json!({"max_tokens": -5}), bad("max_tokens"), "at least 1, got -5"),
        case("too many tokens", json!({"max_tokens": 508}), bad("max_tokens"), "max_tokens is too large: 508. This model's maximum context length is 512 tokens and your request has 5 input tokens"),
        case("huge tokens", json!({"max_tokens": 5_000_000_000_u64}), bad("max_tokens"), "at most 4294967295"),
        case("tokens as text", json!({"max_tokens": "4"}), bad("max_tokens"), "max_tokens cannot be used: invalid type: string"),
        case("cold", json!({"temperature": -1}), bad("temperature"), "temperature must be at least 0, got -1"),
        case("hot text", json!({"temperature": "hot"}), bad("temperature"), "invalid type"),
        case("top_p 0", json!({"top_p": 0}), bad("top_p"), "above 0"),
        case("top_p 2", json!({"top_p": 2}), bad("top_p"), "at most 1, got 2"),
        case("top_k -2", json!({"top_k": -2}), bad("top_k"), "at least -1"),
        case("n 0", json!({"n": 0}), bad("n"), "at least 1"),
        case("n 9", json!({"n": 9}), bad("n"), "at most 8, got 9"),
        case("seed text", json!({"seed": "x"}), bad("seed"), "seed cannot be used"),
        case("empty stop", json!({"stop": ["a", ""]}), bad("stop"), "empty text"),
        case("many stops", json!({"stop": vec!["a"; 17]}), bad("stop"), "17 texts, at most 16"),
        case("stop number", json!({"stop": 3}), bad("stop"), "stop cannot be used"),
        case("stream text", json!({"stream": "yes"}), bad("stream"), "expected a boolean"),
        case("options alone", json!({"stream_options": {}}), bad("stream_options"), "together with"),
        case("logprobs", json!({"logprobs": 21}), bad("logprobs"), "at most 20, got 21"),
        case("prompt logprobs", json!({"prompt_logprobs": 2}), bad("prompt_logprobs"), "not supported"),
        case("min_p", json!({"min_p": 1.5}), bad("min_p"), "at most 1, got 1.5"),
        case("repetition", json!({"repetition_penalty": 0}), bad("repetition_penalty"), "above 0"),
        case("frequency", json!({"frequency_penalty": -3}), bad("frequency_penalty"), "at least -2, got -3"),
        case("min tokens", json!({"min_tokens": 9, "max_tokens": 4}), bad("min_tokens"), "at most max_tokens, 4, got 9"),
        case("stop id", json!({"stop_token_ids": [1, 257]}), bad("stop_token_ids"), "token 257; this model's ids are 0 to 256"),
        case("stop ids", json!({"stop_token_ids": 5}), bad("stop_token_ids"), "expected a sequence"),
        case("echo", json!({"echo": true}), bad("echo"), "not supported"),
        case("suffix", json!({"suffix": "x"}), bad("suffix"), "not supported"),
        case("best_of", json!({"best_of": 2}), bad("best_of"), "or send 1"),
        case("logit_bias", json!({"logit_bias": {"257": 5}}), bad("logit_bias"), "token 257"),
        case("large bias", json!({"logit_bias": {"1": 500}}), bad("logit_bias"), "from -100 to 100, got 500 for token 1"),
        case("bias by text", json!({"logit_bias": {"a": 5}}), bad("logit_bias"), "by their ids"),
        case("penalty", json!({"presence_penalty": 2.5}), bad("presence_penalty"), "at most 2, got 2.5"),
        case("request id", json!({"request_id": "a b"}), bad("request_id"), "printable ASCII"),
        case("long request id", json!({"request_id": "x".repeat(127), "n": 2}), bad("request_id"), "too long"),
        case("prefill policy", json!({"prefill_policy": "mars"}), bad("prefill_policy"), "remote_required"),
        case("another tenant", json!({"tenant_id": "globex"}), (403, "permission_error", Some("tenant_id")), "tenant_id"),
        case("unknown extra", json!({"portolan": {"sesion": "a"}}), bad("portolan.sesion"), "the portolan object holds session, user_class"),
        case("extra is a list", json!({"portolan": []}), bad("portolan"), "expected a JSON object"),
        case("unknown jurisdiction", json!({"portolan": {"jurisdiction": "mars"}}), bad("portolan.jurisdiction"), "any, eu, us"),
        case("unknown class", json!({"portolan": {"user_class": "vip"}}), bad("portolan.user_class"), "standard, sensitive, secret"),
        case("negative priority", json!({"portolan": {"priority": -1}}), bad("portolan.priority"), "at least 0"),
        case("label name", json!({"portolan": {"labels": {"a b": "c"}}}), bad("portolan.labels"), "label's name"),
        case("label number", json!({"portolan": {"labels": {"a": 1}}}), bad("portolan.labels"), "expected a string"),
        case("dependency", json!({"portolan": {"dependencies": [{"kind": "document"}]}}), bad("portolan.dependencies"), "missing field"),
        case("dependency's name", json!({"portolan": {"dependencies": [{"kind": "document", "name": "a\nb", "version": "1"}]}}), bad("portolan.dependencies"), "control characters"),
    ];
    check(&App::new(), "/v1/completions", cases).await;
}

#[tokio::test]
async fn bad_chats() {
    let case =
        |what, changes: Value, field, phrase| Bad(what, chat(changes), (400, INVALID, Some(field), phrase));
    let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let message = |role: &str, content: Value| json!({"messages": [{"role": role, "content": content}]});
    let long = "x".repeat(600);
    #[rustfmt::skip] // one case a line
    let cases = vec![
        case("no messages", json!({"messages": null}), "messages", "messages is missing"),
        case("empty", json!({"messages": []}), "messages", "at least one message"),
        case("messages text", json!({"messages": "hi"}), "messages", "expected a sequence"),
        case("message text", json!({"messages": ["hi"]}), "messages", "expected a map"),
        case("no role", json!({"messages": [{"content": "a"}]}), "messages[0].role", "is missing"),
        case("bad role", message("robot", json!("a")), "messages[0].role", "system, developer, user"),
        case("no content", json!({"messages": [{"role": "user"}]}), "messages[0].content", "is missing"),
        case("content number", message("user", json!(5)), "messages[0].content", "text or a list"),
        case("image", message("user", image), "messages[0].content[0]", "only text is supported"),
        case("part without text", message("user", json!([{"type": "text"}])), "messages[0].content[0]", "without a text"),
        case("template refuses", message("assistant", json!("a")), "messages", "must not begin with the assistant"),
        case("too long", message("user", json!(long)), "messages", "context length is 512"),
        case("tools", json!({"tools": tool}), "tools", "not supported"),
        case("tool choice", json!({"tool_choice": "auto"}), "tool_choice", "or send \"none\""),
        case("json mode", json!({"response_format": {"type": "json_object"}}), "response_format", "not supported"),
        case("logprobs", json!({"logprobs": 5}), "logprobs", "expected a boolean"),
        case("likeliest alone", json!({"top_logprobs": 2}), "top_logprobs", "together with"),
        case("many likeliest", json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs", "at most 20"),
        case("no room", json!({"max_completion_tokens": 600}), "max_completion_tokens", "is too large"),
    ];
    check(&App::new(), "/v1/chat/completions", cases).await;
    let base_model = App::with(FakeText::without_template(), Limits::default());
    expect_error(
        "no template",
        &base_model.chat(chat(json!({}))).await,
        (400, INVALID, Some("messages"), "/v1/completions"),
    );
}

#[tokio::test]
async fn bodies_that_are_no_request() {
    let app = App::new();
    let model = "\"model\": \"fake\", ";
    let nested = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep = format!("{{{model}\"messages\": [{{\"role\": \"user\", \"content\": {nested}}}]}}");
    #[rustfmt::skip] // one case a line
    let cases: Vec<(&str, Vec<u8>, Option<&str>, &str)> = vec![
        ("empty", vec![], None, "EOF while parsing"),
        ("torn", br#"{"model": "fake", "prompt": "#.to_vec(), None, "EOF while parsing"),
        ("not JSON", b"hello".to_vec(), None, "not a usable JSON object"),
        ("a list", b"[]".to_vec(), None, "expected a JSON object"),
        ("trailing", b"{} {}".to_vec(), None, "trailing characters"),
        ("not UTF-8", b"{\"prompt\": \"\xff\"}".to_vec(), None, "offset 12"),
        ("NaN", format!("{{{model}\"prompt\": \"a\", \"temperature\": NaN}}").into_bytes(), None, "expected value"),
        ("infinite", format!("{{{model}\"prompt\": \"a\", \"temperature\": 1e999}}").into_bytes(), Some("temperature"), "out of range"),
        ("twice", format!("{{{model}{model}\"prompt\": \"a\"}}").into_bytes(), None, "\"model\" occurs twice"),
        ("a label twice", format!("{{{model}\"prompt\": \"a\", \"portolan\": {{\"labels\": {{\"a\": \"1\", \"a\": \"2\"}}}}}}").into_bytes(), Some("portolan.labels"), "\"a\" occurs twice"),
        ("twice in a bias", format!("{{{model}\"prompt\": \"a\", \"logit_bias\": {{\"1\": 5, \"1\": -5}}}}").into_bytes(), Some("logit_bias"), "\"1\" occurs twice"),
        ("one token, two spellings", format!("{{{model}\"prompt\": \"a\", \"logit_bias\": {{\"1\": 5, \"01\": -5}}}}").into_bytes(), Some("logit_bias"), "token 1 twice"),
        ("twice in a message", format!("{{{model}\"messages\": [{{\"role\": \"user\", \"content\": \"a\", \"content\": \"b\"}}]}}").into_bytes(), Some("messages"), "\"content\" occurs twice"),
        ("twice in what nobody reads", format!("{{{model}\"prompt\": \"a\", \"metadata\": [{{\"x\": {{\"y\": 1, \"\\u0079\": 1}}}}]}}").into_bytes(), Some("metadata"), "\"y\" occurs twice"),
        ("lone surrogate", format!("{{{model}\"prompt\": \"\\ud800\"}}").into_bytes(), Some("prompt"), "prompt cannot be used"),
        ("deep", deep.into_bytes(), Some("messages"), "recursion limit"),
        ("huge integer", format!("{{{model}\"prompt\": \"a\", \"max_tokens\": 99999999999999999999}}").into_bytes(), Some("max_tokens"), "max_tokens cannot be used"),
    ];
    for (what, body, param, phrase) in cases {
        let path = if what == "deep" || what == "twice in a message" {
            "/v1/chat/completions"
        } else {
            "/v1/completions"
        };
        let reply = app
            .send(request(Method::POST, path, ACME, Body::from(body)))
            .await;
        expect_error(what, &reply, (400, INVALID, param, phrase));
    }
}

#[tokio::test]
async fn a_full_site_says_when_to_come_back() {
    let app = App::with(
        FakeText::new(),
        Limits {
            in_flight: 0,
            ..Limits::default()
        },
    );
    let reply = app.complete(completion(json!({}))).await;
    expect_error(
        "full",
        &reply,
        (503, "service_unavailable_error", None, "too many requests"),
    );
    assert_eq!(reply.header("retry-after"), "1");
}

#[tokio::test]
async fn requests_that_reach_no_door() {
    let app = App::with(
        FakeText::new(),
        Limits {
            body_bytes: 1000,
            ..Limits::default()
        },
    );
    let good = completion(json!({})).to_string();
    let reply = app
        .send(request(
            Method::POST,
            "/v1/completions",
            "",
            Body::from(good.clone()),
        ))
        .await;
    expect_error(
        "no key",
        &reply,
        (401, "authentication_error", None, "Authorization: Bearer KEY"),
    );
    assert_eq!(reply.json()["error"]["code"], "invalid_api_key");
    let reply = app
        .send(request(
            Method::POST,
            "/v1/completions",
            "wrong",
            Body::from(good.clone()),
        ))
        .await;
    expect_error(
        "wrong key",
        &reply,
        (401, "authentication_error", None, "not known"),
    );
    expect_error(
        "no path",
        &app.get(ACME, "/nope").await,
        (404, "not_found_error", None, "nothing at this path"),
    );
    let reply = app.get(ACME, "/v1/completions").await;
    expect_error("wrong method", &reply, (405, INVALID, None, "this method"));
    assert_eq!(reply.header("allow"), "POST");
    let big = Body::from("x".repeat(5000));
    let reply = app
        .send(request(Method::POST, "/v1/completions", ACME, big))
        .await;
    expect_error(
        "too large",
        &reply,
        (413, INVALID, None, "larger than the 1000 bytes"),
    );
    let form = Request::post("/v1/completions")
        .header("authorization", format!("Bearer {ACME}"))
        .header("content-type", "application/x-www-form-urlencoded");
    let reply = app.send(form.body(Body::from(good)).unwrap()).await;
    expect_error(
        "a form",
        &reply,
        (
            400,
            INVALID,
            Some("Content-Type"),
            "Content-Type: application/json",
        ),
    );
    let reply = app.get(OPERATOR, "/v1/portolan/requests?limit=many").await;
    expect_error(
        "bad query",
        &reply,
        (400, INVALID, None, "the query cannot be used"),
    );
    let reply = app.get(ACME, "/v1/models/%ff").await;
    expect_error("bad path", &reply, (400, INVALID, None, "path"));
    let reply = app.get(ACME, "/v1/models/nope").await;
    expect_error(
        "unknown model",
        &reply,
        (404, "not_found_error", Some("model"), "does not exist"),
    );
}

#[tokio::test]
async fn more_answers_than_a_tenant_may_have_under_way_are_refused_for_good() {
    let limits = Limits {
        tenant_in_flight: 2,
        ..Limits::default()
    };
    let app = App::with(FakeText::new(), limits);
    let bad = |field, phrase| (400, INVALID, Some(field), phrase);
    let reply = app.complete(completion(json!({"n": 3}))).await;
    expect_error(
        "n",
        &reply,
        bad("n", "3 answers; a tenant may have 2 under way at once"),
    );
    let reply = app.complete(completion(json!({"prompt": ["a", "b", "c"]}))).await;
    expect_error("prompts", &reply, bad("prompt", "3 answers"));
    let reply = app
        .complete(completion(json!({"prompt": ["a", "b"], "n": 2})))
        .await;
    expect_error("both", &reply, bad("n", "4 answers"));
    assert_eq!(
        app.complete(completion(json!({"n": 2}))).await.status,
        200,
        "as many as may be"
    );
}
