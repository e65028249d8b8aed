//! How fast a model prefills and decodes on this machine:
//!
//! ```text
//! cargo run -p portolan-engine --example speed -- model.gguf 300 64
//! ```
#![allow(clippy::print_stdout, reason = "the numbers are the program's output")]

use portolan_engine::{generate, load_model};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: speed MODEL [PROMPT_TOKENS] [ANSWER_TOKENS]")?;
    let prompt_tokens: u32 = arguments.next().map_or(Ok(300), |text| text.parse())?;
    let answer_tokens: u32 = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let model = load_model(Path::new(&path))?;
    let prompt: Vec<u32> = (0..prompt_tokens)
        .map(|i| (i * 7919 + 11) % model.vocabulary())
        .collect();
    let generated = generate(&model, &prompt, answer_tokens, &mut |_| {})?;
    let (prefill, decode) = (generated.prefill.as_secs_f64(), generated.decode.as_secs_f64());
    let count = generated.tokens.len();
    println!(
        "prefill {prompt_tokens} tokens: {prefill:.2} s, {:.0} tokens/s",
        f64::from(prompt_tokens) / prefill
    );
    println!(
        "decode {count} tokens: {decode:.2} s, {:.1} tokens/s",
        count as f64 / decode
    );
    Ok(())
}
