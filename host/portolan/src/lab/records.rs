//! Path records from files, one at a time, however long the files are: one record, JSON lines, a JSON array, or the
//! body of `GET /v1/portolan/requests`.

use super::error::{LabError, RecordError};
use portolan_decide::PathRecord;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Longest line or single record that is read: a hundred times a record of 64 candidates.
const RECORD_MAX_BYTES: u64 = 8 << 20;

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Records, those met again included.
    pub records: usize,
    /// Records of requests that had been met before, as in lists that overlap: the first counts.
    pub repeated: usize,
    /// Files whose last line is cut off, as of a writer that was stopped; that line is left out.
    pub cut_off: Vec<PathBuf>,
}

/// Hands each record of all `paths` to `each`, in order. A folder stands for the `.json` and `.jsonl` files in it, by
/// name; `-` for standard input.
pub fn each_of(paths: &[PathBuf], each: &mut dyn FnMut(PathRecord)) -> Result<Reading, LabError> {
    let mut reading = Reading::default();
    let (keys, mut seen) = (RandomState::new(), HashSet::new());
    for file in files_of(paths)? {
        let mut once = |record: PathRecord| {
            reading.records += 1;
            // Two tenants may choose the same id; 64 bits of a keyed hash tell them apart.
            let key = keys.hash_one((record.tenant.as_str(), &record.request_id, record.accepted_ms));
            if seen.insert(key) {
                each(record);
            } else {
                reading.repeated += 1;
            }
        };
        let done = open(&file).and_then(|input| {
            parse(input, &mut once).map_err(|detail| LabError::Parse {
                path: file.clone(),
                detail: detail.to_string(),
            })
        });
        if done? == Ending::CutOff {
            reading.cut_off.push(file);
        }
    }
    Ok(reading)
}

/// Every file behind the paths.
fn files_of(paths: &[PathBuf]) -> Result<Vec<PathBuf>, LabError> {
    let mut all = Vec::new();
    for path in paths {
        if !path.is_dir() {
            all.push(path.clone());
            continue;
        }
        let read = |source| LabError::Read {
            path: path.clone(),
            source,
        };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path).map_err(read)? {
            let file = entry.map_err(read)?.path();
            if file
                .extension()
                .is_some_and(|end| end == "json" || end == "jsonl")
                && file.is_file()
            {
                files.push(file);
            }
        }
        if files.is_empty() {
            return Err(LabError::Parse {
                path: path.clone(),
                detail: "the folder holds no .json or .jsonl file".to_owned(),
            });
        }
        files.sort();
        all.extend(files);
    }
    Ok(all)
}

fn open(path: &Path) -> Result<Box<dyn BufRead>, LabError> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(std::io::stdin())));
    }
    let file = File::open(path).map_err(|source| LabError::Read {
        path: path.to_owned(),
        source,
    })?;
    Ok(Box::new(BufReader::new(file)))
}

/// How a document ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As it should.
    Whole,
    /// In the middle of its last line.
    CutOff,
}

/// Hands each record of a document to `each`; an error says in which line or entry.
pub fn parse(mut input: impl BufRead, each: &mut dyn FnMut(PathRecord)) -> Result<Ending, RecordError> {
    let mut first = Vec::new();
    while first.iter().all(u8::is_ascii_whitespace) {
        first.clear();
        if line(&mut input, &mut first)? == 0 {
            return Ok(Ending::Whole);
        }
    }
    let first = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&first);
    if first.starts_with(&[0x1f, 0x8b]) || first.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Err(RecordError::Compressed);
    }
    let is_object = first.trim_ascii_start().starts_with(b"{");
    let is_whole = serde_json::from_slice::<IgnoredAny>(first).is_ok();
    if is_object && is_whole {
        let list: ListHead = serde_json::from_slice(first).unwrap_or_default();
        if !list.is_list() {
            return lines(first, input, each);
        }
    }
    document(first.chain(input), each)
}

/// The next line, of bounded length; 0 bytes at the end.
fn line(input: &mut impl BufRead, into: &mut Vec<u8>) -> Result<usize, RecordError> {
    let read = input.by_ref().take(RECORD_MAX_BYTES + 1).read_until(b'\n', into);
    read.map_err(RecordError::Read)
}

/// Tells the body of a list from a record.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct ListHead {
    data: Option<IgnoredAny>,
    request_id: Option<IgnoredAny>,
}

impl ListHead {
    fn is_list(&self) -> bool {
        self.data.is_some() && self.request_id.is_none()
    }
}

fn lines(
    first: &[u8],
    mut input: impl BufRead,
    each: &mut dyn FnMut(PathRecord),
) -> Result<Ending, RecordError> {
    let mut text = first.to_vec();
    for number in 1.. {
        if text.len() as u64 > RECORD_MAX_BYTES {
            return Err(RecordError::TooLong { line: number });
        }
        if !text.trim_ascii().is_empty() {
            match serde_json::from_slice(text.trim_ascii_end()) {
                Ok(record) => each(record),
                Err(e) if e.is_eof() && number > 1 && !text.ends_with(b"\n") => return Ok(Ending::CutOff),
                Err(source) => return Err(RecordError::Line { line: number, source }),
            }
        }
        text.clear();
        if line(&mut input, &mut text)? == 0 {
            break;
        }
    }
    Ok(Ending::Whole)
}

/// A document that is not one record a line: a list body, an array, or records over several lines.
fn document(input: impl Read, each: &mut dyn FnMut(PathRecord)) -> Result<Ending, RecordError> {
    let mut reader = serde_json::Deserializer::from_reader(BufReader::new(input));
    let mut told = Told {
        each,
        number: 0,
        wrong: None,
    };
    let done = loop {
        if let Err(e) = reader.deserialize_any(&mut told) {
            break Err(RecordError::Document(e));
        }
        if reader.end().is_ok() {
            break Ok(());
        }
    };
    match told.wrong {
        Some(wrong) => Err(wrong),
        None => done.map(|()| Ending::Whole),
    }
}

/// Hands over the records of a document as they are met.
struct Told<'a> {
    each: &'a mut dyn FnMut(PathRecord),
    number: usize,
    wrong: Option<RecordError>,
}

impl Told<'_> {
    fn tell(&mut self, value: Value) -> Result<(), RecordError> {
        self.number += 1;
        let id = value["request_id"].as_str().map_or_else(
            || "without request_id".to_owned(),
            |id| id.chars().take(64).collect(),
        );
        let number = self.number;
        let record =
            serde_json::from_value(value).map_err(|source| RecordError::Entry { number, id, source })?;
        (self.each)(record);
        Ok(())
    }

    /// The same, where only the format's own error can be returned: ours is kept beside it.
    fn tell_within<E: serde::de::Error>(&mut self, value: Value) -> Result<(), E> {
        self.tell(value).map_err(|wrong| {
            self.wrong = Some(wrong);
            E::custom("a record cannot be used")
        })
    }
}

impl<'de> Visitor<'de> for &mut Told<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path record, or a list of them")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(value) = list.next_element()? {
            self.tell_within(value)?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut keys, mut is_list) = (Map::new(), false);
        while let Some(key) = map.next_key::<String>()? {
            if key == "data" {
                is_list = true;
                map.next_value_seed(Entries(self))?;
            } else {
                keys.insert(key, map.next_value()?);
            }
        }
        if is_list {
            return Ok(());
        }
        self.tell_within(Value::Object(keys))
    }
}

/// The entries of `data`.
struct Entries<'a, 'b>(&'a mut Told<'b>);

impl<'de> DeserializeSeed<'de> for Entries<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self.0)
    }
}

/// The records of a list body, of an array, or the one record.
pub fn of_document(document: Value) -> Result<Vec<PathRecord>, RecordError> {
    let mut found = Vec::new();
    let mut each = |record| found.push(record);
    let mut told = Told {
        each: &mut each,
        number: 0,
        wrong: None,
    };
    let done = document.deserialize_any(&mut told);
    match (told.wrong, done) {
        (Some(wrong), _) => Err(wrong),
        (None, Err(e)) => Err(RecordError::Document(e)),
        (None, Ok(())) => Ok(found),
    }
}

/// Whether a document is a path record and no view written by hand.
pub fn is_record(document: &Value) -> bool {
    document.get("candidates").is_some() && document.get("request_id").is_some()
}

#[cfg(test)]
mod tests {
    use super::super::replay::tests::record;
    use super::*;

    fn read(text: &str) -> Result<(Vec<PathRecord>, Ending), RecordError> {
        let mut found = Vec::new();
        let ending = parse(text.as_bytes(), &mut |record| found.push(record))?;
        Ok((found, ending))
    }

    fn fails(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    fn two() -> (Vec<PathRecord>, Vec<String>) {
        let records = vec![record("req-1", &[(1, 10)]), record("req-2", &[(2, 20)])];
        let texts = records
            .iter()
            .map(|r| serde_json::to_string(r).unwrap())
            .collect();
        (records, texts)
    }

    #[test]
    fn every_shape_gives_the_same_records() {
        let (records, texts) = two();
        let pretty: Vec<_> = records
            .iter()
            .map(|r| serde_json::to_string_pretty(r).unwrap())
            .collect();
        let list = serde_json::json!({"object": "list", "data": records});
        for text in [
            format!("{}\n\n{}\n", texts[0], texts[1]),
            format!("\u{feff}{}\r\n{}", texts[0], texts[1]),
            serde_json::to_string(&records).unwrap(),
            serde_json::to_string_pretty(&records).unwrap(),
            format!("\n\n{}\n{}\n", pretty[0], pretty[1]),
            list.to_string(),
            serde_json::to_string_pretty(&list).unwrap(),
        ] {
            assert_eq!(read(&text).unwrap(), (records.clone(), Ending::Whole), "{text}");
        }
        assert_eq!(read(&texts[0]).unwrap().0, records[..1]);
        assert_eq!(of_document(list).unwrap(), records);
        assert_eq!(read(" \n\n").unwrap().0, []);
        assert_eq!(read("{\"object\": \"list\", \"data\": []}").unwrap().0, []);
    }

    #[test]
    fn a_request_counts_once_and_two_tenants_may_share_an_id() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, ids: &[(&str, &str)]| {
            let lines = ids.iter().map(|(tenant, id)| {
                let mut record = record(id, &[(1, 10)]);
                record.tenant = portolan_base::TenantName::new(tenant).unwrap();
                serde_json::to_string(&record).unwrap()
            });
            std::fs::write(dir.path().join(name), lines.collect::<Vec<_>>().join("\n")).unwrap();
        };
        write("a.jsonl", &[("acme", "req-1"), ("acme", "req-2")]);
        write("b.json", &[("acme", "req-2"), ("globex", "req-2")]);
        write("c.txt", &[("acme", "req-4")]);
        std::fs::create_dir(dir.path().join("d.json")).unwrap();
        let mut ids = Vec::new();
        let reading = each_of(&[dir.path().to_owned()], &mut |record| {
            ids.push(format!("{} {}", record.tenant.as_str(), record.request_id));
        })
        .unwrap();
        assert_eq!(ids, ["acme req-1", "acme req-2", "globex req-2"]);
        assert_eq!((reading.records, reading.repeated), (4, 1));
        let error = each_of(&[dir.path().join("d.json")], &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("holds no .json"), "{error}");
    }

    #[test]
    fn a_last_line_that_is_cut_off_is_left_out_and_said() {
        let (records, texts) = two();
        let torn = format!("{}\n{}", texts[0], &texts[1][..100]);
        assert_eq!(read(&torn).unwrap(), (records[..1].to_vec(), Ending::CutOff));
        // In the middle it is a mistake.
        let torn = format!("{}\n{}\n{}\n", texts[0], &texts[1][..100], texts[1]);
        assert!(fails(&torn).starts_with("line 2: EOF"), "{}", fails(&torn));
        assert!(
            fails(&texts[0][..100]).starts_with("EOF"),
            "{}",
            fails(&texts[0][..100])
        );
    }

    #[test]
    fn errors_say_where() {
        let (_, texts) = two();
        let error = fails(&format!("{}\n{{\"request_id\": 1}}\n", texts[0]));
        assert!(error.starts_with("line 2:"), "{error}");
        let error = fails(&format!("[{}, {{\"request_id\": \"req-2\"}}]", texts[0]));
        assert!(error.starts_with("record 2 (req-2): missing field"), "{error}");
        let error = fails(&format!("{}\n{}\n", texts[0], "x".repeat(9 << 20)));
        assert!(
            error.starts_with("line 2") && error.contains("8388608"),
            "{error}"
        );
        let zipped = parse(&[0x1f, 0x8b, 8, 0][..], &mut |_| {})
            .unwrap_err()
            .to_string();
        assert!(zipped.contains("compressed"), "{zipped}");
        for text in ["{", "[1]", "3", "\"x\"", "{\"data\": 1}", "<html>", "[{}, "] {
            assert!(!fails(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn a_record_of_another_release_is_read_as_far_as_it_is_known() {
        let (records, texts) = two();
        let newer = texts[0].replacen('{', "{\"version\": 9, \"weather\": {\"wind\": 3}, ", 1);
        assert_eq!(read(&newer).unwrap().0, records[..1]);
        let older = texts[0].replace("\"tenant\":\"acme\",", "");
        let error = fails(&older);
        assert!(
            error.contains("missing field `tenant`") && error.contains("release"),
            "{error}"
        );
    }
}
