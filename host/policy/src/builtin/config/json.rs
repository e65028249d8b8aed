//! A JSON reader for configurations: objects, arrays, strings, booleans and whole numbers.
//!
//! A general reader brings the conversion of decimal fractions both ways, which made each shipped component three
//! times as large as its policy; and policies calculate in whole numbers anyway. What this one accepts, every JSON
//! reader accepts with the same meaning (a property test holds it to that).

use super::ConfigError;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Unexpected, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Arrays and objects inside each other: far more than a configuration needs, far less than the stack holds.
const DEEPEST: u32 = 32;

/// What is wrong, as text, until the reader adds where.
#[derive(Debug)]
pub(super) struct Error(String);

impl Error {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }

    // The provided methods print what was found, fractions included, whose printing is the larger part of a component.
    fn invalid_type(_found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self(format!("expected {expected}"))
    }

    fn invalid_value(_found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self(format!("expected {expected}"))
    }
}

/// Reads one value from all of `text`; an error names line and column.
pub(super) fn read<'de, T: de::Deserialize<'de>>(text: &'de str) -> Result<T, ConfigError> {
    let mut reader = Reader {
        text,
        at: 0,
        depth: 0,
    };
    let value = T::deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| {
        let before = &text.as_bytes()[..reader.at];
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let continues = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
        let column = before
            .iter()
            .rev()
            .take_while(|b| **b != b'\n')
            .filter(|b| !continues(**b))
            .count()
            + 1;
        ConfigError::Unreadable(format!("{error} at line {line}, column {column}"))
    })
}

struct Reader<'de> {
    text: &'de str,
    /// Always on a character boundary.
    at: usize,
    depth: u32,
}

impl<'de> Reader<'de> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'de str {
        self.until(self.text.len())
    }

    /// Without the checked slicing of `str`, whose error message brings the tables of printable characters along.
    fn until(&self, end: usize) -> &'de str {
        self.text.get(self.at..end).unwrap_or_default()
    }

    fn skip_space(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
        self.peek()
    }

    fn expect(&mut self, byte: u8) -> Result<(), Error> {
        if self.skip_space() == Some(byte) {
            self.at += 1;
            return Ok(());
        }
        Err(Error(format!("expected '{}'", char::from(byte))))
    }

    fn end(&mut self) -> Result<(), Error> {
        match self.skip_space() {
            None => Ok(()),
            Some(_) => Err(Error::new("expected the end of the text")),
        }
    }

    fn word<T>(&mut self, word: &str, value: T) -> Result<T, Error> {
        if self.rest().starts_with(word) {
            self.at += word.len();
            return Ok(value);
        }
        Err(Error(format!("expected {word}")))
    }

    fn number(&mut self) -> Result<u64, Error> {
        let rest = self.rest().as_bytes();
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let fraction = matches!(rest.get(digits), Some(b'.' | b'e' | b'E'));
        let padded = digits > 1 && self.peek() == Some(b'0');
        let number = self
            .until(self.at + digits)
            .parse()
            .ok()
            .filter(|_| !fraction && !padded);
        self.at += if number.is_some() { digits } else { 0 };
        number.ok_or_else(|| Error::new("expected a whole number from 0 to 2^64 - 1, without leading zeros"))
    }

    fn string(&mut self) -> Result<Cow<'de, str>, Error> {
        self.expect(b'"')?;
        let mut decoded = None::<String>;
        loop {
            let plain = |byte: &u8| *byte >= b' ' && !matches!(byte, b'"' | b'\\');
            let length = self.rest().bytes().take_while(plain).count();
            let text = self.until(self.at + length);
            self.at += length;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(match decoded {
                        None => Cow::Borrowed(text),
                        Some(before) => Cow::Owned(before + text),
                    });
                }
                Some(b'\\') => {
                    self.at += 1;
                    let decoded = decoded.get_or_insert_default();
                    decoded.push_str(text);
                    decoded.push(self.escape()?);
                }
                _ => {
                    return Err(Error::new(
                        "the string does not end, or holds a control character",
                    ));
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, Error> {
        let escaped = match self.peek() {
            Some(b @ (b'"' | b'\\' | b'/')) => char::from(b),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(),
            _ => return Err(Error::new("no such escape")),
        };
        self.at += 1;
        Ok(escaped)
    }

    /// At the `u`; a character beyond the first 65,536 takes two escapes.
    fn unicode(&mut self) -> Result<char, Error> {
        let bad = || Error::new("no such character");
        let first = self.hex().ok_or_else(bad)?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first).ok_or_else(bad);
        }
        if self.peek() != Some(b'\\') {
            return Err(bad());
        }
        self.at += 1;
        let second = self
            .hex()
            .filter(|low| (0xdc00..0xe000).contains(low))
            .ok_or_else(bad)?;
        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)).ok_or_else(bad)
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 5)?.strip_prefix('u')?;
        let value = digits
            .bytes()
            .all(|b| b.is_ascii_hexdigit())
            .then(|| u32::from_str_radix(digits, 16).ok())??;
        self.at += 5;
        Some(value)
    }

    fn nested<T>(
        &mut self,
        open: u8,
        close: u8,
        read: impl FnOnce(Items<'_, 'de>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.expect(open)?;
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(Error(format!("more than {DEEPEST} values inside each other")));
        }
        let value = read(Items {
            reader: self,
            close,
            first: true,
        })?;
        self.expect(close)?;
        self.depth -= 1;
        Ok(value)
    }
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.skip_space() {
            Some(b'{') => self.nested(b'{', b'}', |items| visitor.visit_map(items)),
            Some(b'[') => self.nested(b'[', b']', |items| visitor.visit_seq(items)),
            Some(b'"') => match self.string()? {
                Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
                Cow::Owned(text) => visitor.visit_string(text),
            },
            Some(b't') => self
                .word("true", true)
                .and_then(|value| visitor.visit_bool(value)),
            Some(b'f') => self
                .word("false", false)
                .and_then(|value| visitor.visit_bool(value)),
            Some(b'n') => self.word("null", ()).and_then(|()| visitor.visit_unit()),
            Some(_) => self.number().and_then(|value| visitor.visit_u64(value)),
            None => Err(Error::new("the text ends too early")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.skip_space() {
            Some(b'n') => self.word("null", ()).and_then(|()| visitor.visit_none()),
            _ => visitor.visit_some(self),
        }
    }

    /// From an object only: by position, as serde would read an array, a misplaced number goes unnoticed.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.nested(b'{', b'}', |items| visitor.visit_map(items))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    /// A name alone, of a variant that holds nothing.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.skip_space();
        let name = self.string()?;
        visitor.visit_enum(de::value::CowStrDeserializer::<Error>::new(name))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// What is left of an array or an object.
struct Items<'r, 'de> {
    reader: &'r mut Reader<'de>,
    close: u8,
    first: bool,
}

impl Items<'_, '_> {
    /// Whether another item follows; stands at it then.
    fn advance(&mut self) -> Result<bool, Error> {
        if self.reader.skip_space() == Some(self.close) {
            return Ok(false);
        }
        if !std::mem::take(&mut self.first) {
            self.reader.expect(b',')?;
        }
        Ok(true)
    }
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if !self.advance()? {
            return Ok(None);
        }
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

impl<'de> MapAccess<'de> for Items<'_, 'de> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if !self.advance()? {
            return Ok(None);
        }
        if self.reader.skip_space() != Some(b'"') {
            return Err(Error::new("expected a key in quotes"));
        }
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        self.reader.expect(b':')?;
        seed.deserialize(&mut *self.reader)
    }
}

#[cfg(test)]
mod tests;
