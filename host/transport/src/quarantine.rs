//! Sets of KV that failed twice: they are not asked for again, and their evidence is kept.

use crate::frame::ChunkMeta;
use parking_lot::Mutex;
use portolan_base::{SiteName, TransferId};
use portolan_ports::{Evidence, KvOrder, QuarantinedSet};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Failures that put a set into quarantine: once may be chance, twice is the memory or the path it comes from.
const STRIKES: usize = 2;

/// How long a set stays in quarantine after its last failure: its holder computes it anew in that time, or an operator
/// has looked at the evidence.
const TERM: Duration = Duration::from_secs(600);

/// Sets remembered. Whoever could fill this could as well damage every transfer.
const SETS_MAX: usize = 1024;

/// Which set: who holds it, whose it is, and of which tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SetId([u8; 16]);

impl SetId {
    pub(crate) fn of(peer: &SiteName, order: &KvOrder) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("portolan 2026 quarantined kv set");
        for part in [
            peer.as_str(),
            order.tenant.as_str(),
            order.model.as_str(),
            order.instance.as_str(),
        ] {
            hasher.update(part.as_bytes());
            hasher.update(&[0]);
        }
        hasher.update(&order.model_version.to_le_bytes());
        for token in order.tokens.iter() {
            hasher.update(&token.to_le_bytes());
        }
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        Self(id)
    }
}

impl std::fmt::Display for SetId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What was found wrong with a transfer.
#[derive(Clone, Debug)]
pub(crate) struct Damage {
    pub(crate) transfer: TransferId,
    pub(crate) detail: String,
    pub(crate) chunk: Option<ChunkMeta>,
    /// Checksum of what came.
    pub(crate) found: Option<u64>,
}

#[derive(Debug)]
struct Record {
    peer: SiteName,
    order: KvOrder,
    evidence: Vec<Evidence>,
    last: Instant,
}

/// One site's quarantine.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    sets: Mutex<HashMap<SetId, Record>>,
}

impl Quarantine {
    /// Notes that a set came damaged beyond repair; says whether that put it into quarantine.
    pub(crate) fn strike(&self, peer: &SiteName, order: &KvOrder, damage: Damage, now: Instant) -> bool {
        let evidence = Evidence {
            transfer: damage.transfer.to_string(),
            request: order.request.clone(),
            detail: damage.detail,
            chunk: damage.chunk.as_ref().map(|meta| meta.head.no),
            layer: damage.chunk.as_ref().map(|meta| meta.head.piece.layer),
            tokens: damage
                .chunk
                .as_ref()
                .map(|meta| (meta.head.piece.tokens.start, meta.head.piece.tokens.end)),
            expected_checksum: damage.chunk.as_ref().map(|meta| meta.checksum),
            found_checksum: damage.found,
        };
        let mut sets = self.sets.lock();
        sets.retain(|_, record| now.saturating_duration_since(record.last) < TERM);
        let id = SetId::of(peer, order);
        if !sets.contains_key(&id) && sets.len() >= SETS_MAX {
            return false;
        }
        let record = sets.entry(id).or_insert_with(|| Record {
            peer: peer.clone(),
            // The tokens are the prompt: what is kept for operators does not hold them.
            order: KvOrder {
                tokens: [].into(),
                ..order.clone()
            },
            evidence: Vec::new(),
            last: now,
        });
        record.last = now;
        // The first failures tell most; a set in quarantine is not asked for again.
        if record.evidence.len() < STRIKES * 2 {
            record.evidence.push(evidence);
        }
        record.evidence.len() >= STRIKES
    }

    /// A set came whole: an earlier failure was chance.
    pub(crate) fn clear(&self, peer: &SiteName, order: &KvOrder) {
        let mut sets = self.sets.lock();
        if !sets.is_empty() {
            sets.remove(&SetId::of(peer, order));
        }
    }

    /// Whether a set is not to be asked for.
    pub(crate) fn holds(&self, peer: &SiteName, order: &KvOrder, now: Instant) -> bool {
        let sets = self.sets.lock();
        // Hashing a long prompt is for sites that have something in quarantine.
        !sets.is_empty()
            && sets.get(&SetId::of(peer, order)).is_some_and(|record| {
                record.evidence.len() >= STRIKES && now.saturating_duration_since(record.last) < TERM
            })
    }

    /// The sets in quarantine, the latest first.
    pub(crate) fn list(&self, now: Instant) -> Vec<QuarantinedSet> {
        let sets = self.sets.lock();
        let mut list: Vec<_> = sets
            .iter()
            .filter(|(_, record)| record.evidence.len() >= STRIKES)
            .map(|(id, record)| QuarantinedSet {
                id: id.to_string(),
                peer: record.peer.clone(),
                tenant: record.order.tenant.clone(),
                model: record.order.model.clone(),
                model_version: record.order.model_version,
                instance: record.order.instance.clone(),
                age: now.saturating_duration_since(record.last),
                evidence: record.evidence.clone(),
            })
            .filter(|set| set.age < TERM)
            .collect();
        list.sort_by_key(|set| set.age);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::{InstanceName, ModelName, RequestId, TenantName};
    use std::sync::Arc;

    fn order(first: u32) -> KvOrder {
        KvOrder {
            as_of: portolan_ports::AsOf::default(),
            request: RequestId::from_client("r").unwrap(),
            tenant: TenantName::new("t").unwrap(),
            jurisdiction: String::new(),
            user_class: String::new(),
            model: ModelName::new("m").unwrap(),
            model_version: 1,
            instance: InstanceName::new("i").unwrap(),
            tokens: vec![first; 20].into(),
            held: 0,
            retention: portolan_ports::Retention::Keep,
            draw: Default::default(),
            fidelity: Default::default(),
            dependencies: Arc::default(),
            fetch_from: Default::default(),
            purpose: Default::default(),
        }
    }

    fn damage() -> Damage {
        Damage {
            transfer: TransferId(1),
            detail: "a test".into(),
            chunk: None,
            found: Some(7),
        }
    }

    #[test]
    fn a_set_that_fails_twice_is_held_with_its_evidence_until_its_term_is_over() {
        let (quarantine, now) = (Quarantine::default(), Instant::now());
        let peer = SiteName::new("p").unwrap();
        assert!(!quarantine.strike(&peer, &order(1), damage(), now));
        assert!(!quarantine.holds(&peer, &order(1), now), "once may be chance");
        assert!(quarantine.strike(&peer, &order(1), damage(), now));
        assert!(quarantine.holds(&peer, &order(1), now));
        assert!(
            !quarantine.holds(&peer, &order(2), now),
            "other tokens, another set"
        );
        assert!(
            !quarantine.holds(&SiteName::new("q").unwrap(), &order(1), now),
            "another holder"
        );
        let list = quarantine.list(now + Duration::from_secs(1));
        assert_eq!(
            (
                list.len(),
                list[0].evidence.len(),
                list[0].evidence[0].found_checksum
            ),
            (1, 2, Some(7))
        );
        assert!(!quarantine.holds(&peer, &order(1), now + TERM));
        assert!(quarantine.list(now + TERM).is_empty());
    }

    #[test]
    fn a_set_that_comes_whole_in_between_starts_over() {
        let (quarantine, now) = (Quarantine::default(), Instant::now());
        let peer = SiteName::new("p").unwrap();
        quarantine.strike(&peer, &order(1), damage(), now);
        quarantine.clear(&peer, &order(1));
        assert!(!quarantine.strike(&peer, &order(1), damage(), now));
        assert!(quarantine.list(now).is_empty());
    }
}
