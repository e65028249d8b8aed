//! Changes of a JSON object's own fields that leave every other byte as it was: numbers no type here could hold, the
//! order of fields, spaces. An engine reads what its client wrote.

use std::borrow::Cow;
use thiserror::Error;

/// The text is not a JSON object. Whoever parsed it before would have said so; this is the last line of defence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the request body is not a JSON object")]
pub(crate) struct NotAnObject;

/// What becomes of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Edit<'a> {
    /// It goes.
    Remove(&'a str),
    /// It has this JSON text as its value, where it stood, or at the end.
    Set(&'a str, Cow<'a, str>),
    /// The same, where the client sent the field at all.
    Replace(&'a str, Cow<'a, str>),
}

impl Edit<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Remove(name) | Self::Set(name, _) | Self::Replace(name, _) => name,
        }
    }
}

/// Applies `edits` to the fields of the object `body`. Of several edits of one name the first counts.
pub(crate) fn splice(body: &[u8], edits: &[Edit<'_>]) -> Result<Vec<u8>, NotAnObject> {
    let object = Object::read(body)?;
    let mut done = vec![false; edits.len()];
    let mut kept: Vec<Cow<'_, [u8]>> = Vec::with_capacity(object.fields.len() + edits.len());
    for field in &object.fields {
        let chunk = &body[field.from..field.upto];
        let Some(at) = edits.iter().position(|edit| edit.name() == field.name) else {
            kept.push(Cow::Borrowed(chunk));
            continue;
        };
        done[at] = true;
        if let Edit::Set(_, value) | Edit::Replace(_, value) = &edits[at] {
            let before = &body[field.from..field.value_from];
            let after = &body[field.value_upto..field.upto];
            kept.push(Cow::Owned([before, value.as_bytes(), after].concat()));
        }
    }
    for (edit, done) in edits.iter().zip(done) {
        if let (Edit::Set(name, value), false) = (edit, done) {
            kept.push(Cow::Owned(format!("\"{name}\":{value}").into_bytes()));
        }
    }
    let mut out = body[..object.from].to_vec();
    out.extend_from_slice(&kept.join(&b','));
    // The spaces between the last field and the brace belong to the last field, or to nothing at all.
    out.extend_from_slice(&body[object.upto..]);
    Ok(out)
}

/// The JSON text of a field; none where it is absent.
pub(crate) fn field<'b>(body: &'b [u8], name: &str) -> Option<&'b str> {
    let object = Object::read(body).ok()?;
    let found = object.fields.iter().find(|field| field.name == name)?;
    std::str::from_utf8(&body[found.value_from..found.value_upto]).ok()
}

/// Where an object's fields are.
struct Object<'b> {
    fields: Vec<Field<'b>>,
    /// Behind the opening brace.
    from: usize,
    /// At the closing brace.
    upto: usize,
}

struct Field<'b> {
    name: Cow<'b, str>,
    /// Behind the comma or brace before it.
    from: usize,
    /// At the comma or brace after it.
    upto: usize,
    value_from: usize,
    value_upto: usize,
}

impl<'b> Object<'b> {
    fn read(body: &'b [u8]) -> Result<Self, NotAnObject> {
        let mut cursor = Cursor { body, at: 0 };
        cursor.spaces();
        cursor.expect(b'{')?;
        let from = cursor.at;
        let mut fields = Vec::new();
        cursor.spaces();
        if cursor.peek() == Some(b'}') {
            return Ok(Self {
                fields,
                from,
                upto: cursor.at,
            });
        }
        cursor.at = from;
        loop {
            let begin = cursor.at;
            cursor.spaces();
            let name = cursor.name()?;
            cursor.spaces();
            cursor.expect(b':')?;
            cursor.spaces();
            let value_from = cursor.at;
            cursor.value()?;
            let value_upto = cursor.at;
            cursor.spaces();
            fields.push(Field {
                name,
                from: begin,
                upto: cursor.at,
                value_from,
                value_upto,
            });
            match cursor.peek() {
                Some(b',') => cursor.at += 1,
                Some(b'}') => {
                    return Ok(Self {
                        fields,
                        from,
                        upto: cursor.at,
                    });
                }
                _ => return Err(NotAnObject),
            }
        }
    }
}

struct Cursor<'b> {
    body: &'b [u8],
    at: usize,
}

impl<'b> Cursor<'b> {
    fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Result<(), NotAnObject> {
        match self.peek() == Some(byte) {
            true => {
                self.at += 1;
                Ok(())
            }
            false => Err(NotAnObject),
        }
    }

    fn spaces(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Passes over a string, quotes included.
    fn string(&mut self) -> Result<(), NotAnObject> {
        self.expect(b'"')?;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
                None => return Err(NotAnObject),
            }
        }
    }

    /// A field's name, however it is written: two ways to write one name are one name.
    fn name(&mut self) -> Result<Cow<'b, str>, NotAnObject> {
        let from = self.at;
        self.string()?;
        let written = &self.body[from..self.at];
        let plain = !written.contains(&b'\\');
        let inner = &written[1..written.len() - 1];
        match plain {
            true => std::str::from_utf8(inner)
                .map(Cow::Borrowed)
                .map_err(|_| NotAnObject),
            false => serde_json::from_slice(written)
                .map(Cow::Owned)
                .map_err(|_| NotAnObject),
        }
    }

    /// Passes over a value of any kind.
    fn value(&mut self) -> Result<(), NotAnObject> {
        let mut depth = 0usize;
        loop {
            match self.peek().ok_or(NotAnObject)? {
                b'"' => self.string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b'}' | b']' if depth == 0 => return Ok(()),
                b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return Ok(()),
                _ => self.at += 1,
            }
            let ended = matches!(self.body[self.at - 1], b'"' | b'}' | b']');
            if depth == 0 && ended {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    const BODY: &str =
        "{ \"model\" : \"m\",\"n\":12345678901234567890123,\n \"a\":[1,{\"x\":\"}\\\"]\"}], \"z\":1.50 }";

    fn edited(body: &str, edits: &[Edit<'_>]) -> String {
        String::from_utf8(splice(body.as_bytes(), edits).unwrap()).unwrap()
    }

    #[test]
    fn what_is_not_named_keeps_every_byte() {
        assert_eq!(edited(BODY, &[]), BODY);
        assert_eq!(
            edited(BODY, &[Edit::Remove("nothing"), Edit::Replace("no", "1".into())]),
            BODY
        );
        assert_eq!(
            edited(BODY, &[Edit::Set("salt", "\"s\"".into())]),
            BODY.replace("1.50 }", "1.50 ,\"salt\":\"s\"}")
        );
        assert_eq!(
            edited(BODY, &[Edit::Replace("a", "null".into())]),
            "{ \"model\" : \"m\",\"n\":12345678901234567890123,\n \"a\":null, \"z\":1.50 }"
        );
    }

    #[test]
    fn fields_go_from_every_place_and_leave_an_object() {
        assert_eq!(edited("{\"a\":1}", &[Edit::Remove("a")]), "{}");
        assert_eq!(edited("{\"a\":1, \"b\":2}", &[Edit::Remove("a")]), "{ \"b\":2}");
        assert_eq!(edited("{\"a\":1, \"b\":2}", &[Edit::Remove("b")]), "{\"a\":1}");
        assert_eq!(edited("{}", &[Edit::Set("a", "1".into())]), "{\"a\":1}");
        assert_eq!(edited(" { } ", &[Edit::Set("a", "1".into())]), " {\"a\":1} ");
    }

    #[test]
    fn a_name_in_disguise_is_the_same_name_and_one_further_in_is_not() {
        let body = r#"{"cache\u005fsalt":"mine","x":{"cache_salt":1}}"#;
        assert_eq!(
            edited(body, &[Edit::Remove("cache_salt")]),
            r#"{"x":{"cache_salt":1}}"#
        );
        assert_eq!(field(body.as_bytes(), "cache_salt"), Some("\"mine\""));
        assert_eq!(field(b"{\"stream\" : true }", "stream"), Some("true"));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for body in [
            "",
            "[]",
            "{",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":\"",
            "{a:1}",
            "{\"a\":1,",
            "{\"\\",
        ] {
            assert_eq!(splice(body.as_bytes(), &[]), Err(NotAnObject), "{body}");
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(|n| Value::Number(n.into())),
            "\\PC{0,8}".prop_map(Value::String),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::btree_map("\\PC{0,4}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_is_what_changing_the_parsed_object_would_be(
            fields in prop::collection::btree_map("[a-d]{1,2}", json(), 0..6),
            name in "[a-d]{1,2}",
            value in json(),
            pretty in any::<bool>(),
        ) {
            let object: Map<String, Value> = fields.into_iter().collect();
            let body = match pretty {
                true => serde_json::to_vec_pretty(&object),
                false => serde_json::to_vec(&object),
            }.unwrap();
            let text = Cow::Owned(value.to_string());
            let mut set = object.clone();
            set.insert(name.clone(), value);
            let spliced = splice(&body, &[Edit::Set(&name, text)]).unwrap();
            prop_assert_eq!(serde_json::from_slice::<Map<String, Value>>(&spliced).unwrap(), set);
            let mut removed = object;
            removed.remove(&name);
            let spliced = splice(&body, &[Edit::Remove(&name)]).unwrap();
            prop_assert_eq!(serde_json::from_slice::<Map<String, Value>>(&spliced).unwrap(), removed);
        }

        #[test]
        fn no_input_is_too_strange(body in prop::collection::vec(any::<u8>(), 0..64)) {
            drop(splice(&body, &[Edit::Remove("a"), Edit::Set("b", "1".into())]));
        }
    }
}
