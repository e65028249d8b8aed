//! The tables of `docs/configuration.md`, made from the schema: one for each list of objects and each object at the top.

use super::changing::{Takes, takes};
use super::schema::{inline_schema, items, objects, of_any_name, properties};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What stands before and after a table in the page.
const BEGIN: &str = "<!-- keys: ";
/// An object with more keys than this has a table of its own wherever it stands, under its bare name.
const LONG: usize = 8;

const END: &str = "<!-- end of keys -->";

/// The tables by title: the empty one is the top level's, others are `sites[].instances[]` and the like.
pub fn tables() -> BTreeMap<String, String> {
    let mut tables = BTreeMap::new();
    if let [top] = &objects(&inline_schema())[..] {
        table(top, "", &mut tables);
    }
    tables
}

/// The page with its tables made anew. A table begins with a line `<!-- keys: TITLE -->`.
///
/// # Errors
/// The titles of tables that the page lacks, and of those that it has and there are not.
pub fn fill(page: &str) -> Result<String, Vec<String>> {
    let mut tables = tables();
    let mut wrong = Vec::new();
    let mut filled = String::new();
    let mut within = false;
    for line in page.lines() {
        if let Some(title) = line.strip_prefix(BEGIN) {
            let title = title.trim_end_matches("-->").trim();
            within = true;
            match tables.remove(title.trim_matches('"')) {
                Some(table) => _ = write!(filled, "{line}\n{table}"),
                None => wrong.push(title.to_owned()),
            }
        } else if line == END {
            within = false;
        }
        if !within {
            _ = writeln!(filled, "{line}");
        }
    }
    wrong.extend(tables.into_keys());
    if wrong.is_empty() { Ok(filled) } else { Err(wrong) }
}

fn table(object: &Map<String, Value>, title: &str, tables: &mut BTreeMap<String, String>) {
    let mut rows = String::from("| key | type | default | live | meaning |\n|---|---|---|---|---|\n");
    rows_of(object, title, "", &mut rows, tables);
    tables.insert(title.to_owned(), rows);
}

/// The rows of an object. A list of objects has a table of its own; so has an object at the top level.
fn rows_of(
    object: &Map<String, Value>,
    title: &str,
    prefix: &str,
    rows: &mut String,
    tables: &mut BTreeMap<String, String>,
) {
    let required = object.get("required").and_then(Value::as_array);
    let is_required = |key: &String| required.is_some_and(|keys| keys.iter().any(|k| k == key));
    for (key, schema) in properties(object) {
        let place = match title {
            "" => key.clone(),
            title => format!("{title}.{prefix}{key}"),
        };
        let default = match (is_required(key), schema.get("default")) {
            (true, _) => "required".to_owned(),
            (false, None | Some(Value::Null)) => "none".to_owned(),
            (false, Some(Value::Object(_))) => "as below".to_owned(),
            (false, Some(Value::Array(list))) if list.is_empty() => "none".to_owned(),
            (false, Some(Value::String(text))) if text.is_empty() => "empty".to_owned(),
            (false, Some(Value::String(text))) => format!("`{text}`"),
            (false, Some(value)) => format!("`{value}`"),
        };
        let pattern = place.replace("[]", ".x");
        let live = if takes(&pattern) == Takes::Effect {
            "yes"
        } else {
            ""
        };
        _ = writeln!(
            rows,
            "| `{prefix}{key}` | {} | {default} | {live} | {} |",
            kind(schema),
            meaning(schema)
        );
        below(schema, (title, prefix, key), rows, tables);
    }
}

fn below(
    schema: &Value,
    (title, prefix, key): (&str, &str, &str),
    rows: &mut String,
    tables: &mut BTreeMap<String, String>,
) {
    let place = match title {
        "" => key.to_owned(),
        title => format!("{title}.{prefix}{key}"),
    };
    if let Some(items) = items(schema) {
        // Elements that may be plain too are explained in a sentence.
        if items.get("properties").is_some()
            && let [object] = &objects(items)[..]
        {
            table(object, &format!("{place}[]"), tables);
        }
        return;
    }
    let [object] = &objects(schema)[..] else { return };
    if let Some(named) = of_any_name(object) {
        if let [object] = &objects(named)[..] {
            table(object, &format!("{place}.NAME"), tables);
        }
    } else if title.is_empty() {
        table(object, &place, tables);
    } else if properties(object).count() > LONG {
        table(object, key, tables);
    } else {
        rows_of(object, title, &format!("{prefix}{key}."), rows, tables);
    }
}

/// The type in words.
fn kind(schema: &Value) -> String {
    let named = |schema: &Value| -> Option<String> {
        if let Some(words) = words(schema) {
            return Some(words.join(", "));
        }
        let kind = match schema.get("type")? {
            Value::String(kind) => kind.as_str(),
            Value::Array(kinds) => kinds
                .iter()
                .filter_map(Value::as_str)
                .find(|kind| *kind != "null")?,
            _ => return None,
        };
        Some(match (kind, schema.get("format").and_then(Value::as_str)) {
            ("string", Some(format)) => format.to_owned(),
            ("string", None) => "text".to_owned(),
            ("array", _) => match items(schema).map(kind_of_element) {
                Some(element) => format!("list of {element}"),
                None => "list".to_owned(),
            },
            (kind, _) => kind.to_owned(),
        })
    };
    if let Some(kind) = named(schema) {
        return kind;
    }
    let forms = ["anyOf", "oneOf"]
        .into_iter()
        .filter_map(|key| schema.get(key)?.as_array());
    let mut kinds: Vec<String> = forms
        .flatten()
        .filter_map(named)
        .filter(|kind| kind != "null")
        .collect();
    kinds.dedup();
    kinds.join(" or ")
}

fn kind_of_element(items: &Value) -> String {
    match kind(items).as_str() {
        "text" => "texts".to_owned(),
        "object" => "objects".to_owned(),
        kind => kind.to_owned(),
    }
}

/// The words that a key may take.
fn words(schema: &Value) -> Option<Vec<String>> {
    let quoted = |value: &Value| value.as_str().map(|word| format!("`{word}`"));
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        return words.iter().map(quoted).collect();
    }
    let forms = schema.get("oneOf").and_then(Value::as_array)?;
    let mut words = Vec::new();
    for form in forms {
        match (form.get("const"), form.get("enum").and_then(Value::as_array)) {
            (Some(word), _) => words.push(quoted(word)?),
            (None, Some(more)) => words.extend(more.iter().map(quoted).collect::<Option<Vec<_>>>()?),
            (None, None) => return None,
        }
    }
    Some(words)
}

/// What the code says of a key, without its full stop.
fn meaning(schema: &Value) -> String {
    let said = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    said.trim_end_matches('.').replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_pages_tables_are_those_of_the_code() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let filled = fill(&page).unwrap_or_else(|titles| panic!("tables that do not fit: {titles:?}"));
        let command =
            "portolan config schema --fill docs/configuration.md` or this test with `PORTOLAN_FILL_DOCS=1";
        if std::env::var_os("PORTOLAN_FILL_DOCS").is_some() {
            std::fs::write(&path, &filled).unwrap();
            return;
        }
        for (stands, made) in page.lines().zip(filled.lines()) {
            assert_eq!(stands, made, "run `{command}`");
        }
        assert_eq!(page.lines().count(), filled.lines().count(), "run `{command}`");
    }

    #[test]
    fn every_key_says_what_it_is() {
        for (title, table) in tables() {
            for row in table.lines().skip(2) {
                let cells: Vec<&str> = row.split(" | ").collect();
                assert!(
                    cells
                        .iter()
                        .all(|cell| !cell.trim_matches(['|', ' ']).is_empty() || *cell == cells[3]),
                    "{title}: {row}"
                );
            }
        }
    }
}
