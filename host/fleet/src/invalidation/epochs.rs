//! The latest orders about less than a model, by what they are about. Caches that nobody can search (those of engines that
//! are not ours) are kept apart by them: KV from before an order is named otherwise than KV from after it.

use portolan_base::{Provenance, Scope, Sequence};
use portolan_ports::Invalidated;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Things of everyone's that are told apart, and things of each tenant. With more, the oldest count for everything, or for all
/// that the tenant has, which costs computing once more: no tenant's orders cost another's.
const MOST: usize = 4096;
const MOST_OF_A_TENANT: usize = 1024;

/// What stands where an owner would, of orders about everyone's.
const EVERYONE: &str = "*";

/// Positions of orders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Epochs {
    /// Of orders about everyone's that are not told apart.
    #[serde(default)]
    any: Sequence,
    /// Of orders about an owner's that are not told apart, by the owner.
    #[serde(default)]
    any_of: BTreeMap<String, Sequence>,
    /// By what they are about.
    #[serde(default)]
    about: BTreeMap<String, Sequence>,
}

/// Whose things are, as one word. With its length no owner's word is the beginning of another's, nor of another's things.
fn owner(of: Option<&Scope>) -> String {
    of.map_or_else(
        || EVERYONE.to_owned(),
        |scope| format!("{}:{scope}", scope.to_string().len()),
    )
}

/// A thing that orders are about, as one word: its owner, then its parts with their lengths.
fn name(parts: &[&str], of: Option<&Scope>) -> String {
    parts
        .iter()
        .fold(owner(of), |word, part| format!("{word} {}:{part}", part.len()))
}

impl Epochs {
    /// Takes note of an order. A block's order counts for whatever its owner has: nobody knows which prompts begin so.
    pub(super) fn note(&mut self, what: &Invalidated, at: Sequence) {
        let (parts, of) = match what {
            Invalidated::Model { .. } => return,
            Invalidated::Dependency { by, of } => (vec![by.kind.as_str(), by.name.as_str()], of.as_ref()),
            Invalidated::Prefix { of, .. } => (Vec::new(), of.as_ref()),
            // What is public may be the beginning of anyone's.
            Invalidated::Tenant { scope: Scope::Public } => (Vec::new(), None),
            Invalidated::Tenant { scope } => (Vec::new(), Some(scope)),
        };
        let known = self.about.entry(name(&parts, of)).or_default();
        *known = (*known).max(at);
        let (owner, most) = match of {
            None => (owner(None), MOST),
            Some(scope) => (owner(Some(scope)), MOST_OF_A_TENANT),
        };
        self.bound(&owner, most);
    }

    /// Lets the oldest orders about an owner's things count for all that it has.
    fn bound(&mut self, owner: &str, most: usize) {
        while self.things_of(owner).count() > most {
            let Some((oldest, at)) = self.things_of(owner).min_by_key(|(_, at)| **at) else {
                return;
            };
            let (oldest, at) = (oldest.clone(), *at);
            self.about.remove(&oldest);
            let any = match owner {
                EVERYONE => &mut self.any,
                owner => self.any_of.entry(owner.to_owned()).or_default(),
            };
            *any = (*any).max(at);
        }
    }

    fn things_of(&self, owner: &str) -> impl Iterator<Item = (&String, &Sequence)> {
        let from = self.about.range(owner.to_owned()..);
        from.take_while(move |(thing, _)| thing.starts_with(owner))
    }

    /// The latest that may be about KV like this.
    pub(super) fn of(&self, about: &Provenance) -> Sequence {
        let owners = [None, Some(&about.scope)];
        let depended = about.dependencies.iter().flat_map(|on| {
            let parts = [on.kind.as_str(), on.name.as_str()];
            owners.map(|of| name(&parts, of))
        });
        let all = owners.map(|of| name(&[], of)).into_iter().chain(depended);
        let any = self.any_of.get(&owner(Some(&about.scope))).copied();
        all.filter_map(|thing| self.about.get(&thing).copied())
            .fold(self.any.max(any.unwrap_or_default()), Sequence::max)
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

    #[test]
    fn what_a_tenant_orders_in_plenty_counts_for_that_tenant_alone() {
        let mut epochs = Epochs::default();
        let order = |epochs: &mut Epochs, tenant: &str, n: u64| {
            let by = on(&n.to_string());
            epochs.note(
                &Invalidated::Dependency {
                    by,
                    of: Some(scope(tenant)),
                },
                Sequence(n),
            );
        };
        order(&mut epochs, "globex", 1);
        for n in 2..=2 * MOST as u64 {
            order(&mut epochs, "acme", n);
        }
        let dropped = 2 * MOST as u64 - MOST_OF_A_TENANT as u64;
        assert_eq!(epochs.about.len(), MOST_OF_A_TENANT + 1);
        assert_eq!(of(&epochs, "acme", &[]), dropped);
        assert_eq!(
            (of(&epochs, "globex", &[]), of(&epochs, "globex", &["1"])),
            (0, 1)
        );
        // A name that begins as another one does is another tenant's.
        assert_eq!((of(&epochs, "acm", &[]), of(&epochs, "acme2", &[])), (0, 0));
        let written = serde_json::to_string(&epochs).unwrap();
        assert_eq!(serde_json::from_str::<Epochs>(&written).unwrap(), epochs);
    }
}
