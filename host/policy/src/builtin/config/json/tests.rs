//! Round trips, and texts that must be refused.

use super::*;
use proptest::prelude::*;
use serde_json::Value;

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(crate::builtin::tests::seeded(500))]

    #[test]
    fn what_is_written_is_read_back(value in value(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        prop_assert_eq!(read::<Value>(&text.unwrap()), Ok(value));
    }

    #[test]
    fn what_is_accepted_means_the_same_to_others(text in r#"[\[\]{}":,0-9a-z\\ truefalsn.-]{0,24}"#) {
        if let Ok(value) = read::<Value>(&text) {
            prop_assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}

#[test]
fn escapes_are_decoded_and_broken_ones_refused() {
    for text in [r#""\ud83d\ude00\u00e9\n\"\/""#, r#""aéb""#, r#""\u0000""#] {
        assert_eq!(
            read::<String>(text).unwrap(),
            serde_json::from_str::<String>(text).unwrap()
        );
    }
    for text in [
        r#""\ud83d""#,
        r#""\ud83dx""#,
        r#""\ude00""#,
        r#""\u+123""#,
        r#""\x""#,
        r#""\"#,
        "\"\n\"",
        r#""\u12é""#,
    ] {
        assert!(read::<String>(text).is_err(), "{text}");
    }
}

#[test]
fn errors_say_where() {
    for (text, expected) in [
        (
            "{\n  \"a\": 1.5}",
            "whole number from 0 to 2^64 - 1, without leading zeros at line 2, column 8",
        ),
        ("[1, -2]", "line 1, column 5"),
        ("[01]", "without leading zeros"),
        ("[1,]", "line 1, column 4"),
        ("[1] 2", "end of the text at line 1, column 5"),
        ("{1: 2}", "key in quotes"),
        ("", "ends too early"),
        (&"[".repeat(100_000), "more than 32"),
    ] {
        let error = read::<Value>(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
