//! Keys that the file has and Portolan does not: named with their place and what was probably meant.

use super::schema::{inline_schema, items, objects, of_any_name, properties};
use super::tree::{element, under};
use serde_json::Value;
use std::fmt;

/// A key that there is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnknownKey {
    /// Where it stands.
    pub(super) place: String,
    /// Its name.
    pub(super) key: String,
    meant: Meant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Meant {
    /// A key of the same object.
    Similar(String),
    /// The same key elsewhere, by place.
    Elsewhere(String),
    /// One of these.
    AnyOf(Vec<String>),
}

/// Names more alike than this are taken for a slip: a letter too much, too few, swapped, or `-` for `_`.
const ALIKE: f64 = 0.72;

impl fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: there is no such key; ", self.place)?;
        match &self.meant {
            Meant::Similar(key) => write!(f, "did you mean `{key}`?"),
            Meant::Elsewhere(place) => write!(f, "it belongs at `{place}`"),
            Meant::AnyOf(keys) => write!(f, "known here are: {}", keys.join(", ")),
        }
    }
}

/// Every unknown key of a document.
pub(super) fn unknown_keys(document: &Value) -> Vec<UnknownKey> {
    let schema = inline_schema();
    let mut found = Vec::new();
    walk(document, &schema, "", &mut found);
    for unknown in &mut found {
        if matches!(unknown.meant, Meant::AnyOf(_))
            && let Some(place) = elsewhere(&unknown.key, &schema, "")
        {
            unknown.meant = Meant::Elsewhere(place);
        }
    }
    found
}

fn walk(value: &Value, schema: &Value, place: &str, found: &mut Vec<UnknownKey>) {
    match value {
        Value::Object(map) => {
            let forms = objects(schema);
            if forms.is_empty() {
                return;
            }
            for (key, value) in map {
                let known = forms.iter().find_map(|form| {
                    let mut keys = properties(form);
                    keys.find(|(name, _)| *name == key).map(|(_, schema)| schema)
                });
                let place = under(place, key);
                match known.or_else(|| forms.iter().find_map(|form| of_any_name(form))) {
                    Some(schema) => walk(value, schema, &place, found),
                    None => {
                        let keys = forms
                            .iter()
                            .flat_map(|form| properties(form).map(|(name, _)| name));
                        let meant = meant(key, keys);
                        found.push(UnknownKey {
                            place,
                            key: key.clone(),
                            meant,
                        });
                    }
                }
            }
        }
        Value::Array(list) => {
            let Some(schema) = items(schema) else { return };
            for (position, value) in list.iter().enumerate() {
                walk(value, schema, &under(place, &element(value, position)), found);
            }
        }
        _ => {}
    }
}

fn meant<'k>(key: &str, known: impl Iterator<Item = &'k String>) -> Meant {
    let plain = key.replace('-', "_").to_lowercase();
    let mut known: Vec<&String> = known.collect();
    known.sort();
    known.dedup();
    let likeness = |name: &String| strsim::normalized_damerau_levenshtein(&plain, name);
    let best = known.iter().map(|name| (likeness(name), *name));
    let best = best.max_by(|a, b| a.0.total_cmp(&b.0));
    match best {
        Some((alike, name)) if alike >= ALIKE => Meant::Similar(name.clone()),
        _ => Meant::AnyOf(known.into_iter().cloned().collect()),
    }
}

/// The one place, as a pattern, at which there is a key of this name.
fn elsewhere(key: &str, schema: &Value, place: &str) -> Option<String> {
    let mut places = Vec::new();
    places_of(key, schema, place, &mut places);
    match &places[..] {
        [place] => Some(place.clone()),
        _ => None,
    }
}

fn places_of(key: &str, schema: &Value, place: &str, places: &mut Vec<String>) {
    for form in objects(schema) {
        for (name, schema) in properties(form) {
            let here = under(place, name);
            if name == key {
                places.push(here.clone());
            }
            places_of(key, schema, &here, places);
        }
    }
    if let Some(items) = items(schema) {
        places_of(key, items, &format!("{place}[]"), places);
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn refused(text: &str) -> String {
        Config::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place_and_what_was_meant() {
        let file = |instance: &str, top: &str| {
            format!(
                "data_dir: data\noperator_keys: [op]\nmodels: [{{name: m, path: m.gguf}}]\n{top}\nsites:\n  \
                 - name: paris\n    jurisdiction: eu\n    listen: 127.0.0.1:0\n    instances:\n      \
                 - {{name: p1, model: m, {instance}}}\n"
            )
        };
        for (instance, top, expected) in [
            (
                "decode_slot: 4",
                "",
                "sites.paris.instances.p1.decode_slot: there is no such key; did you mean `decode_slots`?",
            ),
            ("decode-slots: 4", "", "did you mean `decode_slots`?"),
            (
                "role: both",
                "polices: {}",
                "polices: there is no such key; did you mean `policies`?",
            ),
            (
                "role: both",
                "kv: {replicate: {ask: 3}}",
                "kv.replicate.ask: there is no such key; did you mean `asks`?",
            ),
            ("host_mib: 3", "", "it belongs at `sites[].kv_tiers.host_mib`"),
            ("colour: red", "", "known here are: "),
        ] {
            let said = refused(&file(instance, top));
            assert!(said.contains(expected), "{said}");
        }
        let line = refused(&file("role: both", "polices: {}"));
        assert!(line.contains("line 4"), "{line}");
    }

    #[test]
    fn every_unknown_key_is_named_at_once() {
        let said = refused("{data_dir: d, operator_key: [x], site: [], models: []}");
        assert!(
            said.contains("`operator_keys`?") && said.contains("`sites`?"),
            "{said}"
        );
    }
}
