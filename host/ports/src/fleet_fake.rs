//! The fake beside [`Fleet`]: a picture that stands still until a test changes it.

use crate::{Claim, Fleet, InstanceOutcome, OnTheWay};
use portolan_base::{BlockHash, ModelName, Tokens};
use portolan_decide::{FleetView, InstanceIndex};
use portolan_policy::NameTables;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A [`Fleet`] that knows what it was told and remembers what was reported to it.
#[derive(Debug)]
pub struct FakeFleet {
    names: Arc<NameTables>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    view: Arc<FleetView>,
    held: Vec<u32>,
    outcomes: Vec<(InstanceIndex, InstanceOutcome)>,
}

impl FakeFleet {
    /// A fleet that looks like `view`, where nothing is cached.
    pub fn new(view: FleetView, names: NameTables) -> Self {
        let held = vec![0; view.instances.len()];
        let state = State {
            view: Arc::new(view),
            held,
            outcomes: Vec::new(),
        };
        Self {
            names: Arc::new(names),
            state: Mutex::new(state),
        }
    }

    /// Changes the picture.
    pub fn set_view(&self, view: FleetView) {
        self.state().view = Arc::new(view);
    }

    /// Says how many tokens of any prompt each instance holds.
    pub fn set_held(&self, held: Vec<u32>) {
        self.state().held = held;
    }

    /// Everything that was reported, oldest first.
    pub fn outcomes(&self) -> Vec<(InstanceIndex, InstanceOutcome)> {
        self.state().outcomes.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fleet for FakeFleet {
    fn view(&self) -> Arc<FleetView> {
        Arc::clone(&self.state().view)
    }

    fn names(&self) -> Arc<NameTables> {
        Arc::clone(&self.names)
    }

    fn held(&self, _model: &ModelName, _chain: &[BlockHash]) -> Vec<u32> {
        self.state().held.clone()
    }

    fn claim(&self, _instance: InstanceIndex, tokens: Tokens) -> Claim {
        Arc::<OnTheWay>::default().claim(tokens)
    }

    fn outcome(&self, instance: InstanceIndex, outcome: InstanceOutcome) {
        self.state().outcomes.push((instance, outcome));
    }
}
