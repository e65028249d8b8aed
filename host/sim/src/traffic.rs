//! Requests: recorded or synthetic.

mod synthetic;

pub use synthetic::{Burst, Prefixes, Surge, Synthetic, Tenant};

use portolan_base::Moment;
use serde::Deserialize;
use std::io::{self, BufRead, Read};

/// Tokens of one block of a Mooncake trace.
pub const MOONCAKE_BLOCK_TOKENS: u32 = 512;

const MOONCAKE_ROW: &str =
    r#"a row is {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}"#;

/// Longest prompt or answer that is read: more than any model takes, and times stay far from their largest values.
const MAX_TOKENS: u32 = 1 << 24;

/// Longest line that is read: a prompt of [`MAX_TOKENS`] has 32,768 block ids of at most 20 digits.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Most requests that are read. Each takes some 400 bytes while it is simulated, its block ids aside.
const MAX_REQUESTS: usize = 5_000_000;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimRequest {
    /// When it comes in, since the start of the simulation.
    pub arrival: Moment,
    /// Length of the prompt; at least 1.
    pub prompt_tokens: u32,
    /// Length of the answer.
    pub output_tokens: u32,
    /// Whose it is.
    pub tenant: u32,
    /// Names of the prompt's blocks: equal exactly where the whole prompt up to the block's end is equal. Empty when
    /// nothing is known about prefixes.
    pub blocks: Vec<u64>,
}

impl SimRequest {
    /// What tells its conversation from others, where something does: every prompt of a recorded trace shares the first
    /// block, so it is the second.
    pub fn conversation(&self) -> Option<u64> {
        self.blocks.get(1).copied()
    }
}

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read.
    #[error("the trace cannot be read")]
    Io(#[from] io::Error),
    /// It is longer than a simulation can hold.
    #[error("the trace has more than {MAX_REQUESTS} requests; cut it")]
    TooLong,
    /// A line is not what the format says.
    #[error("line {line} of the trace: {problem}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
}

#[derive(Deserialize)]
struct MooncakeRow {
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// Reads a trace in Mooncake's JSON lines: milliseconds, lengths, and one id for each block of 512 tokens.
pub fn read_mooncake(trace: impl BufRead) -> Result<Vec<SimRequest>, TraceError> {
    read_lines(trace, 0, |text| {
        let row: MooncakeRow =
            serde_json::from_str(text).map_err(|error| format!("{error}; {MOONCAKE_ROW}"))?;
        let blocks = row.input_length.div_ceil(MOONCAKE_BLOCK_TOKENS) as usize;
        if row.input_length == 0 || row.hash_ids.len() != blocks {
            return Err(format!(
                "{} tokens with {} block ids",
                row.input_length,
                row.hash_ids.len()
            ));
        }
        Ok(SimRequest {
            arrival: Moment(row.timestamp.saturating_mul(1000)),
            prompt_tokens: row.input_length,
            output_tokens: row.output_length,
            tenant: 0,
            blocks: row.hash_ids,
        })
    })
}

/// Reads an Azure trace: a heading, then `YYYY-MM-DD HH:MM:SS.fffffff,context,generated`. It knows no prefixes.
pub fn read_azure(trace: impl BufRead) -> Result<Vec<SimRequest>, TraceError> {
    let mut requests = read_lines(trace, 1, |text| {
        let mut fields = text.split(',');
        let mut field = || fields.next().ok_or("fewer than three fields");
        let (time, context, generated) = (field()?, field()?, field()?);
        let number = |text: &str| {
            text.trim()
                .parse::<u32>()
                .map_err(|_| format!("{text:?} is no number of tokens"))
        };
        let micros = micros_of(time).ok_or_else(|| format!("{time:?} is no time"))?;
        Ok(SimRequest {
            arrival: Moment(micros),
            prompt_tokens: number(context)?.max(1),
            output_tokens: number(generated)?,
            tenant: 0,
            blocks: Vec::new(),
        })
    })?;
    let start = requests.iter().map(|r| r.arrival.0).min().unwrap_or(0);
    requests.iter_mut().for_each(|r| r.arrival.0 -= start);
    Ok(requests)
}

fn read_lines(
    mut trace: impl BufRead,
    heading: usize,
    mut read: impl FnMut(&str) -> Result<SimRequest, String>,
) -> Result<Vec<SimRequest>, TraceError> {
    let mut requests = Vec::new();
    let mut text = String::new();
    for line in 1.. {
        text.clear();
        if trace.by_ref().take(MAX_LINE_BYTES).read_line(&mut text)? == 0 {
            break;
        }
        let wrong = |problem| TraceError::Line { line, problem };
        if text.len() as u64 == MAX_LINE_BYTES {
            return Err(wrong(format!("it is longer than {MAX_LINE_BYTES} bytes")));
        }
        if line <= heading || text.trim().is_empty() {
            continue;
        }
        if requests.len() == MAX_REQUESTS {
            return Err(TraceError::TooLong);
        }
        let request = read(&text).map_err(wrong)?;
        let longest = request.prompt_tokens.max(request.output_tokens);
        if longest > MAX_TOKENS {
            return Err(wrong(format!(
                "{longest} tokens, at most {MAX_TOKENS} are played"
            )));
        }
        requests.push(request);
    }
    Ok(requests)
}

/// Microseconds since the epoch of `YYYY-MM-DD HH:MM:SS.fffffff`.
fn micros_of(text: &str) -> Option<u64> {
    let (date, time) = text.trim().split_once(' ')?;
    let part = |text: Option<&str>| text?.parse::<u64>().ok();
    let mut date = date.split('-');
    let (year, month, day) = (part(date.next())?, part(date.next())?, part(date.next())?);
    let mut time = time.split(':');
    let (hour, minute, second) = (
        part(time.next())?,
        part(time.next())?,
        time.next()?.parse::<f64>().ok()?,
    );
    let plausible = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !plausible || hour > 23 || minute > 59 || !(0.0..61.0).contains(&second) {
        return None;
    }
    // Days of the civil calendar, with years that begin in March so that the leap day comes last.
    let (y, m) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60_000_000 + (second * 1e6).round() as u64)
}

/// SplitMix64.
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1].
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}
