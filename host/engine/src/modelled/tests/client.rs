//! A small HTTP client, one connection a request.

use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy)]
pub(super) struct Client(pub(super) SocketAddr);

impl Client {
    async fn send(&self, method: &str, path: &str, body: String) -> Result<Response<Incoming>, Failure> {
        let stream = TcpStream::connect(self.0).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "test")
            .body(Full::<bytes::Bytes>::from(body))?;
        Ok(sender.send_request(request).await?)
    }

    /// The answer's head; its body is read by whoever has it.
    pub(super) async fn begin(&self, path: &str, body: &Value) -> Response<Incoming> {
        self.send("POST", path, body.to_string()).await.unwrap()
    }

    pub(super) async fn try_post(&self, path: &str, body: &Value) -> Result<(u16, String, String), Failure> {
        let answer = self.send("POST", path, body.to_string()).await?;
        let status = answer.status().as_u16();
        let kind = answer
            .headers()
            .get("content-type")
            .map(|kind| kind.to_str().unwrap().to_owned());
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((
            status,
            kind.unwrap_or_default(),
            String::from_utf8(body.to_vec())?,
        ))
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> (u16, String, String) {
        self.try_post(path, body).await.unwrap()
    }

    pub(super) async fn json(&self, path: &str, body: &Value) -> Value {
        let (status, _, text) = self.post(path, body).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    pub(super) async fn get(&self, path: &str) -> String {
        let answer = self.send("GET", path, String::new()).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    pub(super) async fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").await;
        let line = page.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a metric has a value, at most 5 s.
    pub(super) async fn until_metric(&self, name: &str, value: f64) {
        for _ in 0..500 {
            if (self.metric(name).await - value).abs() < 1e-9 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{name} is {} and not {value}", self.metric(name).await);
    }
}
