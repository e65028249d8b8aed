//! Names and ids. A name is what an operator wrote in the configuration; an id is drawn for one request or transfer.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Longest name accepted, in bytes: fits a DNS label, a file name and a metric label.
pub const NAME_MAX_BYTES: usize = 63;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameError {
    /// The name is empty.
    Empty,
    /// The name is longer than [`NAME_MAX_BYTES`].
    TooLong(usize),
    /// The name holds a character outside `a-z 0-9 - _ .`, or begins with one of `- _ .`.
    Character(char),
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the name is empty"),
            Self::TooLong(n) => write!(f, "the name has {n} bytes, at most {NAME_MAX_BYTES} are allowed"),
            Self::Character(c) => write!(
                f,
                "the name {} {c:?}; use a-z, 0-9, '-', '_' and '.', beginning with a letter or digit",
                // These may stand anywhere else.
                if matches!(c, '-' | '_' | '.') {
                    "begins with"
                } else {
                    "holds"
                }
            ),
        }
    }
}

impl core::error::Error for NameError {}

/// Checks that `name` can be a site, instance, tenant, model or policy name: `[a-z0-9][a-z0-9._-]{0,62}`.
///
/// Such a name is safe as a path component (it cannot be `..` and holds no separator), a metric label and a bus
/// subject token.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > NAME_MAX_BYTES {
        return Err(NameError::TooLong(name.len()));
    }
    for (i, c) in name.chars().enumerate() {
        let plain = c.is_ascii_lowercase() || c.is_ascii_digit();
        if !(plain || (i > 0 && matches!(c, '-' | '_' | '.'))) {
            return Err(NameError::Character(c));
        }
    }
    Ok(())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and wraps a name; see [`check_name`].
            pub fn new(name: &str) -> Result<Self, NameError> {
                check_name(name)?;
                Ok(Self(Arc::from(name)))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(name: String) -> Result<Self, NameError> {
                Self::new(&name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.to_string()
            }
        }

        impl core::str::FromStr for $name {
            type Err = NameError;
            fn from_str(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

name_type! {
    /// One datacenter.
    SiteName
}
name_type! {
    /// One engine instance, unique within its site.
    InstanceName
}
name_type! {
    /// One customer of the platform.
    TenantName
}
name_type! {
    /// One of the platform's operators: a person, or a machine that acts for one.
    OperatorName
}
name_type! {
    /// A served model, as clients name it.
    ModelName
}

/// Longest request id taken from a client, in bytes.
pub const REQUEST_ID_MAX_BYTES: usize = 128;

/// The id of one request: drawn by the gateway, or taken from the client when it is printable ASCII without spaces
/// of at most [`REQUEST_ID_MAX_BYTES`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// Wraps a client's id, or `None` when it is not acceptable.
    pub fn from_client(id: &str) -> Option<Self> {
        let ok =
            !id.is_empty() && id.len() <= REQUEST_ID_MAX_BYTES && id.bytes().all(|b| b.is_ascii_graphic());
        ok.then(|| Self(Arc::from(id)))
    }

    /// Draws an id: `req-` and 128 random bits in hexadecimal.
    pub fn draw(random: &dyn crate::Random) -> Self {
        Self(Arc::from(
            alloc::format!("req-{:016x}{:016x}", random.next_u64(), random.next_u64()).as_str(),
        ))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of one movement of KV between two sites. Drawn at random, never reused, so that a late frame of an
/// abandoned transfer cannot be taken for a frame of another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TransferId(pub u128);

impl TransferId {
    /// Draws an id of 128 random bits.
    pub fn draw(random: &dyn crate::Random) -> Self {
        Self((u128::from(random.next_u64()) << 64) | u128::from(random.next_u64()))
    }
}

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kv-{:032x}", self.0)
    }
}

impl fmt::Debug for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_their_folder_are_refused() {
        for bad in ["", "..", ".hidden", "a/b", "a\\b", "A", "é", "-x", "a b", "a\0"] {
            assert!(check_name(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(check_name(&"x".repeat(64)), Err(NameError::TooLong(64)));
        for good in ["a", "smollm2-135m-instruct", "qwen3.5_x", "0", &"x".repeat(63)] {
            assert_eq!(check_name(good), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn a_request_id_from_a_client_is_printable_and_bounded() {
        assert!(RequestId::from_client("abc-1").is_some());
        for bad in ["", "a b", "a\n", "é", &"x".repeat(129)] {
            assert!(RequestId::from_client(bad).is_none(), "{bad:?}");
        }
    }
}
