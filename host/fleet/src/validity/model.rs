//! Every run, within bounds, of the protocol that invalidates: a publisher in Paris, whose own site fetches from Tokyo;
//! the quorum's stream; leases, clocks that drift, messages that are late, lost, doubled or out of order, restarts.
//!
//! The machines are the ones that production runs ([`SiteValidity`], [`Peers`], [`Waiting`]); what surrounds them here is
//! the network and the clocks. One unit of time is one tick. The bounds: a lease of two ticks and one of drift, four
//! ticks, one order, one beat a site beside the one before, one restart, one fetch. The promise is looked at in every
//! state: once the publisher's wait is over, no site could begin on the invalidated block, nor on KV of it that is on its
//! way.

mod state;

use super::{LeaseRules, Peers, SiteValidity, Waiting};
use portolan_base::{Bytes, Moment, Sequence};
use portolan_ports::{AppliedReport, ControlEntry, ControlEvent};
use state::{Fetch, State, site, stream_id};
use stateright::{Checker, Model, Property};
use std::collections::BTreeSet;
use std::time::Duration;

const PARIS: usize = 0;
const TOKYO: usize = 1;

const PROMISE: &str = "nothing begins on an invalidated block once the wait is over";
const ENDS: &str = "the wait can end before the leases do";
const SERVES: &str = "tokyo's block is fetched and used";

/// What is wrong with the protocol, to see that the checker would tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Whoever waits takes clocks for equally fast.
    WaitSkipsDrift,
    /// A lease is renewed by a reading of the last position, which a leader of yesterday may answer.
    RenewalReadsStale,
    /// A site serves fetches of sites that know more than it does.
    ServesWhoKnowsMore,
    /// KV that is on its way when the order comes is taken all the same.
    TakesWhatWasOnItsWay,
    /// A site says that it has applied what it has only met, and goes on.
    SaysSoTooEarly,
}

struct Protocol {
    flaw: Flaw,
    ticks: u64,
    /// How often Paris and Tokyo ask.
    beats: [u64; 2],
    restarts: u8,
    fetches: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Tick,
    /// Paris' clock gains on Tokyo's.
    Drift,
    Ask(usize),
    Append(usize),
    Order,
    Acknowledge,
    Deliver(usize),
    /// The last entry comes again.
    Again(usize),
    Apply(usize),
    Hear(usize),
    AskFetch,
    Serve,
    Arrive,
    /// Tokyo's process is killed and started; what it had followed was written down, or not yet.
    Restart {
        written: bool,
    },
    /// A leader of yesterday answers with the position of so many entries.
    StaleAnswer(usize),
}

const RULES: LeaseRules = LeaseRules {
    lease: Duration::from_micros(2),
    drift: Duration::from_micros(1),
};

impl Protocol {
    fn rules_of_who_waits(&self) -> LeaseRules {
        match self.flaw {
            Flaw::WaitSkipsDrift => LeaseRules {
                drift: Duration::ZERO,
                ..RULES
            },
            _ => RULES,
        }
    }

    fn fresh(index: usize, incarnation: u64, applied: usize) -> SiteValidity {
        let at = (Some(stream_id()), Sequence(applied as u64));
        SiteValidity::new((site(index), incarnation), RULES, at)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut tokyo = Self::fresh(TOKYO, 1, 0);
        // Paris has just started: it never hears of the beat that Tokyo's lease is from.
        let early = ControlEvent::Beat(tokyo.ask(Moment(10)));
        let first = ControlEntry {
            sequence: Sequence(1),
            event: early.clone(),
        };
        tokyo.take(&first);
        let state = State {
            clocks: [0, 10],
            stream: vec![early],
            to_append: Vec::new(),
            sites: [Self::fresh(PARIS, 1, 1), tokyo],
            met: [1, 1],
            beats: [0, 0],
            holds: [false, true],
            said: BTreeSet::new(),
            ordered: false,
            peers: Peers::new(self.rules_of_who_waits(), Moment(0)),
            waiting: None,
            fetch: Fetch::NotYet,
            restarts: 0,
        };
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.clocks[PARIS] < self.ticks {
            actions.push(Action::Tick);
            // Once: the bound of the drift.
            if state.clocks[TOKYO] - state.clocks[PARIS] == 10 {
                actions.push(Action::Drift);
            }
        }
        for site in [PARIS, TOKYO] {
            if state.beats[site] < self.beats[site] {
                actions.push(Action::Ask(site));
            }
            if state.met[site] < state.stream.len() {
                actions.push(Action::Deliver(site));
            }
            if state.met[site] > 0 {
                actions.push(Action::Again(site));
            }
            if state.sites[site].is_applying() {
                actions.push(Action::Apply(site));
            }
        }
        actions.extend((0..state.to_append.len()).map(Action::Append));
        if !state.ordered {
            actions.push(Action::Order);
        }
        if state.order_at().is_some() && state.waiting.is_none() {
            actions.push(Action::Acknowledge);
        }
        if state.waiting.is_some() {
            actions.extend((0..state.said.len()).map(Action::Hear));
        }
        match state.fetch {
            Fetch::NotYet if self.fetches => actions.push(Action::AskFetch),
            Fetch::Asked(_) => actions.push(Action::Serve),
            Fetch::OnItsWay(_) => actions.push(Action::Arrive),
            Fetch::NotYet | Fetch::Done => {}
        }
        if state.restarts < self.restarts {
            actions.push(Action::Restart { written: true });
            actions.push(Action::Restart { written: false });
        }
        if self.flaw == Flaw::RenewalReadsStale && state.beats[TOKYO] < self.beats[TOKYO] {
            actions.extend((1..=state.stream.len()).map(Action::StaleAnswer));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => state.clocks.iter_mut().for_each(|clock| *clock += 1),
            Action::Drift => state.clocks[PARIS] += 1,
            Action::Ask(site) => {
                state.beats[site] += 1;
                let now = state.now(site);
                let beat = state.sites[site].ask(now);
                state.to_append.push(ControlEvent::Beat(beat));
            }
            Action::Append(index) => {
                let event = state.to_append.remove(index);
                state.stream.push(event);
            }
            Action::Order => {
                state.ordered = true;
                state.to_append.push(crate::control::suite::order(1));
            }
            Action::Acknowledge => {
                let order = Sequence(state.order_at()? as u64 + 1);
                let now = state.now(PARIS);
                state.waiting = Some(Waiting::new(order, now, self.rules_of_who_waits()));
                state.came_to();
            }
            Action::Deliver(site) => {
                let index = state.met[site];
                // The agent applies an entry before it takes the next one.
                if state.sites[site].is_applying() {
                    return None;
                }
                state.met[site] += 1;
                state.meet(site, index, self.flaw);
            }
            Action::Again(site) => state.meet(site, state.met[site] - 1, self.flaw),
            Action::Apply(site) => {
                state.holds[site] = false;
                state.sites[site].applied();
                state.say(site);
                state.came_to();
            }
            Action::Hear(index) => {
                let (site_index, incarnation, sequence) = *state.said.iter().nth(index)?;
                let report = AppliedReport {
                    site: site(site_index),
                    incarnation,
                    stream: stream_id(),
                    sequence: Sequence(sequence),
                    received_at: Moment(0),
                    applied_at: Moment(0),
                    blocks: 0,
                    bytes: Bytes(0),
                };
                // When it came is for people only.
                state.waiting.as_mut()?.heard(&report, Moment(0));
            }
            Action::AskFetch => {
                if !state.sites[PARIS].is_valid(state.now(PARIS)) {
                    return None;
                }
                state.fetch = Fetch::Asked(state.sites[PARIS].begin());
            }
            Action::Serve => {
                let Fetch::Asked(begun) = state.fetch else {
                    return None;
                };
                let knows = state.sites[TOKYO].applied_to() >= begun.applied;
                if !state.could_begin(TOKYO) || !(knows || self.flaw == Flaw::ServesWhoKnowsMore) {
                    return None;
                }
                state.fetch = Fetch::OnItsWay(begun);
            }
            Action::Arrive => {
                if state.could_take(self.flaw) {
                    state.holds[PARIS] = true;
                }
                state.fetch = Fetch::Done;
            }
            Action::Restart { written } => {
                state.restarts += 1;
                let applied = match written {
                    true => state.sites[TOKYO].applied_to().0 as usize,
                    false => 0,
                };
                let incarnation = state.sites[TOKYO].incarnation() + 1;
                state.sites[TOKYO] = Self::fresh(TOKYO, incarnation, applied);
                state.met[TOKYO] = applied;
            }
            Action::StaleAnswer(position) => {
                let now = state.now(TOKYO);
                if (state.sites[TOKYO].applied_to().0 as usize) < position {
                    return None;
                }
                state.beats[TOKYO] += 1;
                let beat = state.sites[TOKYO].ask(now);
                state.sites[TOKYO].renewed(beat.number);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(PROMISE, |model: &Self, state: &State| {
                let begins = state.could_begin(PARIS) || state.could_begin(TOKYO);
                !state.is_over() || !(begins || state.could_take(model.flaw))
            }),
            Property::sometimes(ENDS, |_, state: &State| {
                let waiting = state.waiting.as_ref();
                state.is_over() && waiting.is_some_and(|waiting| state.now(PARIS) < waiting.until())
            }),
            Property::sometimes(SERVES, |_, state: &State| state.could_begin(PARIS)),
        ]
    }
}

fn explored(protocol: Protocol) -> impl Checker<Protocol> {
    protocol.checker().threads(2).spawn_bfs().join()
}

/// The order alone: Tokyo renews its lease once, and may be restarted.
const ORDER: Protocol = Protocol {
    flaw: Flaw::None,
    ticks: 4,
    beats: [0, 1],
    restarts: 1,
    fetches: false,
};

/// What is on its way between sites when the order comes.
const FETCH: Protocol = Protocol {
    ticks: 4,
    beats: [1, 0],
    restarts: 0,
    fetches: true,
    ..ORDER
};

#[test]
fn no_run_of_the_protocol_breaks_the_promise() {
    for (bounds, what) in [(ORDER, ENDS), (FETCH, SERVES)] {
        let begun = std::time::Instant::now();
        let checker = explored(bounds);
        let states = checker.unique_state_count();
        println!("{states} states in {:.1?}", begun.elapsed());
        checker.assert_no_discovery(PROMISE);
        checker.assert_any_discovery(what);
    }
}

#[test]
fn the_checker_finds_each_flaw() {
    for (bounds, flaw) in [
        (ORDER, Flaw::WaitSkipsDrift),
        (ORDER, Flaw::RenewalReadsStale),
        (ORDER, Flaw::SaysSoTooEarly),
        (FETCH, Flaw::ServesWhoKnowsMore),
        (FETCH, Flaw::TakesWhatWasOnItsWay),
    ] {
        let begun = std::time::Instant::now();
        let checker = explored(Protocol { flaw, ..bounds });
        let path = checker.discovery(PROMISE);
        let path = path.unwrap_or_else(|| panic!("{flaw:?} was not found"));
        println!("{flaw:?} in {:.1?}: {:?}", begun.elapsed(), path.into_actions());
    }
}
