//! accept: parses, narrows and tokenises a request of an authenticated caller. Everything a client can get wrong is
//! found here, before anything is held for it.

mod fields;
mod generation;
mod headers;
mod hints;
mod lax;
mod messages;
mod narrow;
mod original;
mod prompt;
mod refused;
mod warm;

use crate::accepted::Accepted;
use crate::error::{ErrorKind, RequestError};
use crate::site::{ServedBy, ServedModel, Site};
use axum::http::HeaderMap;
use bytes::Bytes;
use fields::Fields;
use generation::Generation;
use hints::Hints;
use portolan_base::{ModelName, Moment, RequestId, TenantName};
use portolan_decide::{Manner, PrefillMode, RequestKind};
use portolan_policy::NameTables;
use portolan_ports::{Principal, Sampling, TenantRecord};
pub use prompt::Prompts;
use std::sync::Arc;
use std::time::Duration;
pub use warm::Warm;

/// Bodies above this are accepted off the serving threads: tokenising runs at some 5 MB/s, so that 32 KiB hold a
/// thread for about 6 ms, the length of one decode step.
pub const LONG_BODY_BYTES: usize = 32 << 10;

/// Most answers one request may ask for, over all its prompts: an eighth of the default limit on requests in flight.
const ANSWERS_MAX: usize = 64;

/// Which of the two inference doors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

impl Endpoint {
    /// Its path.
    const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completion => "/v1/completions",
        }
    }

    /// Tokens generated when the client names no bound: OpenAI's 16 for completions; enough for a paragraph in a chat.
    const fn default_max_tokens(self) -> u32 {
        match self {
            Self::Chat => 256,
            Self::Completion => 16,
        }
    }
}

/// How the answer is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// In one piece.
    Whole,
    /// As server-sent events.
    Stream,
    /// As server-sent events, the token counts last.
    StreamWithUsage,
}

/// What shape of answer the client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerOptions {
    /// Decides the shape.
    pub endpoint: Endpoint,
    /// Answers to each prompt, at least 1.
    pub choices: u32,
    /// How it is delivered.
    pub delivery: Delivery,
    /// Whether token ids are sent beside the text.
    pub return_token_ids: bool,
}

/// A request as it came through the door.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which door.
    pub endpoint: Endpoint,
    /// Whose key it was.
    pub principal: Principal,
    /// The HTTP headers.
    pub headers: HeaderMap,
    /// The HTTP body.
    pub body: Bytes,
    /// The id it gets when the client names none.
    pub id: RequestId,
    /// When it arrived.
    pub at: Moment,
}

/// What a client asked for in one HTTP request.
#[derive(Clone, Debug)]
pub struct Order {
    /// The id of the whole.
    pub id: RequestId,
    /// One request for each prompt and choice: that of choice `c` of prompt `p` is at `p * choices + c`. Not empty.
    pub requests: Vec<Accepted>,
    /// The shape of the answer.
    pub options: AnswerOptions,
}

/// Accepts a request, or says what is wrong with it.
///
/// Works for as long as parsing and tokenising take: above [`LONG_BODY_BYTES`], call it off the serving threads.
pub fn accept(site: &Site, call: &Call) -> Result<Order, RequestError> {
    let _span = tracing::info_span!("accept", request = %call.id).entered();
    let mut fields = Fields::parse(&call.body)?;
    let mut hints = Hints::take(&mut fields, &call.headers)?;
    let tenant = narrow::tenant(site, &call.principal, &hints)?;
    let (name, model) = served(site, &mut fields)?;
    let names = site.parts.fleet.names();
    let warm = what_is_warm(site, &mut hints, (&tenant.name, &name), &names, call.at)?;
    let tenant = narrow::narrow(tenant, &names, &hints)?;
    if hints.life.is_some() {
        let text = "portolan.ttl_s is for /v1/portolan/prewarm, which says how long a prompt is kept";
        return Err(RequestError::bad_field("portolan.ttl_s", text));
    }
    let id = hints.request_id.clone().unwrap_or_else(|| call.id.clone());
    let salt = fields.text("cache_salt", hints::TEXT_MAX_BYTES)?;
    let salt = salt.or_else(|| warm.as_ref()?.salt());
    let draft = Draft {
        id,
        at: call.at,
        tenant,
        model: name,
        hints,
        endpoint: call.endpoint,
        salt,
        warm,
    };
    if model.served == ServedBy::Pieces {
        return draft.computed(site, call, fields, model);
    }
    draft.passed(site, call, &fields, model)
}

impl Draft {
    /// An order for engines that take prompts: the gateway writes the answer.
    fn computed(
        self,
        site: &Site,
        call: &Call,
        mut fields: Fields<'_>,
        model: &ServedModel,
    ) -> Result<Order, RequestError> {
        refused::check(&mut fields)?;
        let generation = Generation::take(&mut fields, call.endpoint, site.parts.random.as_ref())?;
        let prompts = Prompts::take(&mut fields, call.endpoint)?;
        let prompts = behind(self.warm.as_ref(), prompts)?;
        let prompts = prompts.tokenise(model, &self.tenant.name, call.at)?;
        generation.check_tokens(model.description.vocabulary)?;
        fits_at_once(site, prompts.len(), generation.options.choices)?;
        let requests = self.requests(&generation, &prompts, model.description.context_tokens.0)?;
        Ok(Order {
            id: self.id,
            requests,
            options: generation.options,
        })
    }

    /// An order that an engine may answer whole. One that asks for no more than the gateway can write itself may go to
    /// either kind; where only one kind serves the model, or only that understands what is asked, to that.
    fn passed(
        self,
        site: &Site,
        call: &Call,
        fields: &Fields<'_>,
        model: &ServedModel,
    ) -> Result<Order, RequestError> {
        if self.warm.is_some() {
            // What is put before the prompt is put there by the gateway.
            return match model.served {
                ServedBy::Whole => Err(RequestError::bad_field(
                    "portolan.cache_id",
                    "no engine that serves this model here takes a prompt that was computed ahead",
                )),
                ServedBy::Pieces | ServedBy::Both => self.computed(site, call, fields.clone(), model),
            };
        }
        let outline = original::outline(fields.clone(), call.endpoint, model, (&self.tenant.name, call.at));
        if outline.answers > ANSWERS_MAX {
            let message = format!(
                "{} answers are asked for, at most {ANSWERS_MAX} are given at once",
                outline.answers
            );
            return Err(RequestError::bad_field("n", message));
        }
        let kept = original::keep(call, &outline);
        if model.served == ServedBy::Both
            && let Ok(mut order) = self.clone().computed(site, call, fields.clone(), model)
            && let [request] = order.requests.as_mut_slice()
        {
            request.manner = Manner::Either;
            request.original = Some(kept);
            return Ok(order);
        }
        let request = Accepted {
            manner: Manner::Whole,
            original: Some(kept),
            ..self.request(
                self.id.clone(),
                &outline.prompt,
                outline.max_tokens,
                Drawn::by_the_engine(),
            )
        };
        Ok(Order {
            id: self.id,
            requests: vec![request],
            options: AnswerOptions {
                endpoint: call.endpoint,
                choices: 1,
                delivery: outline.delivery,
                return_token_ids: false,
            },
        })
    }
}

/// A prompt to be computed ahead of its request.
#[derive(Debug)]
pub struct WarmOrder {
    /// What is computed.
    pub request: Accepted,
    /// The prompt as it was sent, and under what.
    pub content: Warm,
    /// How long it is to be known.
    pub life: Option<Duration>,
}

/// Accepts a prompt that is to be computed ahead of its request: one, in the shape of either inference door. It is computed
/// at this site.
pub fn accept_prewarm(site: &Site, call: &Call) -> Result<WarmOrder, RequestError> {
    let _span = tracing::info_span!("accept", request = %call.id).entered();
    let mut fields = Fields::parse(&call.body)?;
    let mut hints = Hints::take(&mut fields, &call.headers)?;
    let tenant = narrow::tenant(site, &call.principal, &hints)?;
    let (name, model) = served(site, &mut fields)?;
    let names = site.parts.fleet.names();
    let warm = what_is_warm(site, &mut hints, (&tenant.name, &name), &names, call.at)?;
    let tenant = narrow::narrow(tenant, &names, &hints)?;
    refused::check(&mut fields)?;
    let salt = fields.text("cache_salt", hints::TEXT_MAX_BYTES)?;
    let salt = salt.or_else(|| warm.as_ref()?.salt());
    let generation = Generation::take(&mut fields, call.endpoint, site.parts.random.as_ref())?;
    let generation = generation.without_answer(call.endpoint);
    if model.served == ServedBy::Whole {
        let text = "no engine that serves this model here computes a prompt ahead of its request";
        return Err(RequestError::bad_field("model", text));
    }
    if !matches!(hints.prefill_mode, PrefillMode::Auto | PrefillMode::LocalOnly) {
        let text = "a prompt is computed ahead at the site that is asked: leave it out, or say local_only";
        return Err(RequestError::bad_field("prefill_policy", text));
    }
    let content = behind(warm.as_ref(), Prompts::take(&mut fields, call.endpoint)?)?;
    let prompts = content.clone().tokenise(model, &tenant.name, call.at)?;
    let life = hints.life;
    let id = hints.request_id.clone().unwrap_or_else(|| call.id.clone());
    let hints = Hints {
        kind: RequestKind::Prewarm,
        prefill_mode: PrefillMode::LocalOnly,
        ..hints
    };
    let draft = Draft {
        id,
        at: call.at,
        tenant,
        model: name,
        hints,
        endpoint: call.endpoint,
        salt,
        warm,
    };
    let mut requests = draft.requests(&generation, &prompts, model.description.context_tokens.0)?;
    match (requests.pop(), requests.is_empty()) {
        (Some(request), true) => Ok(WarmOrder {
            content: Warm::of(content, &request),
            request,
            life,
        }),
        _ => Err(RequestError::bad_field(
            "prompt",
            "one prompt is computed ahead at a time",
        )),
    }
}

/// Whether the answers of one request can be under way together. If not, trying again would never help.
fn fits_at_once(site: &Site, prompts: usize, choices: u32) -> Result<(), RequestError> {
    let answers = prompts.saturating_mul(choices as usize);
    let limits = &site.parts.limits;
    let most = limits.tenant_in_flight.min(limits.in_flight);
    // One alone is turned away by admit, which says when to come back.
    if answers <= most.max(1) {
        return Ok(());
    }
    let field = if prompts > most.max(1) { "prompt" } else { "n" };
    let message = format!(
        "{prompts} prompts × {choices} choices are {answers} answers; a tenant may have {most} under way at once"
    );
    Err(RequestError::bad_field(field, message))
}

/// The prompt that a request's `portolan.cache_id` names, to which the request is bound from here on.
fn what_is_warm(
    site: &Site,
    hints: &mut Hints,
    (tenant, model): (&TenantName, &ModelName),
    names: &NameTables,
    now: Moment,
) -> Result<Option<Warm>, RequestError> {
    let Some(id) = &hints.cache_id else {
        return Ok(None);
    };
    let warm = site.prewarmed.of(id, tenant, model, now)?;
    warm.bind(hints, names)?;
    Ok(Some(warm))
}

/// The prompts, behind the one that was computed ahead.
fn behind(warm: Option<&Warm>, prompts: Prompts) -> Result<Prompts, RequestError> {
    match warm {
        None => Ok(prompts),
        Some(warm) => warm.prompts.clone().followed_by(prompts),
    }
}

fn served<'s>(site: &'s Site, fields: &mut Fields<'_>) -> Result<(ModelName, &'s ServedModel), RequestError> {
    let asked = fields.text("model", hints::TEXT_MAX_BYTES)?;
    let models = &site.parts.models;
    let known = || {
        models
            .keys()
            .map(ModelName::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let Some(asked) = asked else {
        return Err(RequestError::bad_field(
            "model",
            format!("model is missing; use one of {}", known()),
        ));
    };
    models
        .iter()
        .find(|(name, _)| name.as_str() == asked)
        .map(|(name, model)| (name.clone(), model))
        .ok_or_else(|| {
            let message = format!(
                "The model `{asked}` does not exist. Available models: {}.",
                known()
            );
            RequestError {
                param: Some("model".to_owned()),
                ..RequestError::new(ErrorKind::NotFound, message)
            }
            .with_code("model_not_found")
        })
}

/// Everything the requests of one order have in common.
#[derive(Clone)]
struct Draft {
    id: RequestId,
    at: Moment,
    tenant: TenantRecord,
    model: ModelName,
    hints: Hints,
    endpoint: Endpoint,
    /// The client's own.
    salt: Option<String>,
    /// What its prompt begins with.
    warm: Option<Warm>,
}

/// How the tokens of one answer are drawn.
struct Drawn {
    sampling: Sampling,
    stop: Vec<String>,
    stop_token_ids: Vec<u32>,
    ignore_eos: bool,
}

impl Drawn {
    fn of(generation: &Generation, choice: u32) -> Self {
        let mut sampling = generation.sampling.clone();
        // Choices of one prompt differ, and the same seed gives the same choices again.
        sampling.seed = sampling.seed.wrapping_add(u64::from(choice));
        Self {
            sampling,
            stop: generation.stop.clone(),
            stop_token_ids: generation.stop_token_ids.clone(),
            ignore_eos: generation.ignore_eos,
        }
    }

    /// By an engine that reads the request itself.
    fn by_the_engine() -> Self {
        Self {
            sampling: Sampling::GREEDY,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
        }
    }
}

impl Draft {
    fn requests(
        &self,
        generation: &Generation,
        prompts: &[Arc<[u32]>],
        context: u32,
    ) -> Result<Vec<Accepted>, RequestError> {
        let choices = generation.options.choices;
        let answers = prompts.len() * choices as usize;
        if answers > ANSWERS_MAX {
            let message = format!(
                "{} prompts × {choices} choices are {answers} answers, at most {ANSWERS_MAX} are given at once",
                prompts.len()
            );
            return Err(RequestError::bad_field("n", message));
        }
        let mut requests = Vec::with_capacity(answers);
        for prompt in prompts {
            let length = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
            let max_tokens = generation.limit.resolve(length, context)?;
            generation.check_least(max_tokens)?;
            for choice in 0..choices {
                let id = self.id_of(requests.len(), answers)?;
                requests.push(self.request(id, prompt, max_tokens, Drawn::of(generation, choice)));
            }
        }
        Ok(requests)
    }

    fn id_of(&self, position: usize, answers: usize) -> Result<RequestId, RequestError> {
        if answers == 1 {
            return Ok(self.id.clone());
        }
        RequestId::from_client(&format!("{}-{}", self.id, position + 1)).ok_or_else(|| {
            let message =
                "request_id is too long for a request of several answers, each of which adds a number to it";
            RequestError::bad_field("request_id", message)
        })
    }

    fn request(&self, id: RequestId, prompt: &Arc<[u32]>, max_tokens: u32, drawn: Drawn) -> Accepted {
        Accepted {
            id,
            trace_id: self.hints.trace_id.clone(),
            at: self.at,
            tenant: self.tenant.clone(),
            model: self.model.clone(),
            prompt: Arc::clone(prompt),
            max_tokens,
            sampling: drawn.sampling,
            stop: drawn.stop,
            stop_token_ids: drawn.stop_token_ids,
            ignore_eos: drawn.ignore_eos,
            session: self.hints.session.clone(),
            user: self.hints.user.clone(),
            path: self.endpoint.path(),
            kind: self.hints.kind,
            prefill_mode: self.hints.prefill_mode,
            priority: self.hints.priority,
            ttft_slo_ms: self.hints.ttft_slo_ms,
            labels: self.hints.labels.clone(),
            dependencies: self.hints.dependencies.clone(),
            cache_salt: self.salt.clone(),
            manner: Manner::Pieces,
            original: None,
        }
    }
}
