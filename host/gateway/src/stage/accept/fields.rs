//! The fields of a JSON object, taken one by one, so that every error names its field.

mod twice;

use crate::error::{ErrorKind, RequestError};
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use twice::Unambiguous;

/// Longest piece of a parser's message that is passed on: it may quote the client's own text.
const QUOTE_MAX_BYTES: usize = 200;

/// An object whose values are not parsed yet.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    prefix: &'static str,
    values: BTreeMap<String, &'a RawValue>,
}

impl<'a> Fields<'a> {
    /// The fields of a request body.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, RequestError> {
        let text = std::str::from_utf8(body).map_err(|error| {
            let at = error.valid_up_to();
            let message = format!("the request body is not UTF-8: the byte at offset {at} is invalid");
            RequestError::new(ErrorKind::BadRequest, message).with_code("invalid_json")
        })?;
        let unique: UniqueFields<'a> = serde_json::from_str(text).map_err(|error| {
            let message = format!(
                "the request body is not a usable JSON object: {}",
                shorten(&error.to_string())
            );
            RequestError::new(ErrorKind::BadRequest, message).with_code("invalid_json")
        })?;
        // The parts of our own object are looked at, and named, when it is opened.
        for (name, raw) in unique.0.iter().filter(|(name, _)| *name != "portolan") {
            unambiguous(name, raw.get())?;
        }
        Ok(Self {
            prefix: "",
            values: unique.0,
        })
    }

    /// The fields of an object that is itself a field, or none when it is absent. `prefix` ends with a dot.
    pub(super) fn object(&mut self, name: &str, prefix: &'static str) -> Result<Self, RequestError> {
        let values = match self.raw(name) {
            None => BTreeMap::new(),
            Some(raw) => {
                serde_json::from_str::<UniqueFields<'a>>(raw)
                    .map_err(|e| self.unusable(name, &e))?
                    .0
            }
        };
        Ok(Self { prefix, values })
    }

    /// The JSON text of a field; `None` when it is absent or null.
    pub(super) fn raw(&mut self, name: &str) -> Option<&'a str> {
        let raw = self.values.remove(name)?.get();
        (raw != "null").then_some(raw)
    }

    /// The JSON text of a field, which stays.
    pub(super) fn peek(&self, name: &str) -> Option<&'a str> {
        self.values.get(name).map(|raw| raw.get())
    }

    /// Whether a field is there and not null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|raw| raw.get() != "null")
    }

    /// A field of any type.
    pub(super) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, RequestError> {
        let Some(raw) = self.raw(name) else {
            return Ok(None);
        };
        serde_json::from_str(raw)
            .map(Some)
            .map_err(|error| self.unusable(name, &error))
    }

    /// An object of texts, in which no name occurs twice.
    pub(super) fn texts(&mut self, name: &str) -> Result<BTreeMap<String, String>, RequestError> {
        let Some(raw) = self.raw(name) else {
            return Ok(BTreeMap::new());
        };
        let values = serde_json::from_str::<UniqueFields<'a>>(raw).map_err(|e| self.unusable(name, &e))?;
        let read = |(key, value): (String, &RawValue)| Ok((key, serde_json::from_str(value.get())?));
        let texts: Result<_, serde_json::Error> = values.0.into_iter().map(read).collect();
        texts.map_err(|error| self.unusable(name, &error))
    }

    /// An integer within bounds.
    pub(super) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, RequestError> {
        let Some(value) = self.take::<i64>(name)? else {
            return Ok(None);
        };
        self.within(name, value, range).map(Some)
    }

    /// A finite number within bounds.
    pub(super) fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, RequestError> {
        let Some(value) = self.take::<f64>(name)? else {
            return Ok(None);
        };
        self.within(name, value, range).map(Some)
    }

    /// A text of at least one byte and at most `most` bytes.
    pub(super) fn text(&mut self, name: &str, most: usize) -> Result<Option<String>, RequestError> {
        let Some(value) = self.take::<String>(name)? else {
            return Ok(None);
        };
        let path = self.path(name);
        match value.len() {
            0 => Err(RequestError::bad_field(
                &path,
                format!("{path} is empty; leave it out instead"),
            )),
            n if n > most => {
                let message = format!("{path} has {n} bytes, at most {most} are taken");
                Err(RequestError::bad_field(&path, message))
            }
            _ => Ok(Some(value)),
        }
    }

    /// A field nobody took.
    pub(super) fn leftover(&self) -> Option<&str> {
        self.values.keys().next().map(String::as_str)
    }

    /// The field's name as the client would write it.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn within<T>(&self, name: &str, value: T, range: RangeInclusive<T>) -> Result<T, RequestError>
    where
        T: PartialOrd + fmt::Display,
    {
        let path = self.path(name);
        let message = if value < *range.start() {
            format!("{path} must be at least {}, got {value}", range.start())
        } else if value > *range.end() {
            format!("{path} must be at most {}, got {value}", range.end())
        } else {
            return Ok(value);
        };
        Err(RequestError::bad_field(&path, message))
    }

    fn unusable(&self, name: &str, error: &serde_json::Error) -> RequestError {
        unusable(&self.path(name), error)
    }
}

/// Refuses a value in which a field occurs twice, however deep. What else is wrong with it is said by whoever takes it.
fn unambiguous(name: &str, raw: &str) -> Result<(), RequestError> {
    // A text, a number and a list of them hold no fields.
    if raw.starts_with('"') || !raw.contains('{') {
        return Ok(());
    }
    match serde_json::from_str::<Unambiguous>(raw) {
        Err(error) if error.is_data() => Err(unusable(&shorten(name), &error).with_code("invalid_json")),
        _ => Ok(()),
    }
}

/// The error for a field whose value has the wrong type or form.
pub(super) fn unusable(path: &str, error: &serde_json::Error) -> RequestError {
    let text = error.to_string();
    // The position counts from the beginning of the value, which tells the client nothing.
    let reason = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(reason, _)| reason);
    RequestError::bad_field(path, format!("{path} cannot be used: {}", shorten(reason)))
}

fn shorten(text: &str) -> String {
    if text.len() <= QUOTE_MAX_BYTES {
        return text.to_owned();
    }
    let half = QUOTE_MAX_BYTES / 2;
    let (head, tail) = (
        text.floor_char_boundary(half),
        text.ceil_char_boundary(text.len() - half),
    );
    format!("{}…{}", &text[..head], &text[tail..])
}

/// A JSON object in which no field occurs twice: of two values, one could pass a check and the other be used.
struct UniqueFields<'a>(BTreeMap<String, &'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for UniqueFields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor).map(UniqueFields)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = BTreeMap<String, &'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut values = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
            if values.contains_key(&name) {
                return Err(serde::de::Error::custom(format_args!(
                    "the field {name:?} occurs twice"
                )));
            }
            values.insert(name, value);
        }
        Ok(values)
    }
}
