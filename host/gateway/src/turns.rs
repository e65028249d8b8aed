//! Whose turn it is to have a long prompt cut into tokens: one of a tenant at a time, and of those who wait one tenant
//! after another. A tenant that sends many waits for its own, and keeps nobody else waiting for more than one each of
//! those who were there before.

use parking_lot::Mutex;
use portolan_base::TenantName;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Who waits: a tenant, or the operator.
type Whose = Option<TenantName>;

/// Hands out turns.
#[derive(Debug)]
pub struct Turns(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    free: usize,
    /// Those that have a turn or wait for one.
    of: HashMap<Whose, OfOne>,
    /// Those that wait and have no turn, by who is next.
    next: VecDeque<Whose>,
}

#[derive(Debug, Default)]
struct OfOne {
    has_turn: bool,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    whose: Whose,
    of: Arc<Turns>,
}

impl Turns {
    /// Lets at most `at_once` have a turn at the same time.
    pub fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner {
            free: at_once,
            of: HashMap::new(),
            next: VecDeque::new(),
        })))
    }

    /// Waits for a turn. Whoever stops waiting costs nothing more.
    pub async fn take(self: &Arc<Self>, whose: Whose) -> Turn {
        let (waiter, turn) = oneshot::channel();
        self.0.lock().wait(whose, waiter);
        self.hand_out();
        turn.await
            .expect("a waiter is kept until it has its turn or left")
    }

    /// Gives the turns that are free to those who are next.
    fn hand_out(self: &Arc<Self>) {
        loop {
            // Sent without the lock: a turn that cannot be sent comes back here as it is dropped.
            let Some((whose, waiter)) = self.0.lock().next() else {
                return;
            };
            let of = Arc::clone(self);
            drop(waiter.send(Turn { whose, of }));
        }
    }
}

impl Inner {
    fn wait(&mut self, whose: Whose, waiter: oneshot::Sender<Turn>) {
        let one = self.of.entry(whose.clone()).or_default();
        one.waiting.retain(|waiter| !waiter.is_closed());
        one.waiting.push_back(waiter);
        if !one.has_turn && !self.next.contains(&whose) {
            self.next.push_back(whose);
        }
    }

    fn next(&mut self) -> Option<(Whose, oneshot::Sender<Turn>)> {
        while self.free > 0 {
            let whose = self.next.pop_front()?;
            let Some(one) = self.of.get_mut(&whose) else {
                continue;
            };
            one.waiting.retain(|waiter| !waiter.is_closed());
            if let Some(waiter) = one.waiting.pop_front() {
                one.has_turn = true;
                self.free -= 1;
                return Some((whose, waiter));
            }
            self.of.remove(&whose);
        }
        None
    }

    fn end(&mut self, whose: &Whose) {
        self.free += 1;
        let Some(one) = self.of.get_mut(whose) else { return };
        one.has_turn = false;
        if one.waiting.is_empty() {
            self.of.remove(whose);
        } else {
            self.next.push_back(whose.clone());
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.of.0.lock().end(&self.whose);
        self.of.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::Future;
    use std::pin::Pin;

    type Waiting = Pin<Box<dyn Future<Output = Turn>>>;

    fn tenant(name: &str) -> Whose {
        Some(TenantName::new(name).unwrap())
    }

    /// One that waits; it has asked once.
    fn waits(turns: &Arc<Turns>, name: &str) -> Waiting {
        let (turns, whose) = (Arc::clone(turns), tenant(name));
        let mut waiting: Waiting = Box::pin(async move { turns.take(whose).await });
        assert!(waiting.as_mut().now_or_never().is_none(), "{name} has to wait");
        waiting
    }

    fn has(waiting: &mut Waiting) -> Option<Turn> {
        waiting.as_mut().now_or_never()
    }

    #[tokio::test]
    async fn one_tenants_many_leave_a_turn_to_another() {
        let turns = Turns::new(2);
        let first = turns.take(tenant("acme")).await;
        let mut more: Vec<_> = (0..100).map(|_| waits(&turns, "acme")).collect();
        let other = turns.take(tenant("globex")).now_or_never();
        assert!(other.is_some(), "the second turn is not acme's to take");
        drop(first);
        assert!(
            has(&mut more[0]).is_some() && has(&mut more[1]).is_some(),
            "in order"
        );
    }

    #[tokio::test]
    async fn those_who_wait_take_turns_tenant_by_tenant() {
        let turns = Turns::new(1);
        let mut held = turns.take(tenant("acme")).await;
        let mut acme: VecDeque<_> = (0..3).map(|_| waits(&turns, "acme")).collect();
        let mut globex: VecDeque<_> = (0..2).map(|_| waits(&turns, "globex")).collect();
        let mut order = Vec::new();
        for _ in 0..5 {
            drop(held);
            let (name, turn) = if let Some(turn) = acme.front_mut().and_then(has) {
                acme.pop_front();
                ("acme", turn)
            } else {
                let turn = globex.pop_front().as_mut().and_then(has);
                ("globex", turn.expect("somebody is next"))
            };
            order.push(name);
            held = turn;
        }
        assert_eq!(order, ["globex", "acme", "globex", "acme", "acme"]);
    }

    #[tokio::test]
    async fn who_leaves_is_passed_over_and_forgotten() {
        let turns = Turns::new(1);
        let held = turns.take(tenant("acme")).await;
        let mut left = waits(&turns, "globex");
        let gone = waits(&turns, "globex");
        let mut late = waits(&turns, "initech");
        drop(gone);
        drop(held);
        // Its turn has come, and it leaves without having seen it.
        drop(has(&mut left).expect("it was next"));
        drop(left);
        drop(has(&mut late).expect("nobody else waits"));
        let inner = turns.0.lock();
        assert_eq!((inner.free, inner.of.len(), inner.next.len()), (1, 0, 0));
    }

    #[tokio::test]
    async fn a_turn_that_was_given_to_one_who_left_is_given_on() {
        let turns = Turns::new(1);
        let held = turns.take(tenant("acme")).await;
        let unseen = waits(&turns, "globex");
        let mut late = waits(&turns, "initech");
        drop(held);
        drop(unseen);
        assert!(has(&mut late).is_some());
    }
}
