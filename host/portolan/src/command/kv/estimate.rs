//! `portolan kv estimate`: how large the KV of a prompt is, and which link it needs.

use crate::command::output::{Failure, json, line};
use crate::kv::{Estimate, Request, estimate};
use clap::Args;
use portolan_base::Tokens;
use std::time::Duration;

/// Options of `kv estimate`.
#[derive(Debug, Args)]
pub struct EstimateArgs {
    /// A model folder with config.json, a .gguf file, or the name of a known model.
    #[arg(long, value_name = "DIR|NAME")]
    pub model: String,
    /// Length of the prompt.
    #[arg(long)]
    pub tokens: u32,
    /// Sequences.
    #[arg(long, default_value_t = 1)]
    pub batch: u32,
    /// Bits of one number: 32, 16, 8 or 4; the model's own when left out.
    #[arg(long)]
    pub bits: Option<u32>,
    /// How long the prefill of this prompt takes, for the link; published times are used when left out.
    #[arg(long, value_name = "MS")]
    pub prefill_ms: Option<u64>,
}

pub(super) fn run(args: EstimateArgs, as_json: bool) -> Result<(), Failure> {
    let request = Request {
        model: args.model,
        tokens: Tokens(args.tokens),
        batch: args.batch,
        bits: args.bits,
        prefill: args.prefill_ms.map(Duration::from_millis),
    };
    let answer = estimate(&request).map_err(|e| Failure::new(e).as_json(as_json))?;
    if as_json {
        return json(&answer);
    }
    describe(&request, &answer).iter().for_each(line);
    Ok(())
}

fn describe(request: &Request, answer: &Estimate) -> Vec<String> {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let of = match request.batch {
        1 => format!("{} tokens", request.tokens.0),
        batch => format!("{batch} sequences of {} tokens", request.tokens.0),
    };
    let mut out = vec![
        format!("kv      {} for {of}", mib(answer.bytes)),
        format!(
            "        a sequence: {} fixed, {} B a token",
            mib(answer.fixed_bytes),
            answer.bytes_per_token
        ),
    ];
    out.push(
        match (answer.gbps_for_prefill, answer.prefill_s, &answer.prefill_source) {
            (Some(gbps), Some(seconds), Some(source)) => {
                format!(
                    "link    {gbps:.2} Gbit/s for one prefill instance ({seconds:.2} s a prefill, {source})"
                )
            }
            _ => "link    not known without a prefill time; give --prefill-ms".to_owned(),
        },
    );
    out
}
