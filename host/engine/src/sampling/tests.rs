//! Each way to sample against a plain calculation.

use super::*;

fn draws(sampling: &Sampling, logits: &[f32]) -> Vec<u32> {
    // A new sampler for each draw, so that no draw changes the next one's logits.
    (0..2000)
        .filter_map(|seed| {
            let sampling = Sampling {
                seed,
                ..sampling.clone()
            };
            Sampler::new(sampling, &[])
                .draw(logits, &[])
                .map(|drawn| drawn.token)
        })
        .collect()
}

fn warm() -> Sampling {
    Sampling {
        temperature: 1.0,
        seed: 5,
        ..Sampling::GREEDY
    }
}

fn token(sampling: Sampling, prompt: &[u32], logits: &[f32]) -> Option<u32> {
    Sampler::new(sampling, prompt)
        .draw(logits, &[])
        .map(|drawn| drawn.token)
}

#[test]
fn greedy_takes_the_first_of_equals_and_no_nan() {
    assert_eq!(token(Sampling::GREEDY, &[], &[1.0, 3.0, 3.0, f32::NAN]), Some(1));
    assert_eq!(token(Sampling::GREEDY, &[], &[f32::NAN]), None);
    assert_eq!(token(warm(), &[], &[f32::NAN]), None);
}

#[test]
fn draws_follow_the_probabilities_and_repeat_with_the_seed() {
    let logits = [0.0, 4.0f32.ln(), f32::NEG_INFINITY];
    let drawn = draws(&warm(), &logits);
    assert_eq!(drawn, draws(&warm(), &logits));
    let ones = drawn.iter().filter(|t| **t == 1).count();
    assert!(
        (1500..1700).contains(&ones),
        "4 in 5 expected, {ones} in 2000 drawn"
    );
    assert!(!drawn.contains(&2));
    let run = |seed| {
        let mut sampler = Sampler::new(Sampling { seed, ..warm() }, &[]);
        let flat = [0.0; 100];
        let draw = |_| sampler.draw(&flat, &[]).map(|drawn| drawn.token);
        (0..20).map(draw).collect::<Vec<_>>()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

/// Which tokens are drawn at all.
fn kept(sampling: &Sampling, logits: &[f32]) -> Vec<u32> {
    let mut tokens = draws(sampling, logits);
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

#[test]
fn top_k_top_p_and_min_p_leave_only_the_likeliest() {
    // Probabilities 0.087, 0.644, 0.237, 0.032.
    let logits = [1.0, 3.0, 2.0, 0.0];
    let with = |change: fn(&mut Sampling)| {
        let mut sampling = warm();
        change(&mut sampling);
        kept(&sampling, &logits)
    };
    assert_eq!(with(|_| ()), [0, 1, 2, 3]);
    assert_eq!(with(|s| s.top_k = 1), [1]);
    assert_eq!(with(|s| s.top_k = 2), [1, 2]);
    assert_eq!(with(|s| s.top_p = 0.1), [1]);
    assert_eq!(with(|s| s.top_p = 0.65), [1, 2]);
    assert_eq!(with(|s| s.top_p = 0.9), [0, 1, 2]);
    // Shares of the likeliest: 0.135, 1, 0.368, 0.050.
    assert_eq!(with(|s| s.min_p = 0.3), [1, 2]);
    assert_eq!(with(|s| s.min_p = 0.1), [0, 1, 2]);
    // The temperature comes first: at 4 the shares are 0.61, 1, 0.78, 0.47.
    let hot = |s: &mut Sampling| (s.min_p, s.temperature) = (0.5, 4.0);
    assert_eq!(with(hot), [0, 1, 2]);
}

#[test]
fn a_share_of_a_large_vocabulary_is_found_as_by_sorting_all_of_it() {
    let logits: Vec<f32> = (0..5000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 1000.0)
        .collect();
    for mass in [0.05, 0.3, 0.7, 0.95] {
        let mut found = Candidates::of(&logits, 1.0).unwrap();
        found.keep_mass(mass);
        let mut plain: Vec<(usize, f64)> = logits.iter().map(|l| f64::from(*l).exp()).enumerate().collect();
        plain.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let all: f64 = plain.iter().map(|(_, p)| p).sum();
        let mut reached = 0.0;
        let count = plain.iter().position(|(_, p)| {
            reached += p;
            reached >= f64::from(mass) * all
        });
        let kept = found.into_likeliest().count();
        let expected = count.unwrap() + 1;
        assert!(
            kept.abs_diff(expected) <= 1,
            "{mass}: {kept} kept, {expected} expected"
        );
    }
}

#[test]
fn penalties_count_what_the_answer_and_the_prompt_hold() {
    let logits = [2.0, 1.9, -1.0];
    let greedy = |change: fn(&mut Sampling), prompt: &[u32], steps: usize| {
        let mut sampling = Sampling::GREEDY;
        change(&mut sampling);
        let mut sampler = Sampler::new(sampling, prompt);
        let draw = |_| sampler.draw(&logits, &[]).map(|drawn| drawn.token);
        (0..steps).filter_map(draw).collect::<Vec<_>>()
    };
    // 2.0 and 1.9, once each is there: 1.8 and 1.7.
    assert_eq!(greedy(|s| s.presence_penalty = 0.2, &[], 4), [0, 1, 0, 0]);
    // 2.0, 1.9; 1.8, 1.9; 1.8, 1.7; 1.6, 1.7.
    assert_eq!(greedy(|s| s.frequency_penalty = 0.2, &[], 4), [0, 1, 0, 1]);
    // A prompt's token counts, and only here: 2.0 / 1.25 is 1.6.
    assert_eq!(greedy(|s| s.repetition_penalty = 1.25, &[0], 1), [1]);
    assert_eq!(greedy(|s| s.presence_penalty = 2.0, &[0], 1), [0]);
    // A negative logit is multiplied: the others fall to 0.2 and 0.19, the last to -10.
    assert_eq!(greedy(|s| s.repetition_penalty = 10.0, &[0, 1, 2], 1), [0]);
}

#[test]
fn a_bias_moves_a_token_and_an_answer_does_not_end_before_its_least_length() {
    let logits = [1.0, 3.0, 2.0];
    let biased = |bias: &[(u32, f32)]| Sampling {
        logit_bias: bias.to_vec(),
        ..Sampling::GREEDY
    };
    assert_eq!(token(biased(&[(0, 5.0)]), &[], &logits), Some(0));
    assert_eq!(token(biased(&[(1, -100.0), (9, 1.0)]), &[], &logits), Some(2));
    let sampling = Sampling {
        min_tokens: 2,
        ..Sampling::GREEDY
    };
    let mut sampler = Sampler::new(sampling, &[]);
    let mut draw = || sampler.draw(&logits, &[1]).map(|drawn| drawn.token);
    assert_eq!((draw(), draw(), draw()), (Some(2), Some(2), Some(1)));
}

#[test]
fn logprobs_are_the_models_own_whatever_was_changed() {
    let logits = [1.0f32, 3.0, 2.0, f32::NAN];
    let sampling = Sampling {
        logit_bias: vec![(0, 50.0)],
        logprobs: Some(2),
        ..Sampling::GREEDY
    };
    let drawn = Sampler::new(sampling, &[]).draw(&logits, &[]).unwrap();
    let all: f32 = [1.0f32, 3.0, 2.0].iter().map(|l| l.exp()).sum::<f32>().ln();
    let told = drawn.logprobs.unwrap();
    assert_eq!(drawn.token, 0);
    assert!((told.drawn - (1.0 - all)).abs() < 1e-6);
    let tokens: Vec<u32> = told.likeliest.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, [1, 2]);
    assert!((told.likeliest[0].1 - (3.0 - all)).abs() < 1e-6);
}
