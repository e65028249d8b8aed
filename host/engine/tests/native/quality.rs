//! The quality report: exact KV is exact, coarser KV costs more, and a window that holds everything costs nothing.

use crate::support::{MODELS, load, prompt};
use portolan_base::Tokens;
use portolan_engine::{KvMode, QualityReport, quality};
use portolan_ports::EngineError;

fn report(name: &str, text: &[u32], modes: &[&str]) -> QualityReport {
    let modes: Vec<KvMode> = modes.iter().map(|mode| mode.parse().unwrap()).collect();
    quality(&load(name), text, Tokens(256), &modes).unwrap()
}

#[test]
fn each_kind_of_kv_is_compared_with_the_exact_one() {
    let text = prompt(600);
    for name in MODELS {
        let report = report(
            name,
            &text,
            &["f32", "bf16", "int8", "int4", "window:256+0", "window:64+1"],
        );
        // 256, 256 and 88 tokens; the last is too short to be read.
        assert_eq!(
            (report.prompt_tokens, report.scored_tokens),
            (256, 2 * 127),
            "{name}"
        );
        let row = |kv: &str| report.modes.iter().find(|row| row.kv == kv).unwrap();
        let exact = &report.modes[0];
        assert_eq!(
            (exact.kv.as_str(), exact.agreement, exact.first_divergence),
            ("f32", 1.0, None)
        );
        assert_eq!(&report.modes[1], exact, "{name}: carried as it is");
        let wide = row("window:256+0");
        assert_eq!(
            (wide.perplexity, wide.agreement),
            (exact.perplexity, 1.0),
            "{name}: it holds all"
        );
        assert!(row("window:64+1").perplexity != exact.perplexity, "{name}");
        let off = |kv: &str| (row(kv).perplexity / exact.perplexity - 1.0).abs();
        println!("{name}: {:?}", report.modes);
        assert!(
            off("bf16") < 1e-3 && off("int8") < 5e-3 && off("int4") < 5e-2,
            "{name}"
        );
        assert!(row("int8").agreement >= 0.97, "{name}");
        let share = |kv: &str| row(kv).bytes_per_token / exact.bytes_per_token;
        assert_eq!(share("bf16"), 0.5);
        // A scale and an offset for each head: heads of 16 pay twice what heads of 32 do.
        assert!(share("int8") < 0.29 && share("int4") < 0.18, "{name}");
        // Of 128 tokens, block 64..128 and the first one are kept: with two blocks that is all; the rest of the report
        // is in the answer.
        assert!(share("window:64+1") <= 1.0);
    }
}

#[test]
fn what_cannot_be_read_is_refused() {
    let model = load("tiny-qwen3");
    let why = |text: &[u32], context| match quality(&model, text, Tokens(context), &[]) {
        Err(EngineError::BadJob(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(why(&prompt(600), 100).contains("from 128 to"));
    assert!(why(&prompt(600), 1 << 20).contains("from 128 to"));
    assert!(why(&prompt(127), 256).contains("at least 128 are needed"));
    assert!(why(&[1 << 20; 300], 256).contains("not below the vocabulary"));
}
