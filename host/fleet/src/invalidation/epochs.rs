//! The latest orders about less than a model, by what they are about. Caches that nobody can search (those of engines that
//! are not ours) are kept apart by them: KV from before an order is named otherwise than KV from after it.

use portolan_base::{Provenance, Scope, Sequence};
use portolan_ports::Invalidated;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Things that are told apart. With more, the oldest count for everything, which costs computing once more.
const MOST: usize = 4096;

/// Positions of orders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Epochs {
    /// Of orders that are not told apart.
    #[serde(default)]
    any: Sequence,
    /// By what they are about.
    #[serde(default)]
    about: BTreeMap<String, Sequence>,
}

/// A thing that orders are about, as one word: its parts with their lengths.
fn name(parts: &[&str], of: Option<&Scope>) -> String {
    let of = of.map_or_else(
        || "*".to_owned(),
        |scope| format!("{}:{scope}", scope.to_string().len()),
    );
    parts
        .iter()
        .fold(of, |word, part| format!("{word} {}:{part}", part.len()))
}

impl Epochs {
    /// Takes note of an order. A block's order counts for whatever its owner has: nobody knows which prompts begin so.
    pub(super) fn note(&mut self, what: &Invalidated, at: Sequence) {
        let thing = match what {
            Invalidated::Model { .. } => return,
            Invalidated::Dependency { by, of } => name(&[&by.kind, &by.name], of.as_ref()),
            Invalidated::Prefix { of, .. } => name(&[], of.as_ref()),
            // What is public may be the beginning of anyone's.
            Invalidated::Tenant { scope: Scope::Public } => name(&[], None),
            Invalidated::Tenant { scope } => name(&[], Some(scope)),
        };
        let known = self.about.entry(thing).or_default();
        *known = (*known).max(at);
        if self.about.len() > MOST
            && let Some((oldest, at)) = self.about.iter().min_by_key(|(_, at)| **at)
        {
            self.any = self.any.max(*at);
            let oldest = oldest.clone();
            self.about.remove(&oldest);
        }
    }

    /// The latest that may be about KV like this.
    pub(super) fn of(&self, about: &Provenance) -> Sequence {
        let owners = [None, Some(&about.scope)];
        let depended = about.dependencies.iter().flat_map(|on| {
            let parts = [on.kind.as_str(), on.name.as_str()];
            owners.map(|of| name(&parts, of))
        });
        let all = owners.map(|of| name(&[], of)).into_iter().chain(depended);
        all.filter_map(|thing| self.about.get(&thing).copied())
            .fold(self.any, Sequence::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::{BlockId, Dependency, ModelName, TenantName};

    fn on(name: &str) -> Dependency {
        Dependency {
            kind: "document".to_owned(),
            name: name.to_owned(),
            version: "1".to_owned(),
        }
    }

    fn scope(tenant: &str) -> Scope {
        Scope::Tenant(TenantName::new(tenant).unwrap())
    }

    fn about(tenant: &str, dependencies: &[&str]) -> Provenance {
        Provenance {
            scope: scope(tenant),
            dependencies: dependencies.iter().map(|name| on(name)).collect(),
            ..Provenance::public(ModelName::new("m").unwrap(), 1)
        }
    }

    fn of(epochs: &Epochs, tenant: &str, dependencies: &[&str]) -> u64 {
        epochs.of(&about(tenant, dependencies)).0
    }

    #[test]
    fn an_order_raises_what_it_may_be_about_and_nothing_else() {
        let mut epochs = Epochs::default();
        assert_eq!(of(&epochs, "acme", &["book"]), 0);
        epochs.note(
            &Invalidated::Dependency {
                by: on("book"),
                of: None,
            },
            Sequence(3),
        );
        assert_eq!(of(&epochs, "acme", &["map", "book"]), 3);
        assert_eq!((of(&epochs, "acme", &["map"]), of(&epochs, "acme", &[])), (0, 0));
        let of_acme = Some(scope("acme"));
        epochs.note(
            &Invalidated::Dependency {
                by: on("map"),
                of: of_acme.clone(),
            },
            Sequence(4),
        );
        assert_eq!(
            (of(&epochs, "acme", &["map"]), of(&epochs, "globex", &["map"])),
            (4, 0)
        );
        epochs.note(
            &Invalidated::Tenant {
                scope: scope("globex"),
            },
            Sequence(5),
        );
        assert_eq!(
            (of(&epochs, "globex", &[]), of(&epochs, "acme", &["map"])),
            (5, 4)
        );
        let block = BlockId([0; 16]);
        epochs.note(&Invalidated::Prefix { block, of: of_acme }, Sequence(6));
        assert_eq!((of(&epochs, "acme", &[]), of(&epochs, "globex", &[])), (6, 5));
        epochs.note(&Invalidated::Prefix { block, of: None }, Sequence(7));
        assert_eq!((of(&epochs, "acme", &[]), of(&epochs, "globex", &[])), (7, 7));
        epochs.note(&Invalidated::Tenant { scope: Scope::Public }, Sequence(8));
        epochs.note(
            &Invalidated::Model {
                model: ModelName::new("m").unwrap(),
            },
            Sequence(9),
        );
        assert_eq!(of(&epochs, "new", &[]), 8);
    }

    #[test]
    fn what_is_not_told_apart_any_more_counts_for_everything() {
        let mut epochs = Epochs::default();
        for n in 1..=MOST as u64 + 1 {
            epochs.note(
                &Invalidated::Dependency {
                    by: on(&n.to_string()),
                    of: None,
                },
                Sequence(n),
            );
        }
        assert_eq!(epochs.about.len(), MOST);
        assert_eq!(of(&epochs, "acme", &["1"]), 1);
        assert_eq!(of(&epochs, "acme", &[]), 1);
        assert_eq!(of(&epochs, "acme", &["2"]), 2);
        let written = serde_json::to_string(&epochs).unwrap();
        assert_eq!(serde_json::from_str::<Epochs>(&written).unwrap(), epochs);
    }
}
