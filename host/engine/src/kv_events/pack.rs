//! Msgpack, read token by token from bytes that anyone may have sent: nothing is allocated that the bytes do not pay
//! for, and nesting ends at a fixed depth.

use super::EventError;
use rmp::Marker;

/// Arrays and maps within each other. Events have five.
const DEEPEST: usize = 16;

/// One token: a value, or the beginning of an array or map with so many elements or pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    Nil,
    Bool(bool),
    /// A number below zero.
    Negative(i64),
    Number(u64),
    Float(f64),
    Text(&'a str),
    /// Bytes, and text that is no UTF-8.
    Bytes(&'a [u8]),
    Array(usize),
    Map(usize),
    /// An extension type.
    Other,
}

/// Reads tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes left.
    pub(super) fn to_vec(self) -> Vec<u8> {
        self.rest.to_vec()
    }

    /// The next token, left where it is.
    pub(super) fn peek(mut self) -> Result<Token<'a>, EventError> {
        self.token()
    }

    /// The next token.
    pub(super) fn token(&mut self) -> Result<Token<'a>, EventError> {
        let [marker] = self.fixed()?;
        Ok(match Marker::from_u8(marker) {
            Marker::Null => Token::Nil,
            Marker::False => Token::Bool(false),
            Marker::True => Token::Bool(true),
            Marker::FixPos(n) => Token::Number(n.into()),
            Marker::U8 => Token::Number(u8::from_be_bytes(self.fixed()?).into()),
            Marker::U16 => Token::Number(u16::from_be_bytes(self.fixed()?).into()),
            Marker::U32 => Token::Number(u32::from_be_bytes(self.fixed()?).into()),
            Marker::U64 => Token::Number(u64::from_be_bytes(self.fixed()?)),
            Marker::FixNeg(n) => signed(n.into()),
            Marker::I8 => signed(i8::from_be_bytes(self.fixed()?).into()),
            Marker::I16 => signed(i16::from_be_bytes(self.fixed()?).into()),
            Marker::I32 => signed(i32::from_be_bytes(self.fixed()?).into()),
            Marker::I64 => signed(i64::from_be_bytes(self.fixed()?)),
            Marker::F32 => Token::Float(f32::from_be_bytes(self.fixed()?).into()),
            Marker::F64 => Token::Float(f64::from_be_bytes(self.fixed()?)),
            Marker::FixStr(n) => text(self.bytes(n.into())?),
            Marker::Str8 => text(self.sized::<1>()?),
            Marker::Str16 => text(self.sized::<2>()?),
            Marker::Str32 => text(self.sized::<4>()?),
            Marker::Bin8 => Token::Bytes(self.sized::<1>()?),
            Marker::Bin16 => Token::Bytes(self.sized::<2>()?),
            Marker::Bin32 => Token::Bytes(self.sized::<4>()?),
            Marker::FixArray(n) => Token::Array(self.counted(n.into(), 1)?),
            Marker::Array16 => Token::Array(self.count::<2>(1)?),
            Marker::Array32 => Token::Array(self.count::<4>(1)?),
            Marker::FixMap(n) => Token::Map(self.counted(n.into(), 2)?),
            Marker::Map16 => Token::Map(self.count::<2>(2)?),
            Marker::Map32 => Token::Map(self.count::<4>(2)?),
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            Marker::Ext8 => {
                let size = self.number::<1>()?;
                self.extension(size)?
            }
            Marker::Ext16 => {
                let size = self.number::<2>()?;
                self.extension(size)?
            }
            Marker::Ext32 => {
                let size = self.number::<4>()?;
                self.extension(size)?
            }
            Marker::Reserved => return Err(EventError::Damaged),
        })
    }

    /// The next whole value, unread: its bytes.
    pub(super) fn value(&mut self) -> Result<Reader<'a>, EventError> {
        let before = self.rest;
        self.skip(DEEPEST)?;
        let (value, _) = before.split_at(before.len() - self.rest.len());
        Ok(Self { rest: value })
    }

    fn skip(&mut self, deepest: usize) -> Result<(), EventError> {
        let within = match self.token()? {
            Token::Array(elements) => elements,
            Token::Map(pairs) => pairs * 2,
            _ => return Ok(()),
        };
        let deepest = deepest.checked_sub(1).ok_or(EventError::TooDeep)?;
        (0..within).try_for_each(|_| self.skip(deepest))
    }

    fn bytes(&mut self, size: usize) -> Result<&'a [u8], EventError> {
        let (bytes, rest) = self.rest.split_at_checked(size).ok_or(EventError::Cut)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], EventError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(EventError::Cut)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn number<const N: usize>(&mut self) -> Result<usize, EventError> {
        let bytes: [u8; N] = self.fixed()?;
        Ok(bytes
            .iter()
            .fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    fn sized<const N: usize>(&mut self) -> Result<&'a [u8], EventError> {
        let size = self.number::<N>()?;
        self.bytes(size)
    }

    fn count<const N: usize>(&mut self, each: usize) -> Result<usize, EventError> {
        let count = self.number::<N>()?;
        self.counted(count, each)
    }

    /// A count of elements of at least `each` bytes, of which there cannot be more than bytes are left.
    fn counted(&self, count: usize, each: usize) -> Result<usize, EventError> {
        if count > self.rest.len() / each {
            return Err(EventError::Cut);
        }
        Ok(count)
    }

    fn extension(&mut self, size: usize) -> Result<Token<'a>, EventError> {
        self.bytes(size.saturating_add(1))?;
        Ok(Token::Other)
    }
}

fn signed(number: i64) -> Token<'static> {
    u64::try_from(number).map_or(Token::Negative(number), Token::Number)
}

fn text(bytes: &[u8]) -> Token<'_> {
    std::str::from_utf8(bytes).map_or(Token::Bytes(bytes), Token::Text)
}
