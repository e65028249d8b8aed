//! Who is calling.

use crate::error::{ErrorKind, RequestError};
use crate::site::Site;
use axum::http::{HeaderMap, header};
use portolan_ports::{KeyRecord, Principal};

/// Whom the key in the `Authorization` header lets in.
pub(super) fn principal(site: &Site, headers: &HeaderMap) -> Result<Principal, RequestError> {
    Ok(key(site, headers)?.principal)
}

/// What is known of the key in the `Authorization` header.
pub(super) fn key(site: &Site, headers: &HeaderMap) -> Result<KeyRecord, RequestError> {
    let key = bearer(headers)
        .ok_or_else(|| refused("no API key was sent; send it as \"Authorization: Bearer KEY\""))?;
    let found = site.parts.store.key(key).map_err(|error| {
        RequestError::new(ErrorKind::Internal, "the API key could not be looked up").with_detail(error)
    })?;
    found.ok_or_else(|| refused("the API key is not known here"))
}

/// Lets the operator in.
pub(super) fn operator(site: &Site, headers: &HeaderMap) -> Result<KeyRecord, RequestError> {
    let key = key(site, headers)?;
    match key.principal {
        Principal::Operator => Ok(key),
        Principal::Tenant(_) => Err(operator_only()),
    }
}

pub(super) fn operator_only() -> RequestError {
    RequestError::new(ErrorKind::Forbidden, "only the platform's operator may do this")
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

fn refused(message: &str) -> RequestError {
    RequestError::new(ErrorKind::Unauthenticated, message).with_code("invalid_api_key")
}
