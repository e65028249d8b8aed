//! Follows the stream, applies orders, renews the lease, hears what other sites applied.

use super::{SAID_MAX, SiteInvalidation};
use crate::validity::Taken;
use portolan_base::{Moment, Sequence};
use portolan_kv::Selector;
use portolan_kv::tier::Forgotten;
use portolan_ports::{
    AppliedReport, BusMessage, ControlEntries, ControlEntry, ControlError, ControlEvent, Cursor, EffectReply,
    Invalidation, Running, SiteEffect, StreamId,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// How long after a stream went out of reach it is tried again: well within a lease.
const AGAIN: Duration = Duration::from_millis(100);

/// How often policies are asked what dies of age: as the contract says.
const TICK: Duration = Duration::from_secs(60);

/// How often it is looked how full the site is. A pool of 10 GiB that takes in a gigabyte a second fills its last
/// twentieth in as long.
const PRESSURE: Duration = Duration::from_millis(500);

/// Orders that are applied in one go: handing over to a thread that may wait for a disk, and back, takes longer than most
/// orders do.
const GROUP_MAX: usize = 64;

/// How often the site's place in the stream is written down while orders come.
const WRITE: Duration = Duration::from_secs(1);

impl SiteInvalidation {
    /// Follows the stream for as long as the site lives.
    pub(super) async fn follow(self: Arc<Self>) {
        let mut is_cut = false;
        loop {
            match self.parts.stream.follow(self.cursor().as_ref()).await {
                Ok(entries) => {
                    is_cut = false;
                    let why = self.take_all(entries).await;
                    tracing::warn!(site = %self.parts.site, %why, "the control stream broke off; following again");
                    self.begin_anew_if_lost(&why).await;
                }
                Err(why) => {
                    if !std::mem::replace(&mut is_cut, true) {
                        tracing::warn!(site = %self.parts.site, %why, "the control stream cannot be followed");
                    }
                    self.begin_anew_if_lost(&why).await;
                }
            }
            sleep(AGAIN).await;
        }
    }

    /// Where to follow from.
    fn cursor(&self) -> Option<Cursor> {
        let state = self.state.lock();
        let stream = state.validity.stream()?.clone();
        Some(Cursor {
            stream,
            sequence: state.validity.applied_to(),
        })
    }

    /// Takes entries until they end; says why they did.
    async fn take_all(self: &Arc<Self>, mut entries: Box<dyn ControlEntries>) -> ControlError {
        let stream = entries.stream().clone();
        self.follows(stream.clone()).await;
        loop {
            let first = match entries.next().await {
                Ok(first) => first,
                Err(why) => return why,
            };
            let ready = std::iter::from_fn(|| entries.next_ready());
            let group = std::iter::once(first).chain(ready.take(GROUP_MAX - 1)).collect();
            if let Err(why) = self.take_group(group, &stream).await {
                return why;
            }
        }
    }

    async fn follows(self: &Arc<Self>, stream: StreamId) {
        if self.cursor().is_none() {
            // What was cached while no stream was followed may be what an order is about that lay in one that is gone.
            self.forget_all().await;
        }
        {
            let mut state = self.state.lock();
            state.record.stream = Some(stream.clone());
            state.validity.follows(stream);
        }
        let agent = Arc::clone(self);
        self.blocking(move || agent.write_down()).await;
    }

    /// Entries that could have been about anything cached here were missed.
    async fn begin_anew_if_lost(self: &Arc<Self>, why: &ControlError) {
        if !matches!(why, ControlError::Lost { .. }) {
            return;
        }
        tracing::error!(site = %self.parts.site, %why, "everything cached is forgotten; following begins anew");
        self.forget_all().await;
    }

    /// Forgets everything cached, and where the stream was followed to.
    async fn forget_all(self: &Arc<Self>) {
        self.forget_the_place();
        self.parts.tiers.trust_until(Moment(0));
        loop {
            let tiers = Arc::clone(&self.parts.tiers);
            if self
                .blocking(move || tiers.invalidate(&Selector::All))
                .await
                .is_some()
            {
                return;
            }
            // Nothing is followed, so nothing is used, until it worked.
            sleep(AGAIN).await;
        }
    }

    fn forget_the_place(&self) {
        let mut state = self.state.lock();
        state.record.begin_anew();
        state.validity.begins_anew(None);
        state.peers.begins_anew(self.now());
        state.said.clear();
    }

    /// What an entry asks of this site.
    fn meet(&self, entry: &ControlEntry, received_at: Moment) -> Taken {
        let mut state = self.state.lock();
        if let ControlEvent::Beat(beat) = &entry.event {
            state.peers.heard(beat, received_at);
        }
        state.validity.take(entry)
    }

    /// Takes entries that are here, in order. Orders go to a thread that may wait for a disk, all in one go.
    ///
    /// # Errors
    /// When an order could not be applied: nothing that it may be about is to be trusted.
    async fn take_group(
        self: &Arc<Self>,
        group: Vec<ControlEntry>,
        stream: &StreamId,
    ) -> Result<(), ControlError> {
        let received_at = self.now();
        let from = group.first().map(|entry| entry.sequence).unwrap_or_default();
        let (agent, stream) = (Arc::clone(self), stream.clone());
        let is_quick = group
            .iter()
            .all(|entry| matches!(entry.event, ControlEvent::Beat(_)));
        let take = move || {
            for entry in &group {
                agent.take(entry, &stream, received_at);
            }
        };
        if is_quick {
            take();
            return Ok(());
        }
        let taken = self.blocking(take).await;
        taken.ok_or_else(|| ControlError::Lost {
            from,
            why: "an order could not be applied".to_owned(),
        })
    }

    /// Does what an entry asks. May wait for a disk where it is no beat.
    fn take(self: &Arc<Self>, entry: &ControlEntry, stream: &StreamId, received_at: Moment) {
        let sequence = entry.sequence;
        match self.meet(entry, received_at) {
            Taken::Nothing => self.came_to(sequence),
            Taken::Renewed(until) => {
                self.parts.tiers.trust_until(until);
                self.came_to(sequence);
                self.say(stream, (received_at, received_at), Forgotten::default());
            }
            Taken::Apply(order) => {
                let forgotten = self.carry_out(&order, sequence, received_at);
                if order.from == self.parts.site {
                    self.met(order.id, stream);
                }
                self.say(stream, (received_at, self.now()), forgotten);
            }
            Taken::ForgetAll => {
                tracing::error!(site = %self.parts.site, %sequence,
                    "an order of a later release cannot be read; everything cached is forgotten. Update this host");
                let forgotten = self.parts.tiers.invalidate(&Selector::All);
                self.was_applied(sequence);
                self.say(stream, (received_at, self.now()), forgotten);
            }
        }
    }

    /// Applies an order, then takes note that it is applied.
    fn carry_out(
        self: &Arc<Self>,
        order: &Invalidation,
        sequence: Sequence,
        received_at: Moment,
    ) -> Forgotten {
        let forgotten = self.apply(&order.what, sequence);
        self.was_applied(sequence);
        let applied_at = self.now();
        if order.running == Running::Abort {
            // Nobody runs: nobody listens.
            drop(self.aborts.send(Arc::new(order.clone())));
        }
        self.times.applied(order.sent_at, received_at, applied_at);
        tracing::info!(
            site = %self.parts.site, id = order.id, %sequence, actor = order.actor, from = %order.from,
            blocks = forgotten.blocks, bytes = forgotten.bytes.0,
            received_ms = received_at.since(order.sent_at).as_micros() as f64 / 1000.0,
            applied_ms = applied_at.since(order.sent_at).as_micros() as f64 / 1000.0,
            "an invalidation was applied"
        );
        forgotten
    }

    fn was_applied(&self, sequence: Sequence) {
        let mut state = self.state.lock();
        state.validity.applied();
        state.record.sequence = sequence;
        state.unwritten = true;
        drop(state);
        self.something_changed();
    }

    /// An order of this site was applied: whoever waits for it knows in which stream it is.
    fn met(&self, id: String, stream: &StreamId) {
        let mut state = self.state.lock();
        state.met.push_back((id, stream.clone()));
        if state.met.len() > SAID_MAX {
            state.met.pop_front();
        }
        drop(state);
        self.something_changed();
    }

    fn came_to(&self, sequence: Sequence) {
        let mut state = self.state.lock();
        state.record.sequence = state.record.sequence.max(sequence);
        drop(state);
        self.something_changed();
    }

    /// Says how far the site is.
    fn say(&self, stream: &StreamId, (received_at, applied_at): (Moment, Moment), forgotten: Forgotten) {
        let state = self.state.lock();
        let report = AppliedReport {
            site: self.parts.site.clone(),
            incarnation: state.validity.incarnation(),
            stream: stream.clone(),
            sequence: state.validity.applied_to(),
            received_at,
            applied_at,
            blocks: forgotten.blocks,
            bytes: forgotten.bytes,
        };
        drop(state);
        self.parts.bus.publish(BusMessage::Applied(report));
    }

    /// Renews the lease.
    pub(super) async fn beat(self: Arc<Self>) {
        let mut ticks = interval(self.parts.rules.beat());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_silent = false;
        loop {
            ticks.tick().await;
            let beat = self.state.lock().validity.ask(self.now());
            let appended = self.parts.stream.append(ControlEvent::Beat(beat));
            let failed = match timeout(self.parts.rules.lease, appended).await {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("nobody answered for as long as a lease lasts".to_owned()),
            };
            if let Some(why) = &failed
                && !is_silent
            {
                tracing::warn!(site = %self.parts.site, why, "the cache-validity lease is not renewed");
            }
            is_silent = failed.is_some();
        }
    }

    /// Has policies look at what is cached once a minute, and writes the site's place down.
    pub(super) async fn tick(self: Arc<Self>) {
        let mut ticks = interval(WRITE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asked = self.now();
        loop {
            ticks.tick().await;
            let is_due = self.now().since(asked) >= TICK;
            // Beats alone are not worth a write: following them again takes nothing.
            if std::mem::take(&mut self.state.lock().unwritten) || is_due {
                let agent = Arc::clone(&self);
                self.blocking(move || agent.write_down()).await;
            }
            if is_due {
                asked = self.now();
                let agent = Arc::clone(&self);
                let look = move || agent.apply_tick();
                self.blocking(look).await;
            }
        }
    }

    /// Has policies look how full the site is. By itself: a policy that is slow holds up nothing else.
    pub(super) async fn make_room(self: Arc<Self>) {
        let mut ticks = interval(PRESSURE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let agent = Arc::clone(&self);
            self.blocking(move || agent.apply_pressure()).await;
        }
    }

    /// Hears what other sites applied, and what they want to know before an order.
    pub(super) async fn hear(self: Arc<Self>, mut messages: Receiver<BusMessage>) {
        loop {
            match messages.recv().await {
                Ok(BusMessage::Applied(report)) => self.heard(report),
                Ok(BusMessage::EffectWanted(wanted)) => {
                    let (agent, what) = (Arc::clone(&self), wanted.what);
                    let would = self
                        .blocking(move || agent.would_apply(&what))
                        .await
                        .unwrap_or_default();
                    let effect = SiteEffect {
                        site: self.parts.site.clone(),
                        blocks: would.blocks,
                        bytes: would.bytes,
                    };
                    let (to, number) = (wanted.by, wanted.number);
                    self.parts
                        .bus
                        .publish(BusMessage::Effect(EffectReply { to, number, effect }));
                }
                Ok(BusMessage::Effect(reply)) if reply.to == self.parts.site => {
                    if let Some(effects) = self.state.lock().effects.get_mut(&reply.number) {
                        effects.push(reply.effect);
                    }
                    self.something_changed();
                }
                Ok(_) => {}
                // Whoever waits for what was lost waits until leases are over.
                Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "what sites applied was not heard"),
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn heard(&self, report: AppliedReport) {
        let now = self.now();
        let mut state = self.state.lock();
        if state.validity.stream() != Some(&report.stream) {
            return;
        }
        state.said.push_back((report, now));
        if state.said.len() > SAID_MAX {
            state.said.pop_front();
        }
        drop(state);
        self.something_changed();
    }

    /// Runs what may wait for a disk; none when it broke off.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let done = tokio::task::spawn_blocking(work).await;
        let broke =
            |error| tracing::error!(site = %self.parts.site, %error, "work on what is cached broke off");
        done.map_err(broke).ok()
    }
}
