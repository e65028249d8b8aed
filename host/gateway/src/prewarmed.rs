//! Prompts that were computed ahead of time, by the id their tenant was given. Later requests begin with one of them by
//! naming it.

use crate::error::{ErrorKind, RequestError};
use parking_lot::Mutex;
use portolan_base::{ModelName, Moment, Scope, TenantName};
use portolan_ports::{Applied, Invalidated};
use std::collections::HashMap;
use std::time::Duration;

/// Most bytes of prompts a tenant may have here at a time: sixteen prompts of 128k tokens.
const TENANT_BYTES: usize = 8 << 20;

/// Most prompts a tenant may have here at a time: the prompts of its applications, each for some users. Each takes some
/// hundred bytes beside its own, and is looked at whenever one is kept.
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

/// Prompts by id.
#[derive(Debug)]
pub struct PrewarmedPrompts<T>(Mutex<HashMap<String, Prewarmed<T>>>);

impl<T> Default for PrewarmedPrompts<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> PrewarmedPrompts<T> {
    /// Keeps a prompt under `id`. Where the tenant has too many, those that end first make room; one that is larger than
    /// all of a tenant's room is refused.
    pub fn keep(&self, id: String, prompt: Prewarmed<T>, now: Moment) -> Result<(), RequestError> {
        if prompt.bytes > TENANT_BYTES {
            let text = format!(
                "the prompt has {} bytes; at most {TENANT_BYTES} can be kept under an id",
                prompt.bytes
            );
            return Err(RequestError::new(ErrorKind::TooLarge, text));
        }
        let mut kept = self.0.lock();
        kept.retain(|_, prompt| prompt.until > now);
        let of_tenant = |p: &Prewarmed<T>| p.tenant == prompt.tenant;
        let is_too_much = |kept: &HashMap<String, Prewarmed<T>>| {
            let count = kept.values().filter(|p| of_tenant(p)).count();
            count >= TENANT_PROMPTS || bytes(kept, of_tenant) + prompt.bytes > TENANT_BYTES
        };
        while is_too_much(&kept) {
            if !forget_next(&mut kept, of_tenant) {
                break;
            }
        }
        if bytes(&kept, |_| true) + prompt.bytes > SITE_BYTES {
            let text = "this site keeps as many prompts as it can; try again, or send the whole prompt";
            return Err(RequestError::unavailable(text, Duration::from_secs(1)));
        }
        kept.insert(id, prompt);
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
        let kept = self.0.lock();
        let found = kept.get(id).filter(|p| p.tenant == *tenant && p.until > now);
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

fn bytes<T>(kept: &HashMap<String, Prewarmed<T>>, whose: impl Fn(&Prewarmed<T>) -> bool) -> usize {
    kept.values().filter(|p| whose(p)).map(|p| p.bytes).sum()
}

impl<T: Send> Applied for PrewarmedPrompts<T> {
    /// A prompt is found by its id, its KV by its tokens: an id goes with its tenant and with its model's version. Where
    /// only some of its KV went, the prompt is as good as before, and is computed.
    fn applied(&self, what: &Invalidated) {
        let mut kept = self.0.lock();
        match what {
            Invalidated::Model { model } => kept.retain(|_, prompt| prompt.model != *model),
            Invalidated::Tenant {
                scope: Scope::Tenant(tenant),
            } => kept.retain(|_, prompt| prompt.tenant != *tenant),
            Invalidated::Tenant { scope: Scope::Public }
            | Invalidated::Dependency { .. }
            | Invalidated::Prefix { .. } => {}
        }
    }
}

/// Forgets the one that ends first; false when there is none.
fn forget_next<T>(kept: &mut HashMap<String, Prewarmed<T>>, whose: impl Fn(&Prewarmed<T>) -> bool) -> bool {
    let mut candidates: Vec<_> = kept.iter().filter(|(_, p)| whose(p)).collect();
    candidates.sort_unstable_by_key(|(id, p)| (p.until, (*id).clone()));
    let Some(id) = candidates.first().map(|(id, _)| (*id).clone()) else {
        return false;
    };
    kept.remove(&id).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(1_000_000);

    fn prompt(tenant: &str, bytes: usize, seconds: u64) -> Prewarmed<usize> {
        Prewarmed {
            tenant: TenantName::new(tenant).unwrap(),
            model: ModelName::new("m").unwrap(),
            content: bytes,
            bytes,
            until: NOW + Duration::from_secs(seconds),
        }
    }

    fn known(prompts: &PrewarmedPrompts<usize>, id: &str, tenant: &str, now: Moment) -> bool {
        let (tenant, model) = (TenantName::new(tenant).unwrap(), ModelName::new("m").unwrap());
        prompts.of(id, &tenant, &model, now).is_ok()
    }

    #[test]
    fn is_its_tenants_for_its_time_and_its_models() {
        let prompts = PrewarmedPrompts::default();
        prompts.keep("a".into(), prompt("acme", 5, 10), NOW).unwrap();
        assert!(known(&prompts, "a", "acme", NOW));
        assert!(!known(&prompts, "a", "globex", NOW));
        assert!(!known(&prompts, "a", "acme", NOW + Duration::from_secs(10)));
        let other = ModelName::new("n").unwrap();
        let refused = prompts
            .of("a", &TenantName::new("acme").unwrap(), &other, NOW)
            .unwrap_err();
        assert!(
            refused.message.contains("of the model m, not of n"),
            "{refused:?}"
        );
    }

    #[test]
    fn goes_with_its_tenant_and_with_its_models_version() {
        let prompts = PrewarmedPrompts::default();
        let keep = |id: &str, tenant| prompts.keep(id.into(), prompt(tenant, 5, 10), NOW).unwrap();
        keep("a", "acme");
        keep("g", "globex");
        let tenant = TenantName::new("acme").unwrap();
        prompts.applied(&Invalidated::Tenant {
            scope: Scope::Tenant(tenant),
        });
        assert!(!known(&prompts, "a", "acme", NOW) && known(&prompts, "g", "globex", NOW));
        let model = |name| Invalidated::Model {
            model: ModelName::new(name).unwrap(),
        };
        prompts.applied(&model("n"));
        assert!(known(&prompts, "g", "globex", NOW));
        prompts.applied(&model("m"));
        assert!(!known(&prompts, "g", "globex", NOW));
    }

    #[test]
    fn a_tenant_pushes_out_its_own_only_those_that_end_first() {
        let prompts = PrewarmedPrompts::default();
        let half = TENANT_BYTES / 2;
        prompts
            .keep("other".into(), prompt("globex", half, 1), NOW)
            .unwrap();
        prompts
            .keep("long".into(), prompt("acme", half, 90), NOW)
            .unwrap();
        prompts
            .keep("short".into(), prompt("acme", half, 10), NOW)
            .unwrap();
        prompts.keep("new".into(), prompt("acme", half, 50), NOW).unwrap();
        let left = ["other", "long", "short", "new"]
            .map(|id| known(&prompts, id, if id == "other" { "globex" } else { "acme" }, NOW));
        assert_eq!(left, [true, true, false, true]);
        assert!(
            prompts
                .keep("huge".into(), prompt("acme", TENANT_BYTES + 1, 9), NOW)
                .is_err()
        );
        assert!(
            known(&prompts, "long", "acme", NOW),
            "what is refused pushes nothing out"
        );
    }

    #[test]
    fn a_tenant_has_so_many_ids_and_no_more_however_short_its_prompts() {
        let prompts = PrewarmedPrompts::default();
        prompts.keep("other".into(), prompt("globex", 1, 1), NOW).unwrap();
        for n in 0..=TENANT_PROMPTS {
            // The first ends first.
            let life = 10 + n as u64;
            prompts.keep(n.to_string(), prompt("acme", 1, life), NOW).unwrap();
        }
        assert_eq!(prompts.0.lock().len(), TENANT_PROMPTS + 1);
        assert!(!known(&prompts, "0", "acme", NOW) && known(&prompts, "1", "acme", NOW));
        assert!(known(&prompts, "other", "globex", NOW));
    }

    #[test]
    fn a_full_site_refuses_and_recovers() {
        let prompts = PrewarmedPrompts::default();
        for n in 0..SITE_BYTES / TENANT_BYTES {
            prompts
                .keep(format!("{n}"), prompt(&format!("t{n}"), TENANT_BYTES, 10), NOW)
                .unwrap();
        }
        let one_more = || prompts.keep("x".into(), prompt("late", 1, 10), NOW);
        assert_eq!(one_more().unwrap_err().kind, ErrorKind::Unavailable);
        let later = NOW + Duration::from_secs(10);
        prompts.keep("x".into(), prompt("late", 1, 99), later).unwrap();
    }
}
