//! What a client is told when a request fails, and what the log says beside it.

use std::time::Duration;

/// What kind of failure it is. `http/errors.rs` maps each to a status and an OpenAI error type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request cannot be understood or asks for something impossible: 400.
    BadRequest,
    /// No key, or an unknown one: 401.
    Unauthenticated,
    /// The key may not do this, or residency leaves no route: 403.
    Forbidden,
    /// No such model or thing: 404.
    NotFound,
    /// Method not allowed: 405.
    MethodNotAllowed,
    /// It does not fit what is there: 409.
    Conflict,
    /// The body is too large: 413.
    TooLarge,
    /// A limit of the tenant: 429.
    RateLimited,
    /// No instance can take it at present: 503.
    Unavailable,
    /// Something broke on this side: 500.
    Internal,
}

/// A failed request: the message is for the client, the detail for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// What kind.
    pub kind: ErrorKind,
    /// What was wrong, where, and what to do. Names nothing of another tenant and no address of ours.
    pub message: String,
    /// The field at fault, in the client's own words.
    pub param: Option<String>,
    /// Stable code, such as `context_length_exceeded`.
    pub code: Option<&'static str>,
    /// When to try again.
    pub retry_after: Option<Duration>,
    /// For the log only.
    pub detail: Option<String>,
}

impl RequestError {
    /// A failure of a kind, with what the client is told.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
            detail: None,
        }
    }

    /// A bad value of one field.
    pub fn bad_field(param: &str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.to_owned()),
            ..Self::new(ErrorKind::BadRequest, message)
        }
    }

    /// No capacity; the client may try again after `retry_after`.
    pub fn unavailable(message: impl Into<String>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(ErrorKind::Unavailable, message)
        }
    }

    /// The tenant has as many requests here as it may; it may try again after a second, about the time of one answer.
    pub fn tenant_limit() -> Self {
        let text = "this tenant has too many requests in flight; wait for some to end";
        Self {
            retry_after: Some(Duration::from_secs(1)),
            ..Self::new(ErrorKind::RateLimited, text).with_code("tenant_limit")
        }
    }

    /// The host stops, and cannot end the answer.
    pub fn stopping() -> Self {
        Self::host_stops("could not end the answer in time; send the request again")
    }

    /// The host stops, and the rest of the request has not come.
    pub fn half_sent() -> Self {
        Self::host_stops("does not wait for the rest of the request; send it again")
    }

    fn host_stops(why: &str) -> Self {
        // Whoever balances load has seen by then that this host is gone.
        const SOON: Duration = Duration::from_secs(1);
        Self::unavailable(format!("this host is stopping and {why}"), SOON).with_code("host_stopping")
    }

    /// Adds a stable code.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Adds what only the log should say.
    #[must_use]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers hand over an error they are done with"
    )]
    pub fn with_detail(mut self, detail: impl ToString) -> Self {
        self.detail = Some(detail.to_string());
        self
    }
}
