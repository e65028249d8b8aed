//! What a webhook is sent, and how often it is tried.

use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

/// A receiver that answers with these statuses, one a connection; gives back the bodies.
fn receiver(statuses: &'static [u16]) -> (SocketAddr, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move || {
        let answer = |status: &u16| {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(&stream);
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            write!(
                &stream,
                "HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            .unwrap();
            String::from_utf8(body).unwrap()
        };
        statuses.iter().map(answer).collect()
    };
    (address, std::thread::spawn(serve))
}

fn signal() -> Signal {
    Signal {
        site: SiteName::new("paris").unwrap(),
        wanted: Wanted {
            remote_prefill: 4,
            prefill: 3,
            decode: 5,
        },
        arrivals_rps: 2.5,
        capacity_rps: 3.18,
        threshold_tokens: 19_700,
    }
}

fn sent(statuses: &'static [u16]) -> (Result<(), Untold>, Vec<String>) {
    let (address, bodies) = receiver(statuses);
    let hook = WebhookUrl::try_from(format!("http://{address}/scale")).unwrap();
    let result = deliver(&hook, &signal(), Duration::from_millis(1));
    (result, bodies.join().unwrap())
}

#[test]
fn a_signal_says_what_is_wanted_and_why() {
    let (result, bodies) = sent(&[204]);
    assert!(result.is_ok());
    let body: serde_json::Value = serde_json::from_str(&bodies[0]).unwrap();
    assert_eq!(
        body,
        serde_json::json!({
            "site": "paris", "wanted": {"remote_prefill": 4, "prefill": 3, "decode": 5},
            "arrivals_rps": 2.5, "capacity_rps": 3.18, "threshold_tokens": 19_700,
        })
    );
}

#[test]
fn what_may_pass_is_tried_again_and_what_will_not_is_not() {
    let (result, bodies) = sent(&[503, 429, 200]);
    assert_eq!((result.is_ok(), bodies.len()), (true, 3));
    let (result, bodies) = sent(&[403]);
    assert!(matches!(result, Err(Untold::Refused(403))) && bodies.len() == 1);
    let (result, _) = sent(&[302]);
    assert!(
        matches!(result, Err(Untold::Refused(302))),
        "a redirect is not followed"
    );
    let (result, bodies) = sent(&[500, 500, 500, 500]);
    assert!(
        matches!(result, Err(Untold::Refused(500))) && bodies.len() == 4,
        "and then given up"
    );
}

#[test]
fn nobody_there_is_said_without_the_address() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hook = WebhookUrl::try_from(format!("http://{closed}/s3cret")).unwrap();
    let why = deliver(&hook, &signal(), Duration::ZERO).unwrap_err();
    assert_eq!(why.to_string(), "no answer");
}
