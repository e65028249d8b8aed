//! Takes KV from the modelled engine that computed it.

use super::super::hand_over::{Source, TAKE};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Tokens that came; none where the other side has nothing under this name, or is gone.
pub(super) async fn tokens(source: &Source) -> Option<u32> {
    let stream = TcpStream::connect((source.host.as_str(), source.port))
        .await
        .ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .ok()?;
    let task = tokio::spawn(connection);
    let request = Request::post(format!("{TAKE}{}", source.request))
        .header("host", format!("{}:{}", source.host, source.port))
        .body(Empty::<bytes::Bytes>::new())
        .ok()?;
    let answer = sender.send_request(request).await.ok()?;
    let whole = answer.into_body().collect().await.ok()?.to_bytes();
    task.abort();
    let said: serde_json::Value = serde_json::from_slice(&whole).ok()?;
    // An engine that was restarted has another name, and nothing of what its predecessor computed.
    let same = said["engine"].as_str() == Some(source.engine.as_str());
    said["tokens"]
        .as_u64()
        .filter(|_| same)
        .and_then(|n| u32::try_from(n).ok())
}
