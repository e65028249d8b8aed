//! What a client may say beyond OpenAI's fields: the extras at the top of the body, the `portolan` object, and the
//! same as `x-portolan-*` headers for clients that cannot change the body. None of it reaches an engine.

use super::fields::Fields;
use super::headers::HeaderHints;
use crate::error::RequestError;
use crate::prewarmed::LONGEST_LIFE;
use axum::http::HeaderMap;
use portolan_base::RequestId;
use portolan_decide::{PrefillMode, RequestKind};
use portolan_policy::Dependency;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

/// Longest session, trace id or label value in bytes: holds a UUID, a URL or a W3C trace parent several times over.
pub(super) const TEXT_MAX_BYTES: usize = 512;

/// Most labels of one request: a policy looks them up by name, and each is a line in the path record.
const LABELS_MAX: usize = 32;

/// Longest label name in bytes, as for every other name.
const LABEL_NAME_MAX_BYTES: usize = 63;

/// Most dependencies of one request: a prompt assembled from more documents does not fit the contexts served here.
const DEPENDENCIES_MAX: usize = 64;

/// The fields of the `portolan` object.
const KNOWN: &str = "session, user_class, priority, ttft_slo_ms, batch, jurisdiction, labels, dependencies, \
                     cache_id, ttl_s";

/// What the client said.
#[derive(Clone, Debug)]
pub(super) struct Hints {
    pub(super) request_id: Option<RequestId>,
    pub(super) tenant: Option<String>,
    pub(super) trace_id: Option<String>,
    pub(super) prefill_mode: PrefillMode,
    pub(super) session: Option<String>,
    /// The end user: only told apart from others.
    pub(super) user: Option<String>,
    pub(super) user_class: Option<String>,
    pub(super) priority: u32,
    pub(super) ttft_slo_ms: u32,
    pub(super) kind: RequestKind,
    pub(super) jurisdiction: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) dependencies: Vec<Dependency>,
    /// A prompt that was computed ahead, before this one.
    pub(super) cache_id: Option<String>,
    /// How long a prompt that is computed ahead is to be known.
    pub(super) life: Option<Duration>,
}

impl Hints {
    pub(super) fn take(fields: &mut Fields<'_>, headers: &HeaderMap) -> Result<Self, RequestError> {
        let header = HeaderHints::read(headers)?;
        let request_id = fields.text("request_id", usize::MAX)?;
        let request_id = agree("request_id", request_id, header.request_id)?
            .map(|id| request_id_of(&id))
            .transpose()?;
        let tenant = fields.text("tenant_id", TEXT_MAX_BYTES)?;
        let trace_id = fields.text("trace_id", TEXT_MAX_BYTES)?;
        let prefill_mode = prefill_mode(fields)?;
        let user = user(fields)?;
        let mut inner = fields.object("portolan", "portolan.")?;
        let bound = 0..=i64::from(u32::MAX);
        let priority = inner
            .integer("priority", bound.clone())?
            .and_then(|n| u32::try_from(n).ok());
        let ttft_slo_ms = inner
            .integer("ttft_slo_ms", bound)?
            .and_then(|n| u32::try_from(n).ok());
        let (session, class) = (
            inner.text("session", TEXT_MAX_BYTES)?,
            inner.text("user_class", TEXT_MAX_BYTES)?,
        );
        let jurisdiction = inner.text("jurisdiction", TEXT_MAX_BYTES)?;
        let batch = agree("portolan.batch", inner.take::<bool>("batch")?, header.batch)?.unwrap_or(false);
        let labels = labels(inner.texts("labels")?, header.labels)?;
        let dependencies = dependencies(inner.take("dependencies")?.unwrap_or_default())?;
        let cache_id = inner.text("cache_id", TEXT_MAX_BYTES)?;
        let longest = LONGEST_LIFE.as_secs() as i64;
        let life = inner.integer("ttl_s", 1..=longest)?;
        refuse_unknown(&inner)?;
        Ok(Self {
            request_id,
            tenant,
            trace_id,
            prefill_mode,
            user,
            session: agree("portolan.session", session, header.session)?,
            user_class: agree("portolan.user_class", class, header.user_class)?,
            priority: agree("portolan.priority", priority, header.priority)?.unwrap_or(0),
            ttft_slo_ms: agree("portolan.ttft_slo_ms", ttft_slo_ms, header.ttft_slo_ms)?.unwrap_or(0),
            kind: if batch {
                RequestKind::Batch
            } else {
                RequestKind::Interactive
            },
            jurisdiction: agree("portolan.jurisdiction", jurisdiction, header.jurisdiction)?,
            labels,
            dependencies,
            cache_id,
            life: life.and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs),
        })
    }
}

/// OpenAI's names of the end user, the first that is there. None of them changes the answer, so that what is no text is
/// passed over.
fn user(fields: &mut Fields<'_>) -> Result<Option<String>, RequestError> {
    let mut user = None;
    for name in ["user", "safety_identifier", "prompt_cache_key"] {
        let named = fields.take::<Value>(name)?;
        let text = named.as_ref().and_then(Value::as_str);
        user = user.or_else(|| text.filter(|text| !text.is_empty()).map(str::to_owned));
    }
    Ok(user)
}

/// What somebody sent, short enough to be sent back.
fn shown(value: &impl Debug) -> String {
    const MOST: usize = 80;
    let text = format!("{value:?}");
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A value said twice must be the same: a gateway of the client's own may set the header to limit what the body asks.
fn agree<T: PartialEq + Debug>(
    path: &str,
    body: Option<T>,
    header: Option<T>,
) -> Result<Option<T>, RequestError> {
    match (body, header) {
        (Some(body), Some(header)) if body != header => {
            let (body, header) = (shown(&body), shown(&header));
            let message = format!("{path} is {body} in the body and {header} in the header; send it once");
            Err(RequestError::bad_field(path, message))
        }
        (body, header) => Ok(body.or(header)),
    }
}

fn request_id_of(id: &str) -> Result<RequestId, RequestError> {
    RequestId::from_client(id).ok_or_else(|| {
        let most = portolan_base::id::REQUEST_ID_MAX_BYTES;
        let message = format!("request_id must be 1 to {most} printable ASCII characters without spaces");
        RequestError::bad_field("request_id", message)
    })
}

fn prefill_mode(fields: &mut Fields<'_>) -> Result<PrefillMode, RequestError> {
    match fields.take::<String>("prefill_policy")?.as_deref() {
        None | Some("auto") => Ok(PrefillMode::Auto),
        Some("local_only") => Ok(PrefillMode::LocalOnly),
        Some("remote_preferred") => Ok(PrefillMode::RemotePreferred),
        Some("remote_required") => Ok(PrefillMode::RemoteRequired),
        Some(_) => {
            let message = "prefill_policy must be auto, local_only, remote_preferred or remote_required";
            Err(RequestError::bad_field("prefill_policy", message))
        }
    }
}

fn labels(
    body: BTreeMap<String, String>,
    header: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, RequestError> {
    let mut labels = body;
    for (name, value) in header {
        let path = format!("portolan.labels.{name}");
        let agreed = agree(&path, labels.remove(&name), Some(value))?;
        labels.extend(agreed.map(|value| (name, value)));
    }
    let refused = |message: String| Err(RequestError::bad_field("portolan.labels", message));
    if labels.len() > LABELS_MAX {
        return refused(format!(
            "{} labels were sent, at most {LABELS_MAX} are taken",
            labels.len()
        ));
    }
    for (name, value) in &labels {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if name.is_empty() || name.len() > LABEL_NAME_MAX_BYTES || !name.bytes().all(plain) {
            return refused(format!(
                "a label's name must be 1 to {LABEL_NAME_MAX_BYTES} characters of A-Z, a-z, 0-9, '-', '_' and '.'"
            ));
        }
        if value.len() > TEXT_MAX_BYTES {
            return refused(format!(
                "the label {name} has {} bytes, at most {TEXT_MAX_BYTES} are taken",
                value.len()
            ));
        }
    }
    Ok(labels)
}

fn dependencies(dependencies: Vec<Dependency>) -> Result<Vec<Dependency>, RequestError> {
    let refused = |message: String| Err(RequestError::bad_field("portolan.dependencies", message));
    if dependencies.len() > DEPENDENCIES_MAX {
        return refused(format!(
            "{} dependencies were sent, at most {DEPENDENCIES_MAX} are taken",
            dependencies.len()
        ));
    }
    if !dependencies.iter().all(Dependency::is_well_formed) {
        return refused(format!(
            "a dependency's kind, name and version must each have 1 to {} bytes without control characters",
            Dependency::TEXT_MAX_BYTES
        ));
    }
    Ok(dependencies)
}

fn refuse_unknown(inner: &Fields<'_>) -> Result<(), RequestError> {
    let Some(name) = inner.leftover() else {
        return Ok(());
    };
    let path = match name.len() > TEXT_MAX_BYTES {
        true => inner.path("a field with a long name"),
        false => inner.path(name),
    };
    Err(RequestError::bad_field(
        &path,
        format!("{path} is unknown; the portolan object holds {KNOWN}"),
    ))
}
