//! Refuses jobs that cannot be done, before they wait.

use super::Shared;
use crate::BLOCK_TOKENS;
use crate::load::LoadedModel;
use portolan_base::kv::KvLayout;
use portolan_ports::{DecodeJob, EngineError, PrefillJob, Role, Sampling};

/// Checks that `prompt` and `max_tokens` more fit the model.
pub(crate) fn check_prompt(model: &LoadedModel, prompt: &[u32], max_tokens: u32) -> Result<(), EngineError> {
    let (vocabulary, context) = (model.vocabulary(), model.context_tokens().0);
    if prompt.is_empty() {
        return bad("the prompt is empty; at least one token is needed".to_owned());
    }
    if let Some((at, token)) = prompt.iter().enumerate().find(|(_, token)| **token >= vocabulary) {
        return bad(format!(
            "token {token} at position {at} is not below the vocabulary's {vocabulary}"
        ));
    }
    if max_tokens == 0 {
        return bad("max_tokens is 0; at least 1 is needed".to_owned());
    }
    let wanted = prompt.len() as u64 + u64::from(max_tokens);
    if wanted > u64::from(context) {
        let prompt = prompt.len();
        return bad(format!(
            "{prompt} prompt tokens and {max_tokens} more make {wanted}, the context holds {context}"
        ));
    }
    Ok(())
}

pub(super) fn check_prefill(shared: &Shared, job: &PrefillJob) -> Result<(), EngineError> {
    check_role(shared, Role::prefills, "prefill")?;
    // One more: the prompt's last token, which is not prefilled but must fit.
    check_prompt(&shared.model, &job.tokens, 1)?;
    let tokens = job.tokens.len();
    if !job.held.is_multiple_of(BLOCK_TOKENS) || job.held as usize > tokens {
        return bad(format!(
            "held is {}; it must be a multiple of {BLOCK_TOKENS} and at most the {tokens} tokens",
            job.held
        ));
    }
    Ok(())
}

/// Whether one more prefill may wait, where there is a bound.
pub(super) fn check_queue(shared: &Shared, most: Option<u32>) -> Result<(), EngineError> {
    let queued = shared.meter.load().prefill_queued_requests;
    match most {
        Some(most) if queued >= most => Err(EngineError::Full(format!(
            "{queued} prompts wait for instance {}, and {most} may",
            shared.description.instance
        ))),
        _ => Ok(()),
    }
}

pub(super) fn check_decode(shared: &Shared, job: &DecodeJob) -> Result<(), EngineError> {
    check_role(shared, Role::decodes, "decode")?;
    check_prompt(&shared.model, &job.prompt, job.max_tokens)?;
    check_sampling(&job.sampling, shared.description.vocabulary)?;
    check_layout(job.kv.layout(), &shared.description.layout)?;
    let (has, needs) = (job.kv.tokens() as usize, job.prompt.len() - 1);
    if has != needs {
        return bad(format!(
            "the KV covers {has} tokens; a prompt of {} needs {needs}",
            job.prompt.len()
        ));
    }
    Ok(())
}

fn check_sampling(sampling: &Sampling, vocabulary: u32) -> Result<(), EngineError> {
    if !(sampling.temperature >= 0.0 && sampling.temperature.is_finite()) {
        return bad(format!(
            "temperature is {}; it must be 0 or a positive number",
            sampling.temperature
        ));
    }
    if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
        return bad(format!(
            "top_p is {}; it must be above 0 and at most 1",
            sampling.top_p
        ));
    }
    if !(0.0..=1.0).contains(&sampling.min_p) {
        return bad(format!("min_p is {}; it must be from 0 to 1", sampling.min_p));
    }
    let (presence, frequency) = (sampling.presence_penalty, sampling.frequency_penalty);
    if !(presence.is_finite() && frequency.is_finite()) {
        return bad(format!(
            "presence_penalty is {presence}, frequency_penalty {frequency}; both must be numbers"
        ));
    }
    if !(sampling.repetition_penalty > 0.0 && sampling.repetition_penalty.is_finite()) {
        return bad(format!(
            "repetition_penalty is {}; it must be a positive number",
            sampling.repetition_penalty
        ));
    }
    let unusable = |(token, bias): &&(u32, f32)| *token >= vocabulary || !bias.is_finite();
    if let Some((token, bias)) = sampling.logit_bias.iter().find(unusable) {
        return bad(format!(
            "logit_bias gives token {token} a bias of {bias}; tokens are below {vocabulary}, biases are numbers"
        ));
    }
    Ok(())
}

fn check_role(shared: &Shared, may: fn(Role) -> bool, what: &str) -> Result<(), EngineError> {
    let description = &shared.description;
    if may(description.role) {
        return Ok(());
    }
    bad(format!(
        "instance {} does not {what}; its role is {:?}",
        description.instance, description.role
    ))
}

fn check_layout(theirs: &KvLayout, ours: &KvLayout) -> Result<(), EngineError> {
    if theirs == ours {
        return Ok(());
    }
    let tell = |layout: &KvLayout| {
        let KvLayout {
            model,
            model_version,
            dtype,
            block_tokens,
            window,
            layers,
        } = layout;
        let window = match window {
            Some(window) => format!(
                "a window of {} tokens and {} first ones",
                window.tokens, window.sinks
            ),
            None => "no window".to_owned(),
        };
        format!(
            "{model} version {model_version}, {} layers, {dtype:?}, blocks of {block_tokens}, {window}",
            layers.len()
        )
    };
    bad(format!(
        "the KV is of {}; this instance runs {}; layers may differ in shape too",
        tell(theirs),
        tell(ours)
    ))
}

fn bad(reason: String) -> Result<(), EngineError> {
    Err(EngineError::BadJob(reason))
}
