//! Prompts that were computed ahead of time, by the id their tenant was given. Later requests begin with one of them by
//! naming it.

mod kept;

use crate::error::{ErrorKind, RequestError};
use kept::Kept;
use parking_lot::Mutex;
use portolan_base::{ModelName, Moment, Scope, TenantName};
use portolan_ports::{Applied, Invalidated};
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of prompts a tenant may have here at a time: sixteen prompts of 128k tokens.
const TENANT_BYTES: usize = 8 << 20;

/// Most prompts a tenant may have here at a time, however small: each takes some 500 bytes beside its own, so that all of
/// them take a sixteenth of the tenant's room.
const TENANT_PROMPTS: usize = 1024;

/// Most bytes of all tenants.
const SITE_BYTES: usize = 64 << 20;

/// How long a prompt is known when the client does not say.
pub(crate) const USUAL_LIFE: Duration = Duration::from_secs(300);

/// The longest it may be.
pub(crate) const LONGEST_LIFE: Duration = Duration::from_secs(3600);

/// A prompt, as it was sent: the KV is found by its tokens, not through this.
#[derive(Clone, Debug)]
pub struct Prewarmed<T> {
    /// Whose it is. Nobody else's request may begin with it.
    pub tenant: TenantName,
    /// The model it was computed for.
    pub model: ModelName,
    /// The prompt.
    pub content: T,
    /// Its size in bytes.
    pub bytes: usize,
    /// When it is forgotten.
    pub until: Moment,
}

/// Prompts by id. Every look-up takes the lock: nothing is done under it that grows with what others keep.
#[derive(Debug)]
pub struct PrewarmedPrompts<T>(Mutex<Kept<T>>);

impl<T> Default for PrewarmedPrompts<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> PrewarmedPrompts<T> {
    /// Keeps a prompt under `id`. Where the tenant has too many, those of its own that end first make room; where the site
    /// has, those of the tenant that has most. One that is larger than all of a tenant's room is refused, and one that
    /// would make its tenant the one that has most.
    pub fn keep(&self, id: String, prompt: Prewarmed<T>, now: Moment) -> Result<(), RequestError> {
        if prompt.bytes > TENANT_BYTES {
            let text = format!(
                "the prompt has {} bytes; at most {TENANT_BYTES} can be kept under an id",
                prompt.bytes
            );
            return Err(RequestError::new(ErrorKind::TooLarge, text).with_code("request_too_large"));
        }
        let mut kept = self.0.lock();
        kept.forget_until(now);
        let (tenant, more) = (&prompt.tenant, prompt.bytes);
        while kept.count_of(tenant) >= TENANT_PROMPTS || kept.bytes_of(tenant) + more > TENANT_BYTES {
            if !kept.forget_first_of(tenant) {
                break;
            }
        }
        while kept.bytes() + more > SITE_BYTES {
            let own = kept.bytes_of(tenant) + more;
            let most = kept.largest().filter(|(bytes, _)| *bytes > own);
            let gives_way = most.map_or(tenant, |(_, other)| other).clone();
            if !kept.forget_first_of(&gives_way) {
                let text = "this site keeps as many prompts as it can; try again, or send the whole prompt";
                return Err(RequestError::unavailable(text, Duration::from_secs(1)));
            }
        }
        kept.insert(id.into(), prompt);
        Ok(())
    }

    /// The prompt of a tenant under `id`. One that is not its own is as unknown as one that never was.
    pub fn of(
        &self,
        id: &str,
        tenant: &TenantName,
        model: &ModelName,
        now: Moment,
    ) -> Result<T, RequestError> {
        let found = self.0.lock().get(id).map(Arc::clone);
        let found = found.filter(|prompt| prompt.tenant == *tenant && prompt.until > now);
        let unknown = || {
            let text = "portolan.cache_id names no prompt of yours, or one whose time is over; send the whole prompt";
            RequestError {
                param: Some("portolan.cache_id".to_owned()),
                ..RequestError::new(ErrorKind::NotFound, text).with_code("cache_not_found")
            }
        };
        let found = found.ok_or_else(unknown)?;
        if found.model != *model {
            let text = format!(
                "portolan.cache_id names a prompt of the model {}, not of {model}",
                found.model
            );
            return Err(RequestError::bad_field("portolan.cache_id", text));
        }
        Ok(found.content.clone())
    }
}

impl<T: Send + Sync> Applied for PrewarmedPrompts<T> {
    /// A prompt is found by its id, its KV by its tokens: an id goes with its tenant and with its model's version. Where
    /// only some of its KV went, the prompt is as good as before, and is computed.
    fn applied(&self, what: &Invalidated) {
        let mut kept = self.0.lock();
        match what {
            Invalidated::Model { model } => kept.forget_where(|prompt| prompt.model == *model),
            Invalidated::Tenant {
                scope: Scope::Tenant(tenant),
            } => while kept.forget_first_of(tenant) {},
            Invalidated::Tenant { scope: Scope::Public }
            | Invalidated::Dependency { .. }
            | Invalidated::Prefix { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests;
