//! A configuration as a tree of keys: the name of each place, what stands there, and how two of them differ.

use super::Config;
use super::secrets::{is_secret, mask};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Every key of a configuration that has a value, by place: `sites.paris.instances.p1.role`.
pub(super) type Leaves = BTreeMap<String, Value>;

/// A key that two configurations give different values.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Its place.
    pub key: String,
    /// What stood there; none: it was not there.
    pub from: Option<Value>,
    /// What stands there; none: it is not there.
    pub to: Option<Value>,
}

impl fmt::Display for Change {
    /// In one line; a secret is not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, from, to) = (&self.key, shown(self.from.as_ref()), shown(self.to.as_ref()));
        match (is_secret(key), from, to) {
            (true, Some(_), Some(_)) => write!(f, "{key}: changed (not shown)"),
            (true, None, _) => write!(f, "{key}: added (not shown)"),
            (true, _, None) => write!(f, "{key}: removed"),
            (false, Some(from), Some(to)) => write!(f, "{key}: {from} → {to}"),
            (false, None, Some(to)) => write!(f, "{key}: added, {to}"),
            (false, from, None) => write!(f, "{key}: removed, was {}", from.unwrap_or_default()),
        }
    }
}

/// A value as it may be shown.
fn shown(value: Option<&Value>) -> Option<Value> {
    let mut value = value?.clone();
    mask(&mut value);
    Some(value)
}

impl Config {
    /// All keys with their values, defaults among them. Secrets are in it.
    pub fn to_value(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        drop_nulls(&mut value);
        value
    }

    /// Every key that has a value, by place. Secrets are in it.
    pub(super) fn leaves(&self) -> Leaves {
        let mut leaves = Leaves::new();
        flatten(&self.to_value(), String::new(), &mut leaves);
        leaves
    }

    /// What is different in `other`, by place.
    pub fn changes_to(&self, other: &Self) -> Vec<Change> {
        let (before, after) = (self.leaves(), other.leaves());
        let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
        keys.sort();
        keys.dedup();
        let change = |key: &String| {
            let (from, to) = (before.get(key), after.get(key));
            // What comes or goes with nothing in it says nothing.
            let says = !(is_nothing(from) && is_nothing(to));
            (from != to && says).then(|| Change {
                key: key.clone(),
                from: from.cloned(),
                to: to.cloned(),
            })
        };
        keys.into_iter().filter_map(change).collect()
    }
}

/// Whether a key is as good as left out: there is none, or it says no, empty or nothing.
pub(super) fn is_nothing(value: Option<&Value>) -> bool {
    value.is_none_or(|value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(_) | Value::Bool(true) => false,
    })
}

/// A key without a value is as good as left out.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn flatten(value: &Value, place: String, leaves: &mut Leaves) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                flatten(value, under(&place, key), leaves);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for (position, value) in list.iter().enumerate() {
                flatten(value, under(&place, &element(value, position)), leaves);
            }
        }
        value => {
            leaves.insert(place, value.clone());
        }
    }
}

/// `key` within `place`.
pub(super) fn under(place: &str, key: &str) -> String {
    match place {
        "" => key.to_owned(),
        place => format!("{place}.{key}"),
    }
}

/// What an element of a list is called: its name, the ends of a link, or its position from 0.
pub(super) fn element(value: &Value, position: usize) -> String {
    let text = |key| value.get(key).and_then(Value::as_str);
    match (text("name"), text("from"), text("to")) {
        (Some(name), ..) => name.to_owned(),
        (None, Some(from), Some(to)) => format!("{from}-{to}"),
        _ => position.to_string(),
    }
}

/// Whether a place lies under a pattern, whose `*` stands for one name. A pattern covers what lies below it.
pub(super) fn matches(pattern: &str, place: &str) -> bool {
    // Names hold dots at times: a star takes as many segments as the rest of the pattern leaves.
    let pattern: Vec<&str> = pattern.split('.').collect();
    let place: Vec<&str> = place.split('.').collect();
    covers(&pattern, &place)
}

fn covers(pattern: &[&str], place: &[&str]) -> bool {
    match (pattern, place) {
        ([], _) => true,
        (_, []) => false,
        (["*", rest @ ..], place) => (1..=place.len()).any(|taken| covers(rest, &place[taken..])),
        ([first, rest @ ..], [segment, below @ ..]) => first == segment && covers(rest, below),
    }
}
