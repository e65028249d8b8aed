//! Looks for fields that occur twice in an object, at any depth. Readers of JSON differ in which of two values they take: one
//! could pass a check here and the other be used by an engine.

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::HashSet;
use std::fmt;

/// Any JSON in which no object has two fields of one name. Holds nothing of it.
pub(super) struct Unambiguous;

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Walk)
    }
}

struct Walk;

impl<'de> Visitor<'de> for Walk {
    type Value = Unambiguous;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Unambiguous, M::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            map.next_value::<Unambiguous>()?;
            if seen.contains(&name) {
                return Err(Error::custom(format_args!("the field {name:?} occurs twice")));
            }
            seen.insert(name);
        }
        Ok(Unambiguous)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<Unambiguous, S::Error> {
        while items.next_element::<Unambiguous>()?.is_some() {}
        Ok(Unambiguous)
    }

    fn visit_unit<E>(self) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_occurs_twice_is_found_at_any_depth_and_nothing_else_is() {
        for twice in [
            r#"{"a": 1, "a": 1}"#,
            r#"[{"a": {"b": [1, {"c": 0, "\u0063": 0}]}}]"#,
            r#"{"": null, "": null}"#,
        ] {
            let error = serde_json::from_str::<Unambiguous>(twice).err().unwrap();
            assert!(
                error.is_data() && error.to_string().contains("occurs twice"),
                "{twice}: {error}"
            );
        }
        for once in [
            r#"{"a": {"a": -1}, "b": {"a": 1.5e3}, "A": [true, null, "a"]}"#,
            r#"[{"a": 1}, {"a": 1}, 18446744073709551615]"#,
        ] {
            assert!(serde_json::from_str::<Unambiguous>(once).is_ok(), "{once}");
        }
        let too_large = serde_json::from_str::<Unambiguous>("[1e999]").err().unwrap();
        assert!(!too_large.is_data(), "left to whoever takes it: {too_large}");
    }
}
