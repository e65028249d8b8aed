//! Whom a policy comes from: detached signatures, and who is trusted for which scope.
//!
//! A signature is one line of text; a file `NAME.wasm.sig` and the header `x-portolan-signature` hold one or several:
//!
//! ```text
//! portolan-signature-1 ed25519 <key id, 16 hex digits> <signature, 128 hex digits>
//! ```
//!
//! What is signed is [`SIGNED_PREFIX`] followed by the 32 bytes of the component's SHA-256.

use crate::{Finding, Scope, Severity};
use portolan_base::Moment;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a signature covers before the component's digest: a signature made for another purpose never fits a policy.
pub const SIGNED_PREFIX: &[u8] = b"portolan policy signature 1\0";

/// Longest text of signatures read, in bytes: some twenty lines of 180.
pub const SIGNATURES_MAX_BYTES: usize = 4096;

/// Most signatures of one version: each rotation of keys adds one.
pub const SIGNATURES_MAX: usize = 16;

const FORMAT: &str = "portolan-signature-1";
const ALGORITHM: &str = "ed25519";
const KEY_ID_DIGITS: usize = 16;
const SIGNATURE_DIGITS: usize = 128;

/// One signature of a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionSignature {
    /// Which key made it: the first 16 hexadecimal digits of the SHA-256 of the public key.
    pub key_id: String,
    /// The 64 bytes, hexadecimal.
    pub signature: String,
}

impl fmt::Display for VersionSignature {
    /// The line of text that stands for it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FORMAT} {ALGORITHM} {} {}", self.key_id, self.signature)
    }
}

/// A text that holds no signatures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSignatureText {
    /// It is too long.
    #[error("it has {0} bytes, at most {SIGNATURES_MAX_BYTES} are read")]
    TooLong(usize),
    /// A line is not one.
    #[error(
        "line {line} is no signature: it must be {FORMAT:?}, {ALGORITHM:?}, {KEY_ID_DIGITS} and {SIGNATURE_DIGITS} \
         hexadecimal digits"
    )]
    Line {
        /// Which line, from 1.
        line: usize,
    },
    /// There is no line.
    #[error("it holds no signature")]
    Empty,
    /// There are too many.
    #[error("it holds {0} signatures, at most {SIGNATURES_MAX} are kept")]
    TooMany(usize),
}

impl VersionSignature {
    /// Reads lines, or what a header has in their place: commas. Empty lines and lines that begin with `#` are skipped.
    pub fn read_all(text: &str) -> Result<Vec<Self>, BadSignatureText> {
        if text.len() > SIGNATURES_MAX_BYTES {
            return Err(BadSignatureText::TooLong(text.len()));
        }
        let lines = text.split(['\n', ',']).map(str::trim).zip(1..);
        let signatures = lines
            .filter(|(line, _)| !line.is_empty() && !line.starts_with('#'))
            .map(|(text, line)| Self::read(text).ok_or(BadSignatureText::Line { line }))
            .collect::<Result<Vec<_>, _>>()?;
        match signatures.len() {
            0 => Err(BadSignatureText::Empty),
            n if n > SIGNATURES_MAX => Err(BadSignatureText::TooMany(n)),
            _ => Ok(signatures),
        }
    }

    fn read(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let named = words.next() == Some(FORMAT) && words.next() == Some(ALGORITHM);
        let (key_id, signature) = (words.next()?, words.next()?);
        let hex = |text: &str, digits: usize| {
            text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let fits =
            named && words.next().is_none() && hex(key_id, KEY_ID_DIGITS) && hex(signature, SIGNATURE_DIGITS);
        fits.then(|| Self {
            key_id: key_id.to_owned(),
            signature: signature.to_owned(),
        })
    }

    /// `kept` and what `more` adds to it, each once, at most [`SIGNATURES_MAX`]: the oldest go first.
    pub fn merged(kept: &[Self], more: &[Self]) -> Vec<Self> {
        let mut merged = kept.to_vec();
        for signature in more {
            if !merged.contains(signature) {
                merged.push(signature.clone());
            }
        }
        let surplus = merged.len().saturating_sub(SIGNATURES_MAX);
        merged.drain(..surplus);
        merged
    }
}

/// A component and what it is signed with, to be judged for a scope at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    /// Whose slot it goes to.
    pub scope: &'a Scope,
    /// SHA-256 of the component, hexadecimal.
    pub sha256: &'a str,
    /// Its signatures; may be none.
    pub signatures: &'a [VersionSignature],
    /// When.
    pub at: Moment,
}

/// Knows which keys are trusted for which scope, and whether a signature is demanded there.
pub trait Signatures: Send + Sync {
    /// What there is to say; an error among it: the component may not be bound. The codes are `unsigned`,
    /// `bad-signature`, `unknown-key` and `expired-key`.
    fn judge(&self, signed: &Signed<'_>) -> Vec<Finding>;
}

/// Trusts no key and demands no signature.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSignatures;

impl Signatures for NoSignatures {
    fn judge(&self, _: &Signed<'_>) -> Vec<Finding> {
        Vec::new()
    }
}

/// The fake beside [`Signatures`]: demands a signature everywhere; one by a trusted key is good unless its text is all
/// zeros.
#[derive(Clone, Debug, Default)]
pub struct FakeSignatures {
    /// Key ids that are trusted.
    pub trusted: Vec<String>,
}

impl Signatures for FakeSignatures {
    fn judge(&self, signed: &Signed<'_>) -> Vec<Finding> {
        let finding = |code: &str| Finding {
            code: code.to_owned(),
            severity: Severity::Error,
            message: format!("{code}: {}", signed.sha256),
            help: "sign it".to_owned(),
        };
        let known = |s: &&VersionSignature| self.trusted.contains(&s.key_id);
        let forged = |s: &VersionSignature| s.signature.bytes().all(|b| b == b'0');
        let mut of_known = signed.signatures.iter().filter(known).peekable();
        match (signed.signatures.is_empty(), of_known.peek().is_none()) {
            (true, _) => vec![finding("unsigned")],
            (false, true) => vec![finding("unknown-key")],
            (false, false) if of_known.any(|s| !forged(s)) => Vec::new(),
            (false, false) => vec![finding("bad-signature")],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(key: char, signature: char) -> VersionSignature {
        VersionSignature {
            key_id: key.to_string().repeat(KEY_ID_DIGITS),
            signature: signature.to_string().repeat(SIGNATURE_DIGITS),
        }
    }

    #[test]
    fn a_text_reads_back_as_it_was_written_by_lines_and_by_commas() {
        let both = [signature('a', '1'), signature('b', '2')];
        let file = format!("# release 7\n\n{}\n{}\n", both[0], both[1]);
        assert_eq!(VersionSignature::read_all(&file).unwrap(), both);
        let header = format!("{}, {}", both[0], both[1]);
        assert_eq!(VersionSignature::read_all(&header).unwrap(), both);
    }

    #[test]
    fn a_text_that_is_cut_or_changed_is_no_signature() {
        let good = signature('a', '1').to_string();
        for bad in [
            good[..good.len() - 1].to_owned(),
            format!("{good}1"),
            format!("{good} 1"),
            good.replace("ed25519", "rsa"),
            good.replace("signature-1", "signature-2"),
            good.replace("aaaa", "AAAA"),
            good.replace('a', "g"),
        ] {
            let read = VersionSignature::read_all(&format!("# a remark\n{bad}"));
            assert_eq!(read, Err(BadSignatureText::Line { line: 2 }), "{bad}");
        }
        assert_eq!(
            VersionSignature::read_all("# only\n"),
            Err(BadSignatureText::Empty)
        );
        let many = format!("{good}\n").repeat(SIGNATURES_MAX + 1);
        assert_eq!(
            VersionSignature::read_all(&many),
            Err(BadSignatureText::TooMany(SIGNATURES_MAX + 1))
        );
        let long = "#".repeat(SIGNATURES_MAX_BYTES + 1);
        assert_eq!(
            VersionSignature::read_all(&long),
            Err(BadSignatureText::TooLong(SIGNATURES_MAX_BYTES + 1))
        );
    }

    #[test]
    fn merging_keeps_each_signature_once_and_drops_the_oldest() {
        let (a, b) = (signature('a', '1'), signature('b', '2'));
        let merged = VersionSignature::merged(std::slice::from_ref(&a), &[a.clone(), b.clone()]);
        assert_eq!(merged, [a.clone(), b]);
        let digits = "0123456789abcdef".chars();
        let all: Vec<_> = digits.map(|digit| signature('c', digit)).collect();
        let merged = VersionSignature::merged(&[a], &all);
        assert_eq!(merged, all, "sixteen are kept, the first goes");
    }
}
