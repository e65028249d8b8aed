//! What all sites of a fleet have in common of their configuration: top-level keys of the file, each with its text.
//!
//! Sites may have files of their own, with comments and keys that differ. What is told of a change is the text of the keys
//! that are common; it takes the place of the same keys in another file, and the rest of that file stays as it is.

use super::Config;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Top-level keys that all sites have in common, as far as they can change while a host runs.
pub const COMMON: [&str; 7] = [
    "changing",
    "exact_kv_classes",
    "operator_keys",
    "retries",
    "routing",
    "tenants",
    "timeouts",
];

/// The common keys of a file, each with its lines.
fn common_of(text: &str) -> BTreeMap<String, String> {
    let pieces = pieces(text).into_iter();
    pieces
        .filter_map(|(key, lines)| Some((key?.to_owned(), lines.to_owned())))
        .filter(|(key, _)| COMMON.contains(&key.as_str()))
        .collect()
}

/// As [`common_of`], of a file whose common keys another file can take over.
///
/// # Errors
/// Names the key whose lines do not say by themselves what the file says: it begins no line, as in a file of one
/// `{…}`, or an anchor of YAML reaches into it.
pub fn tellable_common_of(text: &str) -> Result<BTreeMap<String, String>, String> {
    let whole = serde_saphyr::from_str::<Value>(text).unwrap_or_default();
    let common = common_of(text);
    for key in COMMON {
        let alone = common
            .get(key)
            .map(|lines| serde_saphyr::from_str::<Value>(lines));
        let alone = alone.and_then(Result::ok);
        if alone.as_ref().and_then(|alone| alone.get(key)) != whole.get(key) {
            return Err(exchanged(key));
        }
    }
    Ok(common)
}

/// A file with the common keys of another: each in its own place, those that it lacked behind its last key.
///
/// # Errors
/// Names a common key that begins no line of the file, so that nothing can take its place.
pub fn with_common(text: &str, common: &BTreeMap<String, String>) -> Result<String, String> {
    let (whole, ours) = (
        serde_saphyr::from_str::<Value>(text).unwrap_or_default(),
        common_of(text),
    );
    let hidden = |key: &&str| whole.get(*key).is_some() && !ours.contains_key(*key);
    if let Some(key) = COMMON.iter().find(|key| hidden(key)) {
        return Err(exchanged(key));
    }
    let mut made = String::with_capacity(text.len());
    let (mut put, mut end) = (Vec::new(), 0);
    for (key, lines) in pieces(text) {
        let ours = key.filter(|key| COMMON.contains(key));
        append(
            &mut made,
            match ours {
                None => lines,
                Some(key) => common.get(key).map_or("", String::as_str),
            },
        );
        put.extend(ours);
        if key.is_some() {
            end = made.len();
        }
    }
    let behind = made.split_off(end);
    for (key, lines) in common {
        if COMMON.contains(&key.as_str()) && !put.contains(&key.as_str()) {
            append(&mut made, lines);
        }
    }
    append(&mut made, &behind);
    Ok(made)
}

fn exchanged(key: &str) -> String {
    format!(
        "{key}: its lines are the same at every site of the fleet and are exchanged as they stand: begin a line with \
         `{key}:`, and let no anchor of YAML reach into it"
    )
}

/// Adds whole lines: the last line of a file may lack its end.
fn append(made: &mut String, lines: &str) {
    if !lines.is_empty() && !made.is_empty() && !made.ends_with('\n') {
        made.push('\n');
    }
    made.push_str(lines);
}

impl Config {
    /// A digest of what this says of the common keys, defaults among them.
    pub(crate) fn common_digest(&self) -> String {
        let is_common = |place: &str| {
            let key = place.split('.').next().unwrap_or(place);
            COMMON.contains(&key)
        };
        let mut hasher = Sha256::new();
        for (place, value) in self.leaves().iter().filter(|(place, _)| is_common(place)) {
            let value = value.to_string();
            for part in [place.as_bytes(), value.as_bytes()] {
                hasher.update((part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
        }
        hex::encode(hasher.finalize())
    }
}

/// A text in pieces that make it up again: the lines of each top-level key, and what lies between them. Comments and empty
/// lines after a key's last line belong to what follows.
fn pieces(text: &str) -> Vec<(Option<&str>, &str)> {
    let mut pieces = Vec::new();
    // Where the piece begins, whose it is, and where the last line ended that is surely its own.
    let (mut from, mut key, mut own) = (0, None, 0);
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let next = key_of(line);
        if next.is_some() || ends_document(line) {
            let end = if key.is_some() { own } else { at };
            pieces.push((key, &text[from..end]));
            pieces.push((None, &text[end..at]));
            (from, key) = (at, next);
        }
        at += line.len();
        let says = line.trim();
        if next.is_some() || !(says.is_empty() || line.starts_with('#')) {
            own = at;
        }
    }
    let end = if key.is_some() { own } else { at };
    pieces.push((key, &text[from..end]));
    pieces.push((None, &text[end..]));
    pieces.retain(|(key, lines)| key.is_some() || !lines.is_empty());
    pieces
}

/// The top-level key that a line begins, quoted or not.
pub(super) fn key_of(line: &str) -> Option<&str> {
    let (key, rest) = line.split_once(':')?;
    let key = key.trim_end();
    let quoted = |mark| key.strip_prefix(mark)?.strip_suffix(mark);
    let key = quoted('"').or_else(|| quoted('\'')).unwrap_or(key);
    let is_name = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let ends = rest.is_empty() || rest.starts_with([' ', '\t', '\n', '\r']);
    (is_name && ends).then_some(key)
}

/// Whether a line says that no key of the document follows.
fn ends_document(line: &str) -> bool {
    line.trim_end() == "..."
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const OURS: &str = "# Paris\ndata_dir: data\noperator_keys: [k]\nmodels: []\n\n# Who may ask.\ntenants:\n- {name: acme, keys: [key-acme]}\n\n\
                        # Where.\nsites: [{name: paris, jurisdiction: eu, listen: '127.0.0.1:1', instances: []}]\n\
                        timeouts: {factor: 5}";

    fn owned((key, lines): (&String, &String)) -> (String, String) {
        (key.clone(), lines.clone())
    }

    #[test]
    fn the_pieces_of_a_text_make_it_up_again() {
        for text in [
            OURS,
            "",
            "\n",
            "# nothing\n",
            "a: 1",
            "a:\n  b: 2\n\n",
            "---\n\na: 1\n# end",
        ] {
            let again: String = pieces(text).iter().map(|(_, lines)| *lines).collect();
            assert_eq!(again, text);
        }
        let common = common_of(OURS);
        assert_eq!(
            common.keys().collect::<Vec<_>>(),
            ["operator_keys", "tenants", "timeouts"]
        );
        assert_eq!(common["tenants"], "tenants:\n- {name: acme, keys: [key-acme]}\n");
        assert_eq!(common["timeouts"], "timeouts: {factor: 5}");
        assert_eq!(
            with_common(OURS, &common).unwrap(),
            OURS,
            "the same changes nothing"
        );
        let first = "timeouts: {factor: 9}\nmodels: []\n";
        assert_eq!(
            with_common(
                first,
                &[common.get_key_value("timeouts").unwrap()].map(owned).into()
            )
            .unwrap(),
            "timeouts: {factor: 5}\nmodels: []\n",
            "what was a file's last line is not another's half"
        );
    }

    #[test]
    fn what_is_common_takes_its_place_and_the_rest_of_the_file_stays() {
        let theirs = "operator_keys: [{name: alice, key: k}]\nsites: []\nchanging: {keep_versions: 7}\ntenants: # all of them\n  - {name: globex, keys: [g]}\n";
        let made = with_common(OURS, &common_of(theirs)).unwrap();
        assert_eq!(
            made,
            "# Paris\ndata_dir: data\noperator_keys: [{name: alice, key: k}]\nmodels: []\n\n# Who may ask.\ntenants: # all of them\n  - {name: globex, keys: [g]}\n\n\
             # Where.\nsites: [{name: paris, jurisdiction: eu, listen: '127.0.0.1:1', instances: []}]\n\
             changing: {keep_versions: 7}\n"
        );
        let read = |text: &str| Config::of_file(Path::new("portolan.yaml"), text.to_owned()).unwrap();
        let (ours, made) = (read(OURS), read(&made));
        assert_eq!(made.sites[0].name.as_str(), "paris");
        assert_ne!(ours.common_digest(), made.common_digest());
        // Other words for the same, in a file that differs in what is not common.
        let same = "data_dir: elsewhere\nmodels: []\nchanging:\n  keep_versions: 7\noperator_keys:\n- name: alice\n  key: k\ntenants:\n- name: globex\n  keys: ['g']\n\
                    sites: [{name: tokyo, jurisdiction: jp, listen: '127.0.0.1:2', instances: []}]\n";
        assert_eq!(read(same).common_digest(), made.common_digest());
    }

    #[test]
    fn keys_are_found_however_they_are_written() {
        let theirs = common_of("tenants: [{name: globex, keys: [g]}]\nretries: {percent: 5}\n");
        let made = with_common(
            "---\n\"tenants\":\n- name: acme\n# end\n'timeouts': {}\nmodels : []\n# last\n...\n",
            &theirs,
        )
        .unwrap();
        assert_eq!(
            made,
            "---\ntenants: [{name: globex, keys: [g]}]\n# end\nmodels : []\nretries: {percent: 5}\n# last\n...\n"
        );
        for text in [
            OURS,
            "\"retries\": {percent: 5}\r\n...\r\n",
            "operator_keys: &k [a]\n",
        ] {
            assert_eq!(tellable_common_of(text), Ok(common_of(text)), "{text}");
        }
    }

    #[test]
    fn what_lines_alone_do_not_say_is_not_told() {
        for (text, key) in [
            ("{data_dir: data, tenants: [{name: acme, keys: [k]}]}", "tenants"),
            (
                "user_classes: &all [gold]\nexact_kv_classes: *all\n",
                "exact_kv_classes",
            ),
            ("? retries\n: {percent: 5}\n", "retries"),
        ] {
            let said = tellable_common_of(text).unwrap_err();
            assert!(said.starts_with(&format!("{key}: ")), "{said}");
            // An anchor is no matter where the key's own lines go.
            assert_eq!(
                with_common(text, &BTreeMap::new()).is_ok(),
                text.contains('&'),
                "{text}"
            );
        }
    }
}
