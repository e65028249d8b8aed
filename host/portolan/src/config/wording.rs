//! Says what is wrong with a document in words of its own and without a line of it: lines hold keys, and what is said goes
//! into logs and to other sites.

use super::common::key_of;
use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};

/// Line, column, the keys that the value there belongs to, as far as they are seen, and what is wrong.
pub(super) fn said_of(text: &str, error: &Error) -> String {
    let wrong = what(error.without_snippet());
    let Some(at) = error.location() else {
        return wrong;
    };
    let (line, column) = (at.line(), at.column());
    let place = format!("line {line}, column {column}");
    let above = || text.lines().take(usize::try_from(line).unwrap_or(usize::MAX));
    // What begins a line is in no key.
    let Some(top) = above().filter_map(key_of).last().filter(|_| column > 1) else {
        return format!("{place}: {wrong}");
    };
    let column = usize::try_from(column).unwrap_or(usize::MAX);
    match above().last().and_then(|line| key_before(line, column)) {
        Some(key) if key != top => format!("{place}: `{top}`, `{key}`: {wrong}"),
        _ => format!("{place}: `{top}`: {wrong}"),
    }
}

/// The key before a column of a line.
fn key_before(line: &str, column: usize) -> Option<String> {
    let before: String = line.chars().take(column.saturating_sub(1)).collect();
    let (head, _) = before.rsplit_once(": ")?;
    let is_of_key = |c: char| c.is_ascii_lowercase() || c == '_';
    let key = head.rsplit(|c| !is_of_key(c)).next()?;
    (!key.is_empty()).then(|| key.to_owned())
}

fn what(error: &Error) -> String {
    match error {
        Error::Unexpected { expected, .. } if expected.starts_with("sequence") => {
            "a list is expected here, such as [a, b]".to_owned()
        }
        Error::Unexpected { expected, .. } if expected.starts_with("mapping") => {
            "keys with values are expected here, such as {a: b}".to_owned()
        }
        Error::Unexpected { expected, .. } if expected.contains("string") => {
            "a text is expected here".to_owned()
        }
        Error::InvalidScalar { ty, .. } => number(ty),
        // The value itself may be a secret.
        Error::SerdeInvalidType { expected, .. } | Error::SerdeInvalidValue { expected, .. } => {
            format!("{expected} is expected here")
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("the key `{key}` stands there twice"),
        Error::MultipleDocuments { .. } => "a second document begins here; one is expected".to_owned(),
        Error::Eof { .. } => "the document ends here, and more is expected".to_owned(),
        other => {
            let said = UserMessageFormatter.format_message(other).into_owned();
            match said.strip_prefix("missing field ") {
                Some(key) => format!("the key {key} is missing"),
                None if said.contains("untagged enum OperatorKey") => {
                    "a key as text is expected here, or {name: NAME, key: KEY}".to_owned()
                }
                None if said.contains("untagged enum SigningKey") => {
                    "a key as text is expected here, or {key: KEY, not_after: DAY}".to_owned()
                }
                None => said,
            }
        }
    }
}

/// What a number may be, of a type of Rust's.
fn number(of: &str) -> String {
    let most = match of {
        "u8" => u64::from(u8::MAX),
        "u16" => u64::from(u16::MAX),
        "u32" => u64::from(u32::MAX),
        "u64" | "usize" => u64::MAX,
        _ => return format!("a number is expected here ({of})"),
    };
    format!("a whole number from 0 to {most} is expected here")
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    const GOOD: &str = "data_dir: data\nmodels: []\noperator_keys: [key-op]\n\
                        sites: [{name: paris, jurisdiction: eu, listen: '127.0.0.1:1', instances: []}]\n\
                        tenants: [{name: acme, keys: [key-acme]}]\n";

    #[test]
    fn what_is_wrong_is_said_with_its_place_and_without_the_keys_around_it() {
        for (from, to, expected) in [
            (
                "[key-acme]",
                "key-acme",
                "line 5, column 30: `tenants`, `keys`: a list is expected here",
            ),
            (
                "tenants: [",
                "timeouts: {factor: -5}\ntenants: [",
                "line 5, column 20: `timeouts`, `factor`: a whole number from 0 to 4294967295 is expected here",
            ),
            (
                "tenants",
                "operator_keys",
                "column 1: the key `operator_keys` stands there twice",
            ),
            (
                "[key-op]",
                "[{key: key-op}]",
                "column 17: `operator_keys`: a key as text is expected here, or {name",
            ),
            (
                "acme, keys",
                "[acme], keys",
                "`tenants`, `name`: a text is expected here",
            ),
            ("tenants: [", "---\ntenants: [", "a second document begins here"),
            ("models: []\n", "", "column 1: the key `models` is missing"),
            ("'127.0.0.1:1'", "key-secret", "`sites`, `listen`: "),
            ("name: acme", "name: _acme", "the name begins with '_'"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = Config::parse(&GOOD.replacen(from, to, 1))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{to}: {error}");
            assert!(!error.contains("key-"), "{to}: {error}");
        }
    }
}
