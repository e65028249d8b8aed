//! `oci://HOST[:PORT]/REPOSITORY:TAG` or `…@sha256:DIGEST`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Longest address read, in bytes: host and repository have 255 each, the rest is short.
const MAX_BYTES: usize = 700;

/// Where a policy is in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Host and port.
    pub host: String,
    /// The repository.
    pub repository: String,
    /// A tag, or `sha256:` and a digest.
    pub reference: String,
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no place in a registry; write oci://HOST/REPOSITORY:TAG or oci://HOST/REPOSITORY@sha256:DIGEST"
)]
pub struct BadAddress(pub String);

impl Address {
    /// Whether a text means a registry at all.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("oci://")
    }

    /// Whether the reference is a digest.
    pub fn is_pinned(&self) -> bool {
        self.reference.starts_with("sha256:")
    }

    /// Whether the registry runs on this machine.
    pub fn is_loopback(&self) -> bool {
        let host = match self.host.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
            _ => &self.host,
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// A file's name for what is there: the repository's last part.
    pub fn file_name(&self) -> String {
        let last = self.repository.rsplit('/').next().unwrap_or(&self.repository);
        format!("{last}.wasm")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_pinned() { '@' } else { ':' };
        write!(
            f,
            "oci://{}/{}{mark}{}",
            self.host, self.repository, self.reference
        )
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        parse(text).ok_or_else(|| BadAddress(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Address> {
    let rest = text.strip_prefix("oci://").filter(|_| text.len() <= MAX_BYTES)?;
    let (host, rest) = rest.split_once('/')?;
    let (repository, reference) = match rest.split_once('@') {
        Some(pinned) => pinned,
        None => rest.rsplit_once(':')?,
    };
    let host_fits = !host.is_empty()
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']'));
    let reference_fits = match reference.strip_prefix("sha256:") {
        Some(digest) => is_digest(digest),
        None => is_tag(reference),
    };
    let fits = host_fits && repository.split('/').all(is_part) && reference_fits;
    fits.then(|| Address {
        host: host.to_owned(),
        repository: repository.to_owned(),
        reference: reference.to_owned(),
    })
}

/// A part of a repository's name, as the distribution specification has it. It holds no way out of a folder.
fn is_part(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    let ends = bytes.first().copied().is_some_and(plain) && bytes.last().copied().is_some_and(plain);
    ends && bytes.iter().all(|&b| plain(b) || matches!(b, b'.' | b'_' | b'-')) && !part.contains("..")
}

fn is_tag(tag: &str) -> bool {
    let first = tag.bytes().next();
    first.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
        && tag.len() <= 128
        && tag
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

pub(super) fn is_digest(digits: &str) -> bool {
    digits.len() == 64 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back_as_it_is_written() {
        let pinned = format!("oci://ghcr.io/acme/policies/mine@sha256:{}", "0a".repeat(32));
        for text in [
            "oci://127.0.0.1:5000/mine:1.0",
            "oci://localhost/a/b_c/d-e:latest",
            &pinned,
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let pinned: Address = pinned.parse().unwrap();
        assert!(pinned.is_pinned() && !pinned.is_loopback());
        assert_eq!(pinned.file_name(), "mine.wasm");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for bad in [
            "",
            "oci://",
            "oci://host",
            "oci://host/repo",
            "oci:///repo:1",
            "http://host/repo:1",
            "oci://host/:1",
            "oci://host/../x:1",
            "oci://host/a/../x:1",
            "oci://host/Repo:1",
            "oci://host/repo:",
            "oci://host/repo:a/b",
            "oci://user@host/repo:1",
            "oci://ho st/repo:1",
            "oci://host/repo@sha256:12",
            "oci://host/repo@md5:12",
            "oci://host/repo?x:1",
            "oci://host/-repo:1",
        ] {
            assert_eq!(bad.parse::<Address>(), Err(BadAddress(bad.to_owned())));
        }
    }

    #[test]
    fn loopback_is_this_machine_only() {
        let at = |host: &str| {
            format!("oci://{host}/a:1")
                .parse::<Address>()
                .unwrap()
                .is_loopback()
        };
        for host in [
            "localhost",
            "localhost:5000",
            "127.0.0.1",
            "127.1.2.3:80",
            "[::1]:5000",
        ] {
            assert!(at(host), "{host}");
        }
        for host in [
            "10.0.0.1:5000",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "registry:5000",
        ] {
            assert!(!at(host), "{host}");
        }
    }
}
