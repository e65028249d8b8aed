//! Bytes in, bytes out.

use super::*;
use std::sync::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// An engine that answers everything with the same bytes, and keeps the last inference request.
struct Recorded {
    address: SocketAddr,
    last: Arc<Mutex<Vec<u8>>>,
    _tasks: JoinSet<()>,
}

impl Recorded {
    async fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let last: Arc<Mutex<Vec<u8>>> = Arc::default();
        let mut tasks = JoinSet::new();
        let log = Arc::clone(&last);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, answer, Arc::clone(&log)));
            }
        });
        Self {
            address,
            last,
            _tasks: tasks,
        }
    }
}

async fn serve(mut stream: TcpStream, answer: &'static str, log: Arc<Mutex<Vec<u8>>>) {
    let mut bytes = Vec::new();
    let mut piece = [0; 8192];
    loop {
        let Ok(n @ 1..) = stream.read(&mut piece).await else {
            return;
        };
        bytes.extend_from_slice(&piece[..n]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|l| l.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if bytes.len() < end + 4 + length.unwrap_or(0) {
            continue;
        }
        let text = match head.contains("x-request-id") {
            true => {
                *log.lock().unwrap() = bytes;
                answer.to_owned()
            }
            false if head.starts_with("post /tokenize") => {
                "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
            }
            false => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok".to_owned(),
        };
        // In small pieces: nothing may depend on where the network cuts.
        for piece in text.as_bytes().chunks(19) {
            if stream.write_all(piece).await.is_err() {
                return;
            }
        }
        return;
    }
}

/// A stream with everything that is allowed and odd: comments, no space, line ends of both kinds, a number that no
/// type holds, fields that nobody knows.
const ODD: &str = ": hello\n\ndata:{\"id\":\"x\",\"big\":12345678901234567890123,\"choices\":[{\"text\":\"h\\u00e9\",\"zz\":1e400}]}\r\n\r\n\
data: {\"choices\":[],\"usage\":{\"prompt_tokens\":60,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":16}}}\n\nevent: own\ndata: [DONE]\n\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_bytes_pass_both_ways() {
    let answer: &'static str = Box::leak(
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nx-engine: 1\r\nserver: uvicorn\r\nconnection: close\r\n\r\n{ODD}"
        )
        .into_boxed_str(),
    );
    let engine = Recorded::start(answer).await;
    let paris = Paris::start(&[format!(
        "{{name: v1, model: {MODEL}, engine: vllm, server: {{url: 'http://{}'}}}}",
        engine.address
    )])
    .await;
    let prompt = serde_json::to_string(&prompt(1, 60)).unwrap();
    let body = format!(
        "{{ \"model\": \"{MODEL}\",\"prompt\":{prompt},\"portolan\":{{\"session\":\"s\"}},\"stream\" : true,\"n\":1,\n \
         \"odd\":[12345678901234567890123, 1E5],\"kv_transfer_params\":{{\"do_remote_prefill\":true}},\"request_id\":\"odd-1\" }}"
    );
    let (head, bytes) = paris.raw(ACME, "/v1/completions", &body).await;
    assert_eq!(String::from_utf8(bytes).unwrap(), ODD);
    let lower = head.to_ascii_lowercase();
    assert!(
        lower.contains("content-type: text/event-stream; charset=utf-8") && lower.contains("x-engine: 1"),
        "{head}"
    );
    assert!(
        !lower.contains("uvicorn") && lower.contains("x-portolan-request-id: odd-1"),
        "{head}"
    );
    let got = engine.last.lock().unwrap().clone();
    let (got_head, got_body) = parts(&got);
    let got_body = String::from_utf8(got_body).unwrap();
    let (before, salt) = got_body.rsplit_once(",\"cache_salt\":\"").unwrap();
    assert_eq!(
        before,
        format!(
            "{{ \"model\": \"{MODEL}\",\"prompt\":{prompt},\"stream\" : true,\"n\":1,\n \
             \"odd\":[12345678901234567890123, 1E5]"
        )
    );
    assert_eq!(salt.len(), 32 + 2, "{salt}");
    assert!(
        got_head.contains("x-own: 7") && !got_head.contains(ACME),
        "{got_head}"
    );
    let record = paris.record("odd-1").await;
    assert_eq!(
        (
            record.completion_tokens,
            record.kv.cached_tokens,
            record.status.as_str()
        ),
        (3, 16, "ok")
    );
    paris.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_ends_with_an_error_and_a_refusal_is_the_engines_own() {
    const BETWEEN: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n";
    const WITHIN: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n7\r\ndata: 1\r\n";
    let instance =
        |address| format!("{{name: v1, model: {MODEL}, engine: vllm, server: {{url: 'http://{address}'}}}}");
    let mut streamed = theirs(&prompt(1, 60));
    streamed["stream"] = json!(true);
    // Between two events, and within one.
    for broken in [BETWEEN, WITHIN] {
        let engine = Recorded::start(broken).await;
        let paris = Paris::start(&[instance(engine.address)]).await;
        let (_, bytes) = paris.raw(ACME, "/v1/completions", &streamed.to_string()).await;
        let said = String::from_utf8(bytes).unwrap();
        assert!(said.starts_with("data: 1\n\ndata: {\"error\":{"), "{said}");
        assert!(!said.contains("[DONE]"));
        paris.stop().await;
    }

    let refusal = "HTTP/1.1 422 Unprocessable Entity\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{\"detail\": 1}";
    let engine = Recorded::start(refusal).await;
    let paris = Paris::start(&[instance(engine.address)]).await;
    let mut asked = theirs(&prompt(1, 60));
    asked["request_id"] = json!("no-1");
    let (head, bytes) = paris.raw(ACME, "/v1/completions", &asked.to_string()).await;
    assert!(head.starts_with("HTTP/1.1 422"), "{head}");
    assert_eq!(bytes, b"{\"detail\": 1}");
    assert_eq!(paris.record("no-1").await.status, "refused");
    paris.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_is_gone_at_the_engine_within_a_tenth_of_a_second() {
    let engine = engine(false).await;
    let paris = Paris::start(&[found("v1", &engine, "")]).await;
    let mut asked = theirs(&prompt(1, 60));
    asked["stream"] = json!(true);
    asked["max_tokens"] = json!(440);
    let mut stream = paris.send(ACME, "/v1/completions", &asked.to_string()).await;
    let mut some = [0; 600];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut some))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(metric(&engine, "vllm:num_requests_running").await, 1.0);
    drop(stream);
    let left = Instant::now();
    while metric(&engine, "vllm:num_requests_running").await > 0.0 {
        assert!(left.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let took = left.elapsed();
    assert!(took < Duration::from_millis(100), "{took:?}");
    paris.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_answers_than_one_request_may_have_do_not_reach_an_engine() {
    let engine = engine(false).await;
    let paris = Paris::start(&[found("v1", &engine, "")]).await;
    let tried = metric(&engine, "vllm:request_success_total").await;
    for more in [
        json!({"prompt": vec!["a"; 65]}),
        json!({"prompt": vec!["a"; 9], "n": "8"}),
        json!({"best_of": 65}),
    ] {
        let mut asked = theirs(&prompt(1, 60));
        asked
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (head, _) = paris.raw(ACME, "/v1/completions", &asked.to_string()).await;
        assert!(head.starts_with("HTTP/1.1 400"), "{more}: {head}");
    }
    assert_eq!(metric(&engine, "vllm:request_success_total").await, tried);
    paris.stop().await;
}
