//! Policy state on disk: one record a page.
//!
//! The key of a record is `<scope>/<policy>`, a zero, how often the policy's pages were doubled, and the page in two
//! bytes. Names hold neither `/` nor a zero, so no two policies share a record. The record has the page's keys one after
//! the other: length in two bytes, key, number, end in µs; numbers are little endian, no end is `u64::MAX`.

use crate::files;
use crate::slot::{PLATFORM, scope_word};
use portolan_base::{Moment, TenantName};
use portolan_ports::{Scope, StateSpace, StateValue, StoreError};
use std::path::Path;

/// A page as it was read.
pub(super) struct Page {
    pub(super) space: StateSpace,
    pub(super) doublings: u8,
    pub(super) values: Vec<(String, StateValue)>,
}

/// What the keys of all records of a policy begin with.
pub(super) fn prefix(space: &StateSpace) -> Vec<u8> {
    format!("{}/{}\0", scope_word(&space.scope), space.policy).into_bytes()
}

/// The key of a page's record.
pub(super) fn key(prefix: &[u8], doublings: u8, page: usize) -> Vec<u8> {
    // The quota on keys keeps pages far below 65,536; a page beyond would be one with that of its low bits.
    let page = (page as u16).to_be_bytes();
    [prefix, &[doublings], &page].concat()
}

/// A page's record, or `None` when it holds nothing.
pub(super) fn encode<'a>(page: impl Iterator<Item = (&'a str, StateValue)>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for (key, value) in page {
        // Keys have at most 128 bytes.
        bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        bytes.extend_from_slice(key.as_bytes());
        bytes.extend_from_slice(&value.number.to_le_bytes());
        let end = value.expires.map_or(u64::MAX, |at| at.0);
        bytes.extend_from_slice(&end.to_le_bytes());
    }
    (!bytes.is_empty()).then_some(bytes)
}

pub(super) fn decode(folder: &Path, key: &[u8], record: &[u8]) -> Result<Page, StoreError> {
    let page = || {
        let (space, doublings) = place(key)?;
        Some(Page {
            space,
            doublings,
            values: values(record)?,
        })
    };
    page().ok_or_else(|| StoreError::Damaged {
        place: format!("{}, record {}", folder.display(), key.escape_ascii()),
        detail: "it is no page of a policy; remove the folder to begin with empty state".into(),
    })
}

fn place(key: &[u8]) -> Option<(StateSpace, u8)> {
    let (name, [0, doublings, _, _]) = key.split_last_chunk::<4>()? else {
        return None;
    };
    let (scope, policy) = std::str::from_utf8(name).ok()?.split_once('/')?;
    let scope = match scope {
        PLATFORM => Scope::Platform,
        tenant => Scope::Tenant(TenantName::new(tenant).ok()?),
    };
    let policy = policy.to_owned();
    // More than 65,536 pages were never written.
    (*doublings <= 16).then_some((StateSpace { scope, policy }, *doublings))
}

fn values(mut record: &[u8]) -> Option<Vec<(String, StateValue)>> {
    let mut values = Vec::new();
    while !record.is_empty() {
        let (length, rest) = record.split_first_chunk::<2>()?;
        let (key, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        let (number, rest) = rest.split_first_chunk::<8>()?;
        let (end, rest) = rest.split_first_chunk::<8>()?;
        let end = u64::from_le_bytes(*end);
        let value = StateValue {
            number: u64::from_le_bytes(*number),
            expires: (end != u64::MAX).then_some(Moment(end)),
        };
        values.push((std::str::from_utf8(key).ok()?.to_owned(), value));
        record = rest;
    }
    Some(values)
}

pub(super) fn failed(folder: &Path, error: &sled::Error) -> StoreError {
    match error {
        sled::Error::Io(e) => files::io(folder, e),
        e => StoreError::Damaged {
            place: folder.display().to_string(),
            detail: e.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_reads_back_as_it_was_written_and_not_at_all_when_it_is_torn() {
        let space = StateSpace {
            scope: Scope::Tenant(TenantName::new("acme").unwrap()),
            policy: "mine".into(),
        };
        let value = |number, expires| StateValue { number, expires };
        let page = [
            ("", value(1, None)),
            ("a\u{e9}", value(u64::MAX, Some(Moment(7)))),
        ];
        let record = encode(page.into_iter()).unwrap();
        let key = key(&prefix(&space), 3, 0x0102);
        assert_eq!(key, b"acme/mine\0\x03\x01\x02");
        let read = decode(Path::new("f"), &key, &record).unwrap();
        assert_eq!((read.space, read.doublings), (space, 3));
        let expected = page.map(|(key, value)| (key.to_owned(), value));
        assert_eq!(read.values, expected);
        for torn in 1..record.len() {
            let whole_first = torn == 18;
            let read = decode(Path::new("f"), &key, &record[..torn]);
            assert_eq!(read.is_ok(), whole_first, "{torn} bytes");
        }
        assert!(decode(Path::new("f"), b"acme", &record).is_err());
        assert_eq!(encode([].into_iter()), None);
    }
}
