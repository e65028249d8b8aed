//! Gives orders, waits until they hold everywhere, and asks beforehand what they would do.

use super::{SiteInvalidation, draw_id};
use crate::validity::Waiting;
use portolan_base::{Bytes, Moment, Sequence, SiteName};
use portolan_ports::{
    BusMessage, ControlError, ControlEvent, EffectQuestion, Given, Invalidated, Invalidation, Order,
    Patience, SiteApplied, SiteEffect,
};
use std::time::Duration;
use tokio::time::timeout;

/// How long an acknowledgement is waited for: a quorum that has not answered by then may have none, and whoever orders
/// is told so rather than left in doubt.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);

/// How long sites have to say what an order would do: going through an index takes milliseconds.
const EFFECTS_WITHIN: Duration = Duration::from_secs(1);

/// A question that is out. Its answers are kept for as long as somebody waits for them, and no longer: whoever asked may
/// leave at any moment.
struct Asked<'a> {
    of: &'a SiteInvalidation,
    number: u64,
}

impl<'a> Asked<'a> {
    fn new(of: &'a SiteInvalidation) -> Self {
        let number = of.parts.random.next_u64();
        of.state.lock().effects.insert(number, Vec::new());
        Self { of, number }
    }

    /// What came by now.
    fn answers(&self) -> Vec<SiteEffect> {
        let mut state = self.of.state.lock();
        let answers = state.effects.get_mut(&self.number);
        answers.map(std::mem::take).unwrap_or_default()
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.of.state.lock().effects.remove(&self.number);
    }
}

impl SiteInvalidation {
    /// Appends an order to the control stream and waits for what `patience` says.
    pub(super) async fn give(&self, order: Order, patience: Patience) -> Result<Given, ControlError> {
        let sent_at = self.now();
        let id = draw_id(self.parts.random.as_ref());
        let event = ControlEvent::Invalidation(Invalidation {
            id: id.clone(),
            what: order.what,
            from: self.parts.site.clone(),
            actor: order.actor,
            reason: order.reason,
            sent_at,
            running: order.running,
        });
        let appended = timeout(ACKNOWLEDGED_WITHIN, self.parts.stream.append(event)).await;
        let late =
            |_| ControlError::NotAcknowledged(format!("no quorum answered within {ACKNOWLEDGED_WITHIN:?}"));
        let sequence = appended.map_err(late)??;
        let acknowledged = self.now();
        let mut given = Given {
            id: sequence,
            blocks: 0,
            bytes: Bytes(0),
            sites: Vec::new(),
        };
        if patience == Patience::Everywhere {
            let waiting = Waiting::new(sequence, acknowledged, self.parts.rules);
            let waiting = self.wait(waiting, &id).await;
            self.sum_up(&waiting, sent_at, &mut given);
        }
        Ok(given)
    }

    /// Waits until the order with this id holds everywhere.
    async fn wait(&self, mut waiting: Waiting, id: &str) -> Waiting {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if self.look(&mut waiting, id) {
                return waiting;
            }
            // Whether it woke or is late, the clock that leases are counted by says whether it is over.
            let left = waiting.until().since(self.now()).max(Duration::from_millis(1));
            drop(timeout(left, changed.changed()).await);
        }
    }

    /// Looks at what is known by now; true when the order holds everywhere.
    fn look(&self, waiting: &mut Waiting, id: &str) -> bool {
        let now = self.now();
        let state = self.state.lock();
        if let Some((_, stream)) = state.met.iter().rfind(|(met, _)| met == id) {
            waiting.met_in(stream);
        }
        for (report, at) in &state.said {
            waiting.heard(report, *at);
        }
        waiting.is_over(&state.peers, now)
    }

    fn sum_up(&self, waiting: &Waiting, sent_at: Moment, given: &mut Given) {
        for said in waiting.confirmed() {
            given.blocks += said.blocks;
            given.bytes += said.bytes;
            self.times.confirmed(&said.site, said.at.since(sent_at));
        }
        let of = |site: &SiteName| {
            let said = waiting.confirmed().filter(|said| said.site == *site);
            said.map(|said| said.at).max()
        };
        let millis = |at: Moment| at.since(sent_at).as_micros() as f64 / 1000.0;
        given.sites = self
            .parts
            .sites
            .iter()
            .map(|site| SiteApplied {
                site: site.clone(),
                applied_ms: of(site).map(millis),
            })
            .collect();
    }

    /// Asks every site what an order would do there. Whoever asks beside too many others waits for its turn.
    pub(super) async fn ask_effects(&self, what: &Invalidated) -> Vec<SiteEffect> {
        let Ok(_turn) = self.rehearsals.acquire().await else {
            return Vec::new();
        };
        let asked = Asked::new(self);
        let number = asked.number;
        let mut changed = self.changed.subscribe();
        self.parts.bus.publish(BusMessage::EffectWanted(EffectQuestion {
            by: self.parts.site.clone(),
            number,
            what: what.clone(),
        }));
        let all_answered = async {
            while self
                .state
                .lock()
                .effects
                .get(&number)
                .is_some_and(|e| e.len() < self.parts.sites.len())
            {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        // What came until then is told.
        drop(timeout(EFFECTS_WITHIN, all_answered).await);
        let mut effects = asked.answers();
        effects.sort_by(|a, b| a.site.cmp(&b.site));
        effects
    }

    /// Where this site is in the stream.
    pub fn applied_to(&self) -> Sequence {
        self.state.lock().validity.applied_to()
    }
}
