//! The command line's own HTTP client.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

/// Longest a call may take altogether.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Longest an upload may take: a host gives a compiler fifteen minutes, and others may be before it.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// Largest answer read.
const ANSWER_MAX_BYTES: u64 = 64 << 20;

/// What `/metrics` says that it is: the one answer that is no JSON.
const METRICS: &[u8] = b"application/openmetrics-text";

/// Reaches one host with one key.
#[derive(Clone, Debug)]
pub struct Client {
    agent: ureq::Agent,
    server: String,
    key: String,
}

/// A piece of a path or a query as a URL writes it: whatever it holds, it is one piece, and names what was typed.
pub fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Why a call gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The host cannot be reached.
    #[error(
        "{server} cannot be reached: {detail}; is the host running? (`portolan serve` or `portolan demo`)"
    )]
    Unreachable {
        /// The address.
        server: String,
        /// Why.
        detail: String,
    },
    /// The key cannot be sent.
    #[error(
        "the key holds a character that no HTTP header carries, such as a line break; look at --key or PORTOLAN_KEY"
    )]
    BadKey,
    /// The host took longer than a call may.
    #[error(
        "{server} gave no answer in the time a call may take; what was asked for may be done all the same: look before you ask \
         again"
    )]
    NoAnswer {
        /// The address.
        server: String,
    },
    /// The host said no.
    #[error("{message} (HTTP {status})")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The host's own words.
        message: String,
        /// The whole body.
        body: Value,
    },
    /// The answer is not what was expected.
    #[error("the answer of {server} cannot be read: {detail}")]
    BadAnswer {
        /// The address.
        server: String,
        /// Why.
        detail: String,
    },
}

/// An answer in full.
#[derive(Debug)]
pub struct Reply {
    /// The request's id, from the response header.
    pub request_id: Option<String>,
    /// The body.
    pub body: Value,
}

impl Client {
    /// A client of the host at `server`, showing `key`.
    pub fn new(server: &str, key: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(CALL_TIMEOUT))
            .http_status_as_error(false)
            .build();
        Self {
            agent: config.new_agent(),
            server: address(server),
            key: key.to_owned(),
        }
    }

    /// The host's address.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// GET.
    pub fn get(&self, path: &str) -> Result<Reply, ClientError> {
        let call = self
            .agent
            .get(self.url(path))
            .header("authorization", self.bearer())
            .call();
        self.whole(call)
    }

    /// POST of a JSON document.
    pub fn post(&self, path: &str, body: &Value) -> Result<Reply, ClientError> {
        let call = self
            .agent
            .post(self.url(path))
            .header("authorization", self.bearer())
            .send_json(body);
        self.whole(call)
    }

    /// PUT of bytes.
    pub fn put(&self, path: &str, query: &[(&str, &str)], bytes: &[u8]) -> Result<Reply, ClientError> {
        self.put_signed(path, query, (bytes, ""))
    }

    /// PUT of a component and the text of its signatures, which may be empty.
    pub fn put_signed(
        &self,
        path: &str,
        query: &[(&str, &str)],
        (bytes, signatures): (&[u8], &str),
    ) -> Result<Reply, ClientError> {
        let request = self
            .agent
            .put(self.url(path))
            .header("authorization", self.bearer());
        let request = request
            .config()
            .timeout_global(Some(UPLOAD_TIMEOUT))
            .build()
            .query_pairs(query.iter().copied())
            .content_type("application/wasm");
        let lines = signatures.lines().map(str::trim);
        let lines: Vec<&str> = lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .collect();
        let request = match lines.is_empty() {
            true => request,
            false => request.header("x-portolan-signature", lines.join(",")),
        };
        self.whole(request.send(bytes))
    }

    /// DELETE.
    pub fn delete(&self, path: &str, query: &[(&str, &str)]) -> Result<Reply, ClientError> {
        let call = self
            .agent
            .delete(self.url(path))
            .header("authorization", self.bearer())
            .query_pairs(query.iter().copied())
            .call();
        self.whole(call)
    }

    /// POST whose answer is a stream of server-sent events; each `data:` value goes to `on_data` until it says stop
    /// by returning false. Returns the request's id.
    pub fn stream(
        &self,
        path: &str,
        body: &Value,
        on_data: &mut dyn FnMut(&str) -> bool,
    ) -> Result<Option<String>, ClientError> {
        let call = self
            .agent
            .post(self.url(path))
            .header("authorization", self.bearer())
            .send_json(body);
        let response = call.map_err(|e| self.unreachable(&e))?;
        if !response.status().is_success() {
            return self.whole(Ok(response)).map(|reply| reply.request_id);
        }
        let request_id = id_of(&response);
        let lines = BufReader::new(response.into_body().into_reader()).lines();
        for line in lines {
            let line = line.map_err(|e| self.bad_answer(&e))?;
            if let Some(data) = line.strip_prefix("data:")
                && !on_data(data.trim_start())
            {
                break;
            }
        }
        Ok(request_id)
    }

    fn whole(
        &self,
        call: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Reply, ClientError> {
        let response = call.map_err(|e| self.unreachable(&e))?;
        let (status, request_id) = (response.status(), id_of(&response));
        let kind = response.headers().get(ureq::http::header::CONTENT_TYPE);
        let is_metrics = kind.is_some_and(|kind| kind.as_bytes().starts_with(METRICS));
        let mut text = String::new();
        let mut reader = response.into_body().into_reader().take(ANSWER_MAX_BYTES);
        reader
            .read_to_string(&mut text)
            .map_err(|e| self.bad_answer(&e))?;
        let read = serde_json::from_str(&text);
        if status.is_success() {
            return match read {
                Ok(body) => Ok(Reply { request_id, body }),
                Err(_) if is_metrics => Ok(Reply {
                    request_id,
                    body: Value::String(text),
                }),
                Err(_) if text.is_empty() => Ok(Reply {
                    request_id,
                    body: Value::Null,
                }),
                Err(_) => Err(ClientError::BadAnswer {
                    server: self.server.clone(),
                    detail: "it is no JSON; does something else than Portolan listen there?".to_owned(),
                }),
            };
        }
        let body = read.unwrap_or(Value::String(text));
        let message = body
            .pointer("/error/message")
            .and_then(Value::as_str)
            .unwrap_or("the host gave no reason");
        let message = match status.as_u16() {
            401 if self.key.is_empty() => "no API key was given; --key or PORTOLAN_KEY says it",
            _ => message,
        };
        Err(ClientError::Refused {
            status: status.as_u16(),
            message: message.to_owned(),
            body,
        })
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.key)
    }

    fn unreachable(&self, error: &ureq::Error) -> ClientError {
        if let ureq::Error::Timeout(ureq::Timeout::Global) = error {
            return ClientError::NoAnswer {
                server: self.server.clone(),
            };
        }
        if !self.key.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return ClientError::BadKey;
        }
        ClientError::Unreachable {
            server: self.server.clone(),
            detail: error.to_string(),
        }
    }

    fn bad_answer(&self, error: &std::io::Error) -> ClientError {
        ClientError::BadAnswer {
            server: self.server.clone(),
            detail: error.to_string(),
        }
    }
}

/// A host's address as typed: `http://` may be left out.
fn address(typed: &str) -> String {
    let typed = typed.trim_end_matches('/');
    if typed.contains("://") {
        typed.to_owned()
    } else {
        format!("http://{typed}")
    }
}

fn id_of(response: &ureq::http::Response<ureq::Body>) -> Option<String> {
    let id = response.headers().get("x-portolan-request-id")?;
    id.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_a_line_break_is_not_taken_for_a_host_that_is_away() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string();
        for key in ["sk-1\n", "sk-1\r", "schlüssel"] {
            let refused = Client::new(&server, key).get("/v1/models");
            assert!(
                matches!(refused, Err(ClientError::BadKey)),
                "{key:?}: {refused:?}"
            );
        }
    }

    #[test]
    fn a_segment_names_what_was_typed_and_nothing_else() {
        for (typed, written) in [
            ("req-1_2.3~", "req-1_2.3~"),
            ("%2e%2e", "%252e%252e"),
            ("a/b?c#d&e=f", "a%2Fb%3Fc%23d%26e%3Df"),
            ("größe 1", "gr%C3%B6%C3%9Fe%201"),
        ] {
            assert_eq!(segment(typed), written);
        }
    }
}
