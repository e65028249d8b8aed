//! `portolan kv quality`: perplexity and greedy agreement of a model that goes on from KV of several kinds.

use crate::command::output::{Failure, json, line};
use clap::Args;
use portolan_base::Tokens;
use portolan_engine::{KvMode, QualityReport, load_model, quality};
use serde::Serialize;
use std::path::PathBuf;

/// Options of `kv quality`.
#[derive(Debug, Args)]
pub struct QualityArgs {
    /// A model folder, or a .gguf file.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The text to be read.
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Kinds of KV beside the exact one: bf16, int8, int4, window:TOKENS or window:TOKENS+SINKS.
    #[arg(long = "kv", value_name = "KIND", value_delimiter = ',', default_values = ["bf16", "int8", "int4"])]
    pub kinds: Vec<KvMode>,
    /// Tokens of an excerpt; the first half is the prompt whose KV it is about.
    #[arg(long, default_value_t = 1024, value_name = "TOKENS")]
    pub context: u32,
    /// Read this many tokens of the text at most.
    #[arg(long, value_name = "TOKENS")]
    pub limit: Option<usize>,
}

#[derive(Serialize)]
struct Report {
    model: String,
    text: String,
    #[serde(flatten)]
    quality: QualityReport,
}

pub(super) fn run(args: &QualityArgs, as_json: bool) -> Result<(), Failure> {
    let model = load_model(&args.model).map_err(Failure::new)?;
    let text = std::fs::read_to_string(&args.text)
        .map_err(|e| Failure::new(format!("{}: {e}", args.text.display())))?;
    let mut tokens = model.text().encode(&text, true).map_err(Failure::new)?;
    tokens.truncate(args.limit.unwrap_or(usize::MAX));
    // A text or a model shorter than the usual excerpt is one excerpt.
    let context = Tokens(args.context).min(model.context_tokens());
    let quality = quality(&model, &tokens, context, &args.kinds).map_err(Failure::new)?;
    if as_json {
        return json(&Report {
            model: args.model.display().to_string(),
            text: args.text.display().to_string(),
            quality,
        });
    }
    describe(&quality).iter().for_each(line);
    Ok(())
}

fn describe(report: &QualityReport) -> Vec<String> {
    let mut out = vec![
        format!(
            "{} tokens scored after {} tokens of prompt, in excerpts of {}",
            report.scored_tokens, report.prompt_tokens, report.context_tokens
        ),
        format!(
            "{:<14}{:>12}{:>10}{:>12}{:>12}{:>18}",
            "kv", "B a token", "of f32", "perplexity", "agreement", "first divergence"
        ),
    ];
    let exact = report
        .modes
        .first()
        .map_or(1.0, |row| row.bytes_per_token.max(1.0));
    for row in &report.modes {
        let diverged = match row.first_divergence {
            Some(at) => format!("after {at}"),
            None => "never".to_owned(),
        };
        out.push(format!(
            "{:<14}{:>12.0}{:>9.1}%{:>12.4}{:>11.2}%{diverged:>18}",
            row.kv,
            row.bytes_per_token,
            100.0 * row.bytes_per_token / exact,
            row.perplexity,
            100.0 * row.agreement
        ));
    }
    out
}
