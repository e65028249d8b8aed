//! Which configuration a policy had, in a few digits.

use sha2::{Digest, Sha256};

/// Digits of a digest: enough that two configurations of one slot never share them by chance, and short enough for a line.
const DIGITS: usize = 16;

/// The first digits of the SHA-256 of a policy's text for `configure`; `None` for the empty text. `sha256sum` of the
/// same file begins with them.
pub fn config_digest(config: &str) -> Option<String> {
    if config.is_empty() {
        return None;
    }
    let mut digits = hex::encode(Sha256::digest(config));
    digits.truncate(DIGITS);
    Some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_beginning_of_sha256sum_and_the_empty_text_has_none() {
        // printf '{}' | sha256sum
        assert_eq!(config_digest("{}").as_deref(), Some("44136fa355b3678a"));
        assert_ne!(config_digest("{ }"), config_digest("{}"));
        assert_eq!(config_digest(""), None);
    }
}
