//! Continuous batching in real time. Each step computes a bounded piece of waiting prompts and one token of every
//! sequence that decodes, and takes as long as the profile says.

use super::ModelledError;
use super::ModelledText;
use super::blocks::{Blocks, block_hash, chain};
use super::metrics::Counters;
use super::profile::Profile;
use super::publish::Publisher;
use super::speech::{Speech, Voice};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

/// A step whose sleep ended late by up to this much is made up for by the next: timers count in milliseconds.
const CATCH_UP: Duration = Duration::from_millis(2);

/// What a sequence is asked for.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) prompt: Arc<[u32]>,
    pub(super) salt: Option<String>,
    pub(super) max_tokens: u32,
    pub(super) ignore_eos: bool,
    pub(super) choice: u64,
    /// Prompt tokens whose KV came from another instance.
    pub(super) received: u32,
    /// Keeps the prompt's blocks pinned at the end, until [`Scheduler::let_go`].
    pub(super) park: bool,
}

/// What comes of it.
#[derive(Debug)]
pub(super) enum Said {
    /// The prompt is computed, so many tokens of it were cached.
    Begun {
        cached: u32,
    },
    Token(u32),
    /// With the blocks that stay pinned.
    Ended {
        stopped: bool,
        parked: Vec<u64>,
    },
}

pub(super) struct Scheduler {
    profile: Profile,
    speech: Speech,
    state: Mutex<State>,
    changed: Notify,
    pub(super) counters: Counters,
    dead: watch::Sender<Option<String>>,
}

struct State {
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    blocks: Blocks,
}

struct Sequence {
    ask: Ask,
    voice: Voice,
    /// Names of the prompt's full blocks, then of those filled while decoding.
    hashes: Vec<u64>,
    /// Blocks it may still fill.
    reserved: usize,
    /// How many of `hashes` it holds.
    pinned: usize,
    cached: u32,
    /// Prompt tokens that are computed, or came.
    done: u32,
    produced: Vec<u32>,
    length: u32,
    out: mpsc::UnboundedSender<Said>,
}

impl Scheduler {
    pub(super) fn new(
        profile: Profile,
        text: &ModelledText,
        publisher: Option<Publisher>,
    ) -> (Arc<Self>, Steps) {
        let scheduler = Arc::new(Self {
            speech: Speech::new(text),
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                running: Vec::new(),
                blocks: Blocks::new(profile.kv.blocks),
            }),
            changed: Notify::new(),
            counters: Counters::default(),
            dead: watch::Sender::new(None),
            profile,
        });
        let steps = Steps {
            of: Arc::clone(&scheduler),
            publisher,
        };
        (scheduler, steps)
    }

    /// Queues a sequence. Dropping the receiver cancels it.
    pub(super) fn ask(&self, ask: Ask) -> mpsc::UnboundedReceiver<Said> {
        let (out, said) = mpsc::unbounded_channel();
        let voice = self.speech.voice(&ask.prompt, ask.choice);
        let length = match self.profile.answer_tokens {
            Some(bounds) if !ask.ignore_eos => self.speech.length(voice, bounds).min(ask.max_tokens),
            _ => ask.max_tokens,
        };
        let sequence = Sequence {
            hashes: chain(ask.salt.as_deref(), &ask.prompt, self.profile.kv.block_tokens),
            voice,
            length,
            reserved: 0,
            pinned: 0,
            cached: 0,
            done: 0,
            produced: Vec::new(),
            out,
            ask,
        };
        self.state.lock().waiting.push_back(sequence);
        self.changed.notify_one();
        said
    }

    /// Frees blocks that were kept for another instance.
    pub(super) fn let_go(&self, parked: &[u64]) {
        self.state.lock().blocks.release(parked, 0);
    }

    /// Empties the cache; whether nothing runs that still uses it.
    pub(super) fn reset(&self) -> bool {
        let cleared = self.state.lock().blocks.clear();
        self.changed.notify_one();
        cleared
    }

    /// Waiting and running sequences, and the share of KV room in use.
    pub(super) fn load(&self) -> (usize, usize, f64) {
        let state = self.state.lock();
        (state.waiting.len(), state.running.len(), state.blocks.usage())
    }

    /// Ends the engine.
    pub(super) fn die(&self, why: &str) {
        self.dead.send_replace(Some(why.to_owned()));
    }

    /// Why it died, if it did.
    pub(super) fn death(&self) -> Option<String> {
        self.dead.borrow().clone()
    }

    /// Returns when it has died.
    pub(super) async fn died(&self) -> String {
        let mut dead = self.dead.subscribe();
        let found = dead.wait_for(Option::is_some).await;
        found.ok().and_then(|why| why.clone()).unwrap_or_default()
    }
}

/// Runs the steps.
pub(super) struct Steps {
    of: Arc<Scheduler>,
    publisher: Option<Publisher>,
}

/// What one step computes.
struct Plan {
    /// Prompt tokens of each running sequence.
    pieces: Vec<u32>,
    time: Duration,
}

impl Steps {
    pub(super) async fn run(mut self) -> Result<(), ModelledError> {
        let scheduler = Arc::clone(&self.of);
        tokio::select! {
            why = scheduler.died() => Err(ModelledError::Died(why)),
            () = self.steps() => Ok(()),
        }
    }

    async fn steps(&mut self) {
        let mut due = Instant::now();
        loop {
            let plan = self.of.state.lock().plan(&self.of.profile);
            let Some(plan) = plan else {
                self.publish().await;
                self.of.changed.notified().await;
                due = Instant::now();
                continue;
            };
            due = due.max(Instant::now() - CATCH_UP) + plan.time;
            tokio::time::sleep_until(due).await;
            self.of.state.lock().step(&plan, &self.of);
            self.publish().await;
        }
    }

    async fn publish(&mut self) {
        let changes = self.of.state.lock().blocks.changes();
        if let Some(publisher) = self.publisher.as_mut().filter(|_| !changes.is_empty()) {
            let loses = |sequence| self.of.profile.faults.loses(sequence);
            publisher
                .publish(&changes, self.of.profile.kv.block_tokens, loses)
                .await;
        }
    }
}

impl State {
    /// What the next step does; none where there is nothing to do.
    fn plan(&mut self, profile: &Profile) -> Option<Plan> {
        self.drop_cancelled();
        self.let_in(profile);
        if self.running.is_empty() {
            return None;
        }
        let decoding = self.running.iter().filter(|s| s.is_decoding()).count() as u32;
        let mut budget = profile.step_tokens.saturating_sub(decoding).max(1);
        let mut time = profile.decode_step(decoding);
        let piece = |sequence: &Sequence| {
            let piece = sequence.uncomputed().min(budget);
            budget -= piece;
            if piece > 0 {
                // What is cached costs nothing: the curve is of the tokens computed.
                let before = sequence.done - sequence.cached.max(sequence.ask.received.min(sequence.done));
                time += profile
                    .prefill(before + piece)
                    .saturating_sub(profile.prefill(before));
            }
            piece
        };
        let pieces = self.running.iter().map(piece).collect();
        Some(Plan { pieces, time })
    }

    fn drop_cancelled(&mut self) {
        self.waiting.retain(|sequence| !sequence.out.is_closed());
        let blocks = &mut self.blocks;
        self.running.retain(|sequence| {
            let goes = sequence.out.is_closed();
            if goes {
                blocks.release(&sequence.hashes[..sequence.pinned], sequence.reserved);
            }
            !goes
        });
    }

    /// In the order they came; the first that does not fit keeps those behind it waiting, as in vLLM.
    fn let_in(&mut self, profile: &Profile) {
        while self.running.len() < profile.sequences as usize {
            let Some(next) = self.waiting.front_mut() else {
                return;
            };
            let length = next.ask.prompt.len() as u32;
            let total = (length + next.length).div_ceil(profile.kv.block_tokens) as usize;
            let Some(cached) = self.blocks.admit(&next.hashes, total) else {
                return;
            };
            // The last token is always computed, so that of a prompt held whole its last block is computed again.
            let most = (length - 1) / profile.kv.block_tokens * profile.kv.block_tokens;
            next.cached = (cached as u32 * profile.kv.block_tokens).min(most);
            next.pinned = cached;
            next.reserved = total - cached;
            next.done = next.cached.max(next.ask.received.min(length - 1));
            self.running.extend(self.waiting.pop_front());
        }
    }

    fn step(&mut self, plan: &Plan, of: &Scheduler) {
        let block = of.profile.kv.block_tokens;
        for (sequence, piece) in self.running.iter_mut().zip(&plan.pieces) {
            let was_decoding = sequence.is_decoding();
            sequence.done += piece;
            sequence.store(&mut self.blocks, block);
            if !sequence.is_decoding() {
                continue;
            }
            if !was_decoding {
                of.counters.prompt(
                    sequence.ask.prompt.len() as u32,
                    sequence.cached,
                    sequence.ask.received,
                );
                drop(sequence.out.send(Said::Begun {
                    cached: sequence.cached,
                }));
            }
            let token = of.speech.token(sequence.voice, sequence.produced.len() as u32);
            sequence.produced.push(token);
            of.counters.produced();
            drop(sequence.out.send(Said::Token(token)));
        }
        let blocks = &mut self.blocks;
        self.running.retain_mut(|sequence| {
            let over = sequence.produced.len() as u32 >= sequence.length;
            if over {
                sequence.end(blocks);
                of.counters.finished();
            }
            !over
        });
    }
}

impl Sequence {
    fn uncomputed(&self) -> u32 {
        self.ask.prompt.len() as u32 - self.done
    }

    fn is_decoding(&self) -> bool {
        self.uncomputed() == 0
    }

    /// Stores the blocks that are full: of the prompt what is computed, of the answer all but its last token, whose KV
    /// the next step makes.
    fn store(&mut self, blocks: &mut Blocks, block: u32) {
        let salt = self.ask.salt.as_deref();
        let prompt = self.ask.prompt.len() as u32;
        let whole = self.done
            + if self.is_decoding() {
                self.produced.len() as u32
            } else {
                0
            };
        while (self.pinned as u32 + 1) * block <= whole && self.reserved > 0 {
            let from = self.pinned as u32 * block;
            let token = |at: u32| match at < prompt {
                true => self.ask.prompt[at as usize],
                false => self.produced[(at - prompt) as usize],
            };
            let tokens: Vec<u32> = (from..from + block).map(token).collect();
            let parent = self.pinned.checked_sub(1).map(|before| self.hashes[before]);
            let hash = block_hash(parent, salt, &tokens);
            if self.hashes.len() == self.pinned {
                self.hashes.push(hash);
            }
            blocks.store(hash, parent, &tokens, salt);
            self.pinned += 1;
            self.reserved -= 1;
        }
    }

    fn end(&mut self, blocks: &mut Blocks) {
        let pinned = &self.hashes[..self.pinned];
        let parked = match self.ask.park {
            true => pinned.to_vec(),
            false => Vec::new(),
        };
        blocks.release(if self.ask.park { &[] } else { pinned }, self.reserved);
        let stopped = self.length < self.ask.max_tokens;
        drop(self.out.send(Said::Ended { stopped, parked }));
    }
}
