//! The fake beside [`Fleet`]: a picture that stands still until a test changes it.

use crate::{Claim, Fleet, InstanceOutcome, NoSuchInstance, OnTheWay, Service};
use portolan_base::{BlockHash, INDEX_BLOCK_TOKENS, InstanceName, ModelName, Provenance, Tokens};
use portolan_decide::{FleetView, InstanceIndex, Route, SiteIndex, Standing};
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
    predicted: Vec<(InstanceIndex, Vec<BlockHash>)>,
    /// Whether what was predicted counts as held.
    believes: bool,
    outcomes: Vec<(InstanceIndex, InstanceOutcome)>,
    link_outcomes: Vec<(SiteIndex, InstanceOutcome)>,
    decided: Vec<Tokens>,
    settled: Vec<(Tokens, u32)>,
}

impl FakeFleet {
    /// A fleet that looks like `view`, where nothing is cached.
    pub fn new(view: FleetView, names: NameTables) -> Self {
        let held = vec![0; view.instances.len()];
        let state = State {
            view: Arc::new(view),
            held,
            predicted: Vec::new(),
            believes: true,
            outcomes: Vec::new(),
            link_outcomes: Vec::new(),
            decided: Vec::new(),
            settled: Vec::new(),
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

    /// What is predicted counts for nothing from now on, as if its time were over at once.
    pub fn disbelieve_predictions(&self) {
        self.state().believes = false;
    }

    /// What each instance was said to be going to hold, oldest first.
    pub fn predicted(&self) -> Vec<(InstanceIndex, Vec<BlockHash>)> {
        self.state().predicted.clone()
    }

    /// Everything that was reported, oldest first.
    pub fn outcomes(&self) -> Vec<(InstanceIndex, InstanceOutcome)> {
        self.state().outcomes.clone()
    }

    /// Everything that was reported of links, by the site they come from, oldest first.
    pub fn link_outcomes(&self) -> Vec<(SiteIndex, InstanceOutcome)> {
        self.state().link_outcomes.clone()
    }

    /// What every decided request left to compute, oldest first.
    pub fn decided_requests(&self) -> Vec<Tokens> {
        self.state().decided.clone()
    }

    /// What every served request computed and produced, oldest first.
    pub fn settled_requests(&self) -> Vec<(Tokens, u32)> {
        self.state().settled.clone()
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

    fn held(&self, _model: &ModelName, chain: &[BlockHash]) -> Vec<u32> {
        let state = self.state();
        let mut held = state.held.clone();
        for (instance, predicted) in state.predicted.iter().filter(|_| state.believes) {
            let same = predicted.iter().zip(chain).take_while(|(a, b)| a == b).count();
            if let Some(held) = held.get_mut(instance.0 as usize) {
                *held = (*held).max((same * INDEX_BLOCK_TOKENS) as u32);
            }
        }
        held
    }

    fn predict(&self, instances: &[InstanceIndex], chain: &[BlockHash], _about: &Provenance) {
        let each = instances.iter().map(|instance| (*instance, chain.to_vec()));
        self.state().predicted.extend(each);
    }

    fn claim(&self, _instance: InstanceIndex, tokens: Tokens) -> Claim {
        Arc::<OnTheWay>::default().claim(tokens)
    }

    fn begins(&self, _route: Route) {}

    fn outcome(&self, instance: InstanceIndex, outcome: InstanceOutcome) {
        self.state().outcomes.push((instance, outcome));
    }

    fn link_outcome(&self, from: SiteIndex, outcome: InstanceOutcome) {
        self.state().link_outcomes.push((from, outcome));
    }

    fn set_service(&self, instance: &InstanceName, service: Service) -> Result<(), NoSuchInstance> {
        let mut state = self.state();
        let mut view = (*state.view).clone();
        let found = view.instances.iter_mut().find(|i| i.name == *instance);
        let found = found.ok_or_else(|| NoSuchInstance(instance.clone()))?;
        found.standing = match service {
            Service::Open => Standing::Ready,
            Service::Draining => Standing::Draining,
        };
        state.view = Arc::new(view);
        Ok(())
    }

    fn decided(&self, uncached: Tokens) {
        self.state().decided.push(uncached);
    }

    fn settled(&self, uncached: Tokens, produced: u32) {
        self.state().settled.push((uncached, produced));
    }
}
