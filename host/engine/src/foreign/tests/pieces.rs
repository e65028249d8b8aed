//! How the pieces of an answer go on: those that came together together, and none later than it came.

use super::world::*;
use super::*;
use tokio::sync::Semaphore;

/// Events of an answer that comes in one go.
const EVENTS: usize = 200;

/// The request whose events come one by one.
const SLOW: &str = "one by one";

/// The request whose answer breaks off behind its events.
const BROKEN: &str = "broken off";

fn event(n: usize) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{n}\"}}]}}\n\n")
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

/// A server that sends events as chunks: all of them in one write, or each when it is let.
async fn chunked(let_on: Arc<Semaphore>) -> (std::net::SocketAddr, JoinSet<()>) {
    server(move |got, mut stream| {
        let let_on = Arc::clone(&let_on);
        async move {
            if let Some(answer) = housekeeping(&got) {
                return write(&mut stream, answer).await;
            }
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            let body = String::from_utf8(got.body).unwrap();
            let events: String = (0..EVENTS).map(|n| chunk(&event(n))).collect();
            if body.contains(SLOW) {
                write(&mut stream, head.as_bytes()).await;
                for n in 0..3 {
                    let_on.acquire().await.unwrap().forget();
                    write(&mut stream, chunk(&event(n)).as_bytes()).await;
                }
            } else {
                write(&mut stream, (head.to_owned() + &events).as_bytes()).await;
            }
            if !body.contains(BROKEN) {
                write(&mut stream, b"0\r\n\r\n").await;
            }
        }
    })
    .await
}

/// The pieces of an answer, and how it ended.
async fn pieces(instance: &ForeignInstance, prompt: &str) -> (Vec<Vec<u8>>, Option<EngineError>) {
    let asked = job(&completion(prompt, json!({"stream": true})));
    let mut answer = instance.answer(asked, None).await.unwrap();
    let mut pieces = Vec::new();
    while let Some(piece) = answer.body.next().await {
        match piece {
            Ok(piece) => pieces.push(piece.to_vec()),
            Err(error) => return (pieces, Some(error)),
        }
    }
    (pieces, None)
}

#[tokio::test]
async fn what_came_in_one_go_goes_on_in_few_pieces_and_its_end_is_told_behind_it() {
    let (address, _server) = chunked(Arc::new(Semaphore::new(0))).await;
    let instance = up(config(address)).await;
    let all: String = (0..EVENTS).map(event).collect();
    let (whole, ended) = pieces(&instance, "at once").await;
    assert_eq!((whole.concat(), ended), (all.clone().into_bytes(), None));
    assert!(whole.len() < EVENTS / 4, "{} pieces", whole.len());
    let (cut, ended) = pieces(&instance, BROKEN).await;
    assert_eq!(cut.concat(), all.into_bytes());
    assert!(
        matches!(&ended, Some(EngineError::Broken(reason)) if reason.contains("broke off")),
        "{ended:?}"
    );
}

#[tokio::test]
async fn a_piece_waits_for_none_behind_it() {
    let let_on = Arc::new(Semaphore::new(0));
    let (address, _server) = chunked(Arc::clone(&let_on)).await;
    let instance = up(config(address)).await;
    let asked = job(&completion(SLOW, json!({"stream": true})));
    let mut answer = instance.answer(asked, None).await.unwrap();
    for n in 0..3 {
        let_on.add_permits(1);
        let piece = tokio::time::timeout(Duration::from_secs(30), answer.body.next()).await;
        let piece = piece.expect("it comes before the next is sent").unwrap().unwrap();
        assert_eq!(piece, event(n).as_bytes());
    }
    assert!(answer.body.next().await.is_none());
}
