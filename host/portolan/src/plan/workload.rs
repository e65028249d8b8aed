//! The file that says what is asked of a fleet.

use super::error::PlanError;
use crate::lab::rehearsal::read_trace;
use portolan_base::Tokens;
use portolan_planner::{LengthDistribution, MeasuredLengths, SearchGrid, TruncatedLogNormal};
use portolan_sim::{MOONCAKE_BLOCK_TOKENS, SimRequest};
use serde::Deserialize;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Lengths of prompts and answers: from a formula or from a trace.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadText {
    /// Uncached prompt lengths by a formula.
    pub lengths: Option<LogNormalText>,
    /// A trace in Mooncake's or Azure's form, beside this file.
    pub trace: Option<PathBuf>,
    /// What of a trace's prompts is cached.
    #[serde(default)]
    pub cache: CacheText,
    /// Mean length of an answer; that of the trace when left out.
    pub output_tokens: Option<f64>,
    /// The thresholds to try; a thousand up to the longest prompt when left out.
    pub thresholds: Option<GridText>,
}

/// A log-normal length, drawn again outside an interval.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogNormalText {
    /// Mean of the logarithm.
    pub mu: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
    /// Shortest prompt.
    pub shortest: u32,
    /// Longest prompt.
    pub longest: u32,
}

/// What of a trace's prompts is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheText {
    /// Nothing: every prompt is computed whole.
    #[default]
    Nothing,
    /// Every block that came in an earlier request of the trace: the most that caches can save.
    Everything,
}

/// Thresholds to try.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GridText {
    /// The first.
    pub from: u32,
    /// The last, if the steps meet it.
    pub to: u32,
    /// The distance between them.
    pub step: u32,
}

/// A workload that can be planned for.
pub struct Workload {
    /// Uncached lengths of prompts.
    pub lengths: Box<dyn LengthDistribution>,
    /// Mean length of an answer.
    pub output_tokens: f64,
    /// The thresholds to try.
    pub grid: SearchGrid,
}

impl WorkloadText {
    /// Reads a file; a trace in it lies relative to the file's folder.
    pub fn read(path: &Path) -> Result<Workload, PlanError> {
        let text = std::fs::read_to_string(path).map_err(|source| PlanError::Read {
            path: path.to_owned(),
            source,
        })?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let workload = Self::parse(&text).and_then(|text| text.workload(folder));
        workload.map_err(|wrong| wrong.of_file(path))
    }

    /// Reads a document.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        serde_saphyr::from_str(text).map_err(|e| PlanError::value("workload", e.to_string()))
    }

    /// The workload; a trace lies relative to `folder`.
    pub fn workload(&self, folder: &Path) -> Result<Workload, PlanError> {
        let (lengths, longest, traced): (Box<dyn LengthDistribution>, u32, Option<f64>) =
            match (&self.lengths, &self.trace) {
                (Some(text), None) => (Box::new(text.lengths()?), text.longest, None),
                (None, Some(trace)) => {
                    let requests = read_trace(&folder.join(trace))?;
                    let lengths = self.cache.uncached(&requests);
                    let longest = lengths.iter().copied().max().unwrap_or(0);
                    let outputs: f64 = requests.iter().map(|r| f64::from(r.output_tokens)).sum();
                    let mean = outputs / requests.len() as f64;
                    let lengths = MeasuredLengths::new(lengths)
                        .map_err(|wrong| PlanError::value("trace", wrong.to_string()))?;
                    (Box::new(lengths), longest, Some(mean))
                }
                _ => {
                    let problem = "give either `lengths` or `trace`";
                    return Err(PlanError::value("lengths", problem));
                }
            };
        let output_tokens = self.output_tokens.or(traced).unwrap_or(0.0);
        if !(output_tokens > 0.0 && output_tokens <= 1e7) {
            let problem = "answers need a mean length, above 0 and up to 10000000 tokens";
            return Err(PlanError::value("output_tokens", problem));
        }
        Ok(Workload {
            lengths,
            output_tokens,
            grid: self.grid(longest)?,
        })
    }

    fn grid(&self, longest: u32) -> Result<SearchGrid, PlanError> {
        // Each threshold is tried with each split: more than this is more than a length can tell apart.
        const MOST: u32 = 100_000;
        let Some(GridText { from, to, step }) = self.thresholds else {
            return Ok(SearchGrid {
                from: Tokens(0),
                to: Tokens(longest),
                step: Tokens((longest / 1000).max(1)),
            });
        };
        if step == 0 || from > to || (to - from) / step > MOST {
            let problem = format!("from {from} to {to} by {step} is not 1 to {MOST} thresholds");
            return Err(PlanError::value("thresholds", problem));
        }
        Ok(SearchGrid {
            from: Tokens(from),
            to: Tokens(to),
            step: Tokens(step),
        })
    }
}

impl LogNormalText {
    fn lengths(self) -> Result<TruncatedLogNormal, PlanError> {
        TruncatedLogNormal::new(self.mu, self.sigma, Tokens(self.shortest), Tokens(self.longest))
            .map_err(|wrong| PlanError::value("lengths", wrong.to_string()))
    }
}

impl CacheText {
    /// The uncached length of each request: at least one token, since the last one is always computed.
    fn uncached(self, requests: &[SimRequest]) -> Vec<u32> {
        let mut seen = HashSet::new();
        let mut uncached = |request: &SimRequest| {
            let cached = request
                .blocks
                .iter()
                .take_while(|block| seen.contains(*block))
                .count();
            seen.extend(request.blocks.iter().copied());
            let cached = u32::try_from(cached)
                .unwrap_or(u32::MAX)
                .saturating_mul(MOONCAKE_BLOCK_TOKENS);
            request.prompt_tokens.saturating_sub(cached).max(1)
        };
        match self {
            Self::Nothing => requests.iter().map(|request| request.prompt_tokens).collect(),
            Self::Everything => requests.iter().map(&mut uncached).collect(),
        }
    }
}
