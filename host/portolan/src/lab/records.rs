//! Path records from files: one record, JSON lines, or the body of `GET /v1/portolan/requests`.

use super::error::{LabError, RecordError};
use portolan_decide::PathRecord;
use serde_json::Value;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The records of all `paths`, in order; a folder stands for the `.json` and `.jsonl` files in it, by name. Of a
/// request that is recorded more than once, as in lists that overlap, the first record counts.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<PathRecord>, LabError> {
    let mut records = Vec::new();
    for path in paths {
        for file in files(path)? {
            let text = std::fs::read_to_string(&file).map_err(|source| LabError::Read {
                path: file.clone(),
                source,
            })?;
            let found = parse(&text).map_err(|detail| LabError::Parse {
                path: file.clone(),
                detail: detail.to_string(),
            })?;
            records.extend(found);
        }
    }
    let mut seen = HashSet::new();
    records.retain(|record: &PathRecord| seen.insert(record.request_id.clone()));
    Ok(records)
}

fn files(path: &Path) -> Result<Vec<PathBuf>, LabError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let read = |source| LabError::Read {
        path: path.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(read)? {
        let file = entry.map_err(read)?.path();
        if file
            .extension()
            .is_some_and(|end| end == "json" || end == "jsonl")
        {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// The records of a document; an error says in which line.
pub fn parse(text: &str) -> Result<Vec<PathRecord>, RecordError> {
    match serde_json::from_str::<Value>(text) {
        Ok(document) => of_document(document),
        Err(whole) => {
            let lines = text
                .lines()
                .enumerate()
                .filter(|(_, line)| !line.trim().is_empty());
            if lines.clone().count() < 2 {
                return Err(RecordError::Document(whole));
            }
            let record = |(i, line): (usize, &str)| {
                serde_json::from_str(line).map_err(|source| RecordError::Line { line: i + 1, source })
            };
            lines.map(record).collect()
        }
    }
}

/// The records of a list body, of an array, or the one record.
pub fn of_document(document: Value) -> Result<Vec<PathRecord>, RecordError> {
    let list = match document {
        Value::Array(list) => list,
        Value::Object(mut keys) if keys.contains_key("data") => match keys.remove("data") {
            Some(Value::Array(list)) => list,
            _ => return Err(RecordError::NoList),
        },
        one => vec![one],
    };
    let record = |(i, value): (usize, Value)| {
        let id = value["request_id"]
            .as_str()
            .unwrap_or("without request_id")
            .to_owned();
        serde_json::from_value(value).map_err(|source| RecordError::Entry {
            number: i + 1,
            id,
            source,
        })
    };
    list.into_iter().enumerate().map(record).collect()
}

/// Whether a document is a path record and no view written by hand.
pub fn is_record(document: &Value) -> bool {
    document.get("candidates").is_some() && document.get("request_id").is_some()
}

#[cfg(test)]
mod tests {
    use super::super::replay::tests::record;
    use super::*;

    #[test]
    fn every_shape_gives_the_same_records() {
        let records = vec![record("req-1", &[(1, 10)]), record("req-2", &[(2, 20)])];
        let texts: Vec<_> = records
            .iter()
            .map(|r| serde_json::to_string(r).unwrap())
            .collect();
        assert_eq!(parse(&texts[0]).unwrap(), records[..1]);
        assert_eq!(
            parse(&format!("{}\n\n{}\n", texts[0], texts[1])).unwrap(),
            records
        );
        assert_eq!(parse(&serde_json::to_string(&records).unwrap()).unwrap(), records);
        let list = serde_json::json!({"object": "list", "data": records});
        assert_eq!(parse(&list.to_string()).unwrap(), records);
    }

    #[test]
    fn a_request_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, ids: &[&str]| {
            let lines = ids
                .iter()
                .map(|id| serde_json::to_string(&record(id, &[(1, 10)])).unwrap());
            std::fs::write(dir.path().join(name), lines.collect::<Vec<_>>().join("\n")).unwrap();
        };
        write("a.jsonl", &["req-1", "req-2"]);
        write("b.json", &["req-2", "req-3"]);
        write("c.txt", &["req-4", "req-5"]);
        let found = read_all(&[dir.path().to_owned()]).unwrap();
        let ids: Vec<_> = found.iter().map(|record| record.request_id.as_str()).collect();
        assert_eq!(ids, ["req-1", "req-2", "req-3"]);
    }

    #[test]
    fn errors_say_where() {
        let good = serde_json::to_string(&record("req-1", &[(1, 10)])).unwrap();
        let error = parse(&format!("{good}\n{{\"request_id\": 1}}\n"))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("line 2:"), "{error}");
        let error = parse(&format!("[{good}, {{\"request_id\": \"req-2\"}}]"))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("record 2 (req-2): missing field"), "{error}");
        assert!(parse("{").is_err());
    }
}
