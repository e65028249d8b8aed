//! Orders to forget reach engines that keep their KV to themselves: the salt of what is asked afterwards is another.

use super::*;

/// Tokens of a prompt that a modelled engine finds again: whole blocks, and never the last.
const FOUND: u64 = 112;

/// Asks; how many prompt tokens the engine had.
async fn cached(paris: &Paris, key: &str, prompt: &[u32], dependencies: &Value) -> u64 {
    let mut body = theirs(prompt);
    body["portolan"] = json!({"dependencies": dependencies});
    let answer = paris.complete(key, body).await;
    answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap()
}

async fn order(paris: &Paris, what: Value) {
    let mut body = what;
    body["wait"] = json!(true);
    let (head, said) = paris
        .raw(ADMIN, "/v1/portolan/invalidate", &body.to_string())
        .await;
    let said = String::from_utf8(said).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_order_is_about_is_not_found_again_and_the_rest_is() {
    let engine = engine(true).await;
    let paris = Paris::start(&[found("v", &engine, "")]).await;
    let none = json!([]);
    let book = json!([{"kind": "document", "name": "book", "version": "1"}]);
    let map = json!([{"kind": "document", "name": "map", "version": "1"}]);
    let prompts: Vec<_> = (1..4).map(|n| prompt(n, 120)).collect();
    let of = |n: usize| prompts[n].as_slice();
    // What one request depends on, another with the same tokens does not: they do not meet.
    let asked = [
        (ACME, of(0), &none),
        (ACME, of(1), &book),
        (ACME, of(1), &map),
        (GLOBEX, of(2), &book),
    ];
    // The lease begins a moment after the site.
    let until = Instant::now() + PATIENCE;
    while cached(&paris, ACME, of(0), &none).await < FOUND {
        assert!(Instant::now() < until, "nothing is ever found");
    }
    for (key, prompt, on) in asked {
        cached(&paris, key, prompt, on).await;
    }
    let again = async || {
        let mut all = Vec::new();
        for (key, prompt, on) in asked {
            all.push(cached(&paris, key, prompt, on).await);
        }
        all
    };
    assert_eq!(again().await, [FOUND; 4]);

    order(
        &paris,
        json!({"dependency": {"kind": "document", "name": "book", "version": "2"}}),
    )
    .await;
    assert_eq!(again().await, [FOUND, 0, FOUND, 0], "what depends on the book");
    assert_eq!(again().await, [FOUND; 4], "and is computed once");
    order(&paris, json!({"tenant": "globex"})).await;
    assert_eq!(again().await, [FOUND, FOUND, FOUND, 0], "a tenant's");
    order(&paris, json!({"model": MODEL})).await;
    assert_eq!(again().await, [0; 4], "everything of the model's");
    assert_eq!(again().await, [FOUND; 4]);
    paris.stop().await;
}
