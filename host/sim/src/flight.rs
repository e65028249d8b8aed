//! A request on its way.

use crate::fate::Served;
use portolan_base::{Bytes, Moment};
use std::time::Duration;

/// Names a flight for as long as it is not sent elsewhere: what was planned for an earlier epoch no longer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) slot: u32,
    pub(crate) epoch: u32,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// To its prefill instance, or in that one's queue.
    Queued,
    /// Being prefilled.
    Prefilling,
    /// Its KV is sent.
    Sending,
    /// At its decode instance: waiting for a slot, or decoding.
    Decoding,
}

/// One request that was decided and is not done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// Its position in the traffic.
    pub(crate) request: usize,
    pub(crate) epoch: u32,
    pub(crate) stage: Stage,
    pub(crate) served: Served,
    /// Tokens it was expected to compute when it was decided.
    pub(crate) expected_tokens: u32,
    /// KV that was expected to cross a link.
    pub(crate) ordered: Bytes,
    /// When its prefill began.
    pub(crate) prefill_began: Moment,
    /// How long that takes.
    pub(crate) prefill_time: Duration,
}

/// Flights by number; numbers of those that landed are used again.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    slots: Vec<Option<Flight>>,
    free: Vec<u32>,
    epochs: u32,
}

impl Flights {
    /// Takes a flight off; its epoch is a new one.
    pub(crate) fn add(&mut self, mut flight: Flight) -> Ticket {
        self.epochs = self.epochs.wrapping_add(1);
        let epoch = self.epochs;
        flight.epoch = epoch;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(flight);
                slot
            }
            None => {
                self.slots.push(Some(flight));
                self.slots.len() as u32 - 1
            }
        };
        Ticket { slot, epoch }
    }

    /// The flight that a ticket names, unless it was sent elsewhere or landed.
    pub(crate) fn get(&mut self, ticket: Ticket) -> Option<&mut Flight> {
        let flight = self.slots.get_mut(ticket.slot as usize)?.as_mut();
        flight.filter(|flight| flight.epoch == ticket.epoch)
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Flight> {
        self.get(ticket)?;
        self.free.push(ticket.slot);
        self.slots[ticket.slot as usize].take()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// Everything that is on its way.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Ticket, &Flight)> {
        (0u32..).zip(&self.slots).filter_map(|(slot, flight)| {
            let flight = flight.as_ref()?;
            let epoch = flight.epoch;
            Some((Ticket { slot, epoch }, flight))
        })
    }
}
