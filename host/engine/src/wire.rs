//! HTTP to an engine's process.

use crate::foreign::EngineUrl;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::time::Duration;
use thiserror::Error;

/// How long a connection is kept for the next request. vLLM's server closes one after 5 s without any; one that it
/// closes just when a request is written on it looks like an engine that broke.
const KEPT: Duration = Duration::from_secs(2);

/// How long connecting may take: a process on a machine that is up answers within a round trip or refuses.
const CONNECT: Duration = Duration::from_secs(2);

/// Longest answer that is read whole.
const WHOLE_MOST: usize = 16 << 20;

/// Why an engine's process did not answer. The text names no address: it may reach a client.
#[derive(Debug, Error)]
pub(crate) enum WireError {
    /// The request cannot be written.
    #[error("the request cannot be written: {0}")]
    Form(String),
    /// No connection: nothing of the request was sent.
    #[error("no connection to its process: {0}")]
    Unreachable(String),
    /// A connection that broke.
    #[error("the connection to its process broke: {0}")]
    Broken(String),
    /// It takes too long.
    #[error("its process said nothing for {0:?}")]
    Late(Duration),
}

/// One engine's process.
#[derive(Debug)]
pub(crate) struct Upstream {
    client: Client<HttpConnector, Full<Bytes>>,
    url: EngineUrl,
    bearer: Option<HeaderValue>,
}

impl Upstream {
    pub(crate) fn new(url: EngineUrl, key: Option<&str>) -> Self {
        let mut connector = HttpConnector::new();
        // A small request must not wait for an acknowledgement of its head.
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(KEPT)
            .pool_timer(TokioTimer::new())
            .build(connector);
        let bearer = key.and_then(|key| HeaderValue::from_str(&format!("Bearer {key}")).ok());
        Self { client, url, bearer }
    }

    /// Sends a request; its answer is read by whoever has it. Dropping either closes the connection.
    pub(crate) async fn post(
        &self,
        path: &str,
        headers: &[(String, String)],
        body: Bytes,
    ) -> Result<Response<Incoming>, WireError> {
        let mut request = Request::post(self.url.join(path)).header(CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                request = request.header(name, value);
            }
        }
        self.send(request, body).await
    }

    /// A whole answer, within a time.
    pub(crate) async fn get(&self, path: &str, limit: Duration) -> Result<(StatusCode, Bytes), WireError> {
        let request = Request::get(self.url.join(path));
        self.within(limit, async {
            whole(self.send(request, Bytes::new()).await?).await
        })
        .await
    }

    /// The same of a request with a body.
    pub(crate) async fn ask(
        &self,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<(StatusCode, Bytes), WireError> {
        self.within(limit, async { whole(self.post(path, &[], body).await?).await })
            .await
    }

    async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, WireError>>,
    ) -> Result<T, WireError> {
        tokio::time::timeout(limit, work)
            .await
            .map_err(|_| WireError::Late(limit))?
    }

    async fn send(
        &self,
        request: hyper::http::request::Builder,
        body: Bytes,
    ) -> Result<Response<Incoming>, WireError> {
        let request = match &self.bearer {
            Some(bearer) => request.header(AUTHORIZATION, bearer),
            None => request,
        };
        let request = request
            .body(Full::from(body))
            .map_err(|e| WireError::Form(e.to_string()))?;
        self.client.request(request).await.map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let cause = cause.unwrap_or_else(|| error.to_string());
            match error.is_connect() {
                true => WireError::Unreachable(cause),
                false => WireError::Broken(cause),
            }
        })
    }
}

/// Reads an answer to its end.
pub(crate) async fn whole(answer: Response<Incoming>) -> Result<(StatusCode, Bytes), WireError> {
    let status = answer.status();
    let body = Limited::new(answer.into_body(), WHOLE_MOST).collect().await;
    let body = body.map_err(|e| WireError::Broken(e.to_string()))?;
    Ok((status, body.to_bytes()))
}
