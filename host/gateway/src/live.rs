//! What of a site's behaviour may change while it serves, all of it swapped at once: a request sees one state or the
//! other, never half of each.

use crate::site::{ExactKv, Site};
use portolan_base::Tokens;
use portolan_decide::{PrefillMode, RetryBudget, RetryConfig, Timeouts};
use std::sync::Arc;

/// On or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// It works.
    #[default]
    On,
    /// It is as if it were not there.
    Off,
}

impl Switch {
    /// On where `on` holds.
    pub const fn when(on: bool) -> Self {
        if on { Self::On } else { Self::Off }
    }

    /// Whether it works.
    pub const fn is_on(self) -> bool {
        matches!(self, Self::On)
    }
}

/// Who computes a prompt that another site failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failover {
    /// This site too.
    #[default]
    Home,
    /// Another site, or nobody.
    Never,
}

/// Whether a site can compute a request's prompt itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// It has an instance for it.
    Prefills,
    /// It has none.
    Cannot,
}

/// What the operator rules for requests that leave it to the host where their prompts are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefillRule {
    /// Shorter prompts stay at home; none: the policies decide.
    pub long_context: Option<Tokens>,
    /// Whether prompts that are not shorter go elsewhere where they can.
    pub prefer_remote: bool,
    /// Who computes what another site failed.
    pub failover: Failover,
}

impl PrefillRule {
    /// Where a prompt of `tokens` is to be computed, of which the client `asked` this.
    pub fn mode(&self, asked: PrefillMode, tokens: Tokens, home: Home) -> PrefillMode {
        let short = self.long_context.is_some_and(|long| tokens < long);
        match (asked, short, home) {
            (PrefillMode::Auto, true, Home::Prefills) => PrefillMode::LocalOnly,
            (PrefillMode::Auto, false, _) if self.prefer_remote => PrefillMode::RemotePreferred,
            (asked, ..) => asked,
        }
    }
}

/// What may change while a site serves.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// How long a stage may take.
    pub timeouts: Timeouts,
    /// How much may be tried again.
    pub retries: RetryConfig,
    /// Whose KV never comes quantised.
    pub exact: ExactKv,
    /// Where prompts may be computed.
    pub prefill: PrefillRule,
    /// Whether `/metrics` answers.
    pub metrics: Switch,
    /// Whether path records are kept.
    pub tracing: Switch,
}

impl Site {
    /// What may change, as it is at the moment. One request reads it more than once: each read is whole.
    pub fn live(&self) -> arc_swap::Guard<Arc<Live>> {
        self.live.load()
    }

    /// Changes it.
    pub fn apply(&self, live: Live) {
        self.records.keep(live.tracing);
        let retries = live.retries;
        let before = self.live.swap(Arc::new(live));
        if before.retries != retries {
            *self.retries.lock() = RetryBudget::new(retries);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_decides_for_those_who_leave_it_open() {
        let rule = PrefillRule {
            long_context: Some(Tokens(16_384)),
            prefer_remote: true,
            ..PrefillRule::default()
        };
        let of = |asked, tokens, home| rule.mode(asked, Tokens(tokens), home);
        let auto = PrefillMode::Auto;
        assert_eq!(of(auto, 16_383, Home::Prefills), PrefillMode::LocalOnly);
        assert_eq!(
            of(auto, 16_383, Home::Cannot),
            PrefillMode::Auto,
            "better there than nowhere"
        );
        assert_eq!(of(auto, 16_384, Home::Prefills), PrefillMode::RemotePreferred);
        assert_eq!(
            of(PrefillMode::LocalOnly, 20_000, Home::Prefills),
            PrefillMode::LocalOnly
        );
        assert_eq!(
            of(PrefillMode::RemoteRequired, 5, Home::Prefills),
            PrefillMode::RemoteRequired
        );
        let nothing = PrefillRule::default();
        assert_eq!(nothing.mode(auto, Tokens(5), Home::Prefills), auto);
    }
}
