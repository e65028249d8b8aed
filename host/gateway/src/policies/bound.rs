//! A policy that knows as what it was bound, so that every path record can tell.
//!
//! It is put around a loaded version where the table is changed: the generation is the store's to give, after the version
//! was loaded.

use portolan_policy::{Answered, BoundAs, Call, Policy, PolicyDescriptor};
use portolan_ports::{BindingRecord, TrialRecord, config_digest};
use std::sync::Arc;

struct Bound {
    policy: Arc<dyn Policy>,
    descriptor: PolicyDescriptor,
}

/// The policy of a binding.
pub(super) fn bound(policy: Arc<dyn Policy>, binding: &BindingRecord) -> Arc<dyn Policy> {
    bound_as(policy, Some(binding.generation), &binding.config)
}

/// The policy of a trial.
pub(super) fn on_trial(policy: Arc<dyn Policy>, trial: &TrialRecord) -> Arc<dyn Policy> {
    bound_as(policy, None, &trial.config)
}

fn bound_as(policy: Arc<dyn Policy>, generation: Option<u64>, config: &str) -> Arc<dyn Policy> {
    let descriptor = PolicyDescriptor {
        bound: BoundAs {
            generation,
            config_digest: config_digest(config),
        },
        ..policy.descriptor().clone()
    };
    Arc::new(Bound { policy, descriptor })
}

impl Policy for Bound {
    fn descriptor(&self) -> &PolicyDescriptor {
        &self.descriptor
    }

    fn ask(&self, call: &Call<'_>) -> Answered {
        self.policy.ask(call)
    }
}

#[cfg(test)]
mod tests {
    use crate::policies::tests::{by, desk_over, routing, upload};
    use crate::policies::{PolicyDesk, TrialOrder, Upload};
    use portolan_decide::TrialStage;
    use portolan_policy::BoundAs;
    use portolan_ports::{MemoryStore, config_digest};
    use std::sync::Arc;

    fn active(desk: &PolicyDesk) -> BoundAs {
        let slot = routing();
        let table = desk.table();
        let policy = table.get(&slot.scope, slot.question).unwrap();
        policy.descriptor().bound.clone()
    }

    fn with(config: &str) -> Upload {
        Upload {
            config: Some(config.to_owned()),
            ..upload(routing(), "ok:1")
        }
    }

    #[test]
    fn two_bindings_of_one_component_are_told_apart_and_a_restart_and_a_stop_keep_that() {
        let store = Arc::new(MemoryStore::new());
        let desk = desk_over(&store);
        for (generation, config) in [(1, "{\"a\":1}"), (2, "{\"a\":2}")] {
            desk.upload(with(config), &by()).unwrap();
            let expected = BoundAs {
                generation: Some(generation),
                config_digest: config_digest(config),
            };
            assert_eq!(active(&desk), expected);
        }
        let before = active(&desk);
        let restarted = desk_over(&store);
        restarted.restore().unwrap();
        assert_eq!(active(&restarted), before);
        restarted.disable(&routing(), &by()).unwrap();
        assert_eq!(active(&restarted), before, "its fallbacks are its own");
    }

    #[test]
    fn a_version_on_trial_has_a_configuration_and_no_generation() {
        let store = Arc::new(MemoryStore::new());
        let desk = desk_over(&store);
        let stored = desk.push(upload(routing(), "ok:2"), &by()).unwrap();
        let order = TrialOrder {
            slot: routing(),
            sha256: Some(stored.version.sha256),
            stage: TrialStage::Shadow,
            config: Some("{\"a\":3}".to_owned()),
            budget: None,
            reuse: None,
        };
        desk.try_out(order, &by()).unwrap();
        let restarted = desk_over(&store);
        restarted.restore().unwrap();
        for desk in [&desk, &restarted] {
            let slot = routing();
            let table = desk.table();
            let trial = table.trial(&slot.scope, slot.question).unwrap();
            let expected = BoundAs {
                generation: None,
                config_digest: config_digest("{\"a\":3}"),
            };
            assert_eq!(trial.policy.descriptor().bound, expected);
        }
    }
}
