//! The request's labels, as the client sent them. Not for invalidation policies, which are asked about no request.

use crate::bindings::routing::portolan::policy::labels as imported;

/// The label under `key`, if the request has one.
pub fn get(key: &str) -> Option<String> {
    imported::get(key)
}
