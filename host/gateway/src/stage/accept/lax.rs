//! Numbers and flags as engines read them that take them for what they look like: `"n": "8"`, `8.0`, `"1_0"`, and texts whose
//! characters are written as escapes (pydantic's lax mode, which vLLM's and SGLang's servers have).

/// A number, if it is any.
pub(super) fn number(raw: &str) -> Option<f64> {
    let text = unquoted(raw)?;
    match text.trim() {
        "true" => Some(1.0),
        "false" => Some(0.0),
        text => text.replace('_', "").parse().ok(),
    }
}

/// A flag; not set where it is none.
pub(super) fn flag(raw: &str) -> bool {
    let word = unquoted(raw).unwrap_or_default().trim().to_ascii_lowercase();
    matches!(word.as_str(), "true" | "t" | "yes" | "y" | "on") || number(&word) == Some(1.0)
}

/// What a JSON text says, or a number's or a word's own characters.
fn unquoted(raw: &str) -> Option<String> {
    match raw.starts_with('"') {
        true => serde_json::from_str(raw).ok(),
        false => Some(raw.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_number_is_one() {
        for (raw, expected) in [
            ("65", 65.0),
            ("300.0", 300.0),
            (r#""65""#, 65.0),
            (r#"" +65 ""#, 65.0),
            (r#""1_28""#, 128.0),
            (r#""\u0031\u0032\u0038""#, 128.0),
            ("true", 1.0),
        ] {
            assert_eq!(number(raw), Some(expected), "{raw}");
        }
        for raw in ["null", "{}", "[1]", r#""many""#, r#""""#] {
            assert_eq!(number(raw), None, "{raw}");
        }
    }

    #[test]
    fn what_looks_like_a_yes_is_one() {
        for raw in ["true", "1", "1.0", r#""true""#, r#""\u0054rue""#, r#""ON""#] {
            assert!(flag(raw), "{raw}");
        }
        for raw in ["false", "0", "null", r#""no""#, "[true]", "2"] {
            assert!(!flag(raw), "{raw}");
        }
    }
}
