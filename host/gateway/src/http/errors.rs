//! One table from kinds of failure to HTTP status and OpenAI error type, and the shapes built from it.

use crate::error::{ErrorKind, RequestError};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Status and OpenAI error type of a kind of failure.
pub const fn status_of(kind: ErrorKind) -> (StatusCode, &'static str) {
    match kind {
        ErrorKind::BadRequest => (StatusCode::BAD_REQUEST, "invalid_request_error"),
        ErrorKind::Unauthenticated => (StatusCode::UNAUTHORIZED, "authentication_error"),
        ErrorKind::Forbidden => (StatusCode::FORBIDDEN, "permission_error"),
        ErrorKind::NotFound => (StatusCode::NOT_FOUND, "not_found_error"),
        ErrorKind::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error"),
        ErrorKind::Conflict => (StatusCode::CONFLICT, "invalid_request_error"),
        ErrorKind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error"),
        ErrorKind::RateLimited => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error"),
        ErrorKind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error"),
        ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "server_error"),
    }
}

/// OpenAI's error object, as a response body and as an event of a stream.
#[derive(Debug, Serialize)]
pub struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorFields<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

impl<'a> From<&'a RequestError> for ErrorBody<'a> {
    fn from(error: &'a RequestError) -> Self {
        let fields = ErrorFields {
            message: &error.message,
            kind: status_of(error.kind).1,
            param: error.param.as_deref(),
            code: error.code,
        };
        Self { error: fields }
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let mut response = (status_of(self.kind).0, axum::Json(ErrorBody::from(&self))).into_response();
        describe(&mut response, self);
        response
    }
}

/// Adds the headers of a failure, and the failure itself for the log.
pub(super) fn describe(response: &mut Response, error: RequestError) {
    if let Some(wait) = error.retry_after {
        // Whole seconds, rounded up: zero would invite a client to return before anything has changed.
        let seconds = wait.as_millis().div_ceil(1000).max(1);
        if let Ok(value) = HeaderValue::from_str(&seconds.to_string()) {
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
    }
    if error.kind == ErrorKind::Unauthenticated {
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response.extensions_mut().insert(error);
}

/// What the log says about a failed request.
pub(super) fn log(id: &str, error: &RequestError) {
    let (kind, message, detail) = (error.kind, error.message.as_str(), error.detail.as_deref());
    if kind == ErrorKind::Internal {
        tracing::error!(request = %id, ?kind, error = ?message, detail = ?detail, "request failed");
    } else {
        tracing::info!(request = %id, ?kind, error = ?message, detail = ?detail, "request refused");
    }
}

pub(super) async fn no_such_path() -> RequestError {
    RequestError::new(
        ErrorKind::NotFound,
        "there is nothing at this path; see /v1/models",
    )
    .with_code("unknown_url")
}

pub(super) async fn wrong_method() -> RequestError {
    let message = "this path does not take this method; the Allow header names those it takes";
    RequestError::new(ErrorKind::MethodNotAllowed, message).with_code("method_not_allowed")
}

/// The parts of a path.
pub(super) fn path<T>(path: Result<Path<T>, PathRejection>) -> Result<T, RequestError> {
    path.map(|Path(parts)| parts)
        .map_err(|e| RequestError::new(ErrorKind::BadRequest, "the path cannot be read").with_detail(e))
}

/// The query of a URL.
pub(super) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, RequestError> {
    query.map(|Query(fields)| fields).map_err(|error| {
        RequestError::new(
            ErrorKind::BadRequest,
            format!("the query cannot be used: {}", error.body_text()),
        )
    })
}
