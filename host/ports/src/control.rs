//! Orders that every site must hear, in one order: invalidations, and the beats that prove a site has heard them.
//!
//! # What proves that a site is up to date
//!
//! A site may use cached KV only while it knows that it has applied everything that was acknowledged up to a moment
//! not long ago. Reading "the last sequence" proves nothing: whoever answers may be a leader of yesterday. So the site
//! appends a [`Beat`] and waits until that beat comes back among the entries that it follows. The beat went through the
//! same quorum as every order; with the sequence M it got, everything acknowledged before the site asked lies below M,
//! and entries come in order: the site has applied it all when it meets its own beat. Its lease runs from the moment
//! it asked, never from the moment it heard.

use async_trait::async_trait;
use portolan_base::{BlockId, Dependency, ModelName, Moment, Scope, Sequence, SiteName};
use serde::{Deserialize, Serialize};

/// What is told to every site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ControlEvent {
    /// A site asks to be told how far the stream is.
    Beat(Beat),
    /// Cached KV is wrong from now on.
    Invalidation(Invalidation),
    /// Written by a later release. A site that meets one cannot know what it must not use any more: it forgets
    /// everything and goes on.
    #[serde(other)]
    Unknown,
}

impl ControlEvent {
    /// Reads what [`to_bytes`](Self::to_bytes) wrote, here or in another release. What cannot be read is
    /// [`Unknown`](Self::Unknown), never an error: skipping it could leave wrong KV in use.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or(Self::Unknown)
    }

    /// The event as a stream keeps it: JSON.
    ///
    /// # Errors
    /// None for the events of this release.
    pub fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// The lane the event is kept in: what is kept of one lane does not depend on how busy another is. A bus subject
    /// token, or two joined by a dot.
    pub fn lane(&self) -> String {
        match self {
            Self::Beat(beat) => format!("beat.{}", beat.site),
            Self::Invalidation(order) => match &order.what {
                // Each model's latest version is kept for ever: a site that is new has to name blocks as others do.
                Invalidated::Model { model } => format!("model.{}", model.as_str().replace('.', "_")),
                _ => "invalidation".to_owned(),
            },
            Self::Unknown => "unknown".to_owned(),
        }
    }

    /// Names the event where it may be appended twice because nobody knows whether the first time was acknowledged. Both
    /// do no harm; a stream that can keeps one.
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Invalidation(order) => Some(&order.id),
            Self::Beat(_) | Self::Unknown => None,
        }
    }
}

/// A site's question how far the stream is: see [this module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Beat {
    /// Whose.
    pub site: SiteName,
    /// Drawn at random when the site's process starts: a beat of an earlier process proves nothing for this one.
    pub incarnation: u64,
    /// Counts the incarnation's beats.
    pub number: u64,
}

/// An order that KV be used no more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Invalidation {
    /// Drawn by whoever orders.
    pub id: String,
    /// What is wrong from now on.
    pub what: Invalidated,
    /// Where it was ordered.
    pub from: SiteName,
    /// By whom, as audit logs name them.
    pub actor: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When it was sent, by the clock of `from`.
    pub sent_at: Moment,
    /// What becomes of requests that run on it.
    #[serde(default)]
    pub running: Running,
}

/// What becomes of requests that began before an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Running {
    /// They finish on what they began with.
    #[default]
    Finish,
    /// They end with an error.
    Abort,
}

/// What an order is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Invalidated {
    /// Everything that a model computed: from then on the model's version is the order's position in the stream.
    Model {
        /// Which model.
        model: ModelName,
    },
    /// Everything that depends on a thing at another version than it has from then on.
    Dependency {
        /// The thing, and the version it has.
        by: Dependency,
        /// Whose KV; none: everyone's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<Scope>,
    },
    /// One block and everything that was computed on top of it.
    Prefix {
        /// Its name.
        block: BlockId,
        /// Whose it has to be; none: anyone's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<Scope>,
    },
    /// All of a tenant's, or what is public.
    Tenant {
        /// Whose.
        scope: Scope,
    },
}

/// A stream that lost what it held, or was made anew, is another stream: its positions mean nothing to whoever followed
/// the first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StreamId(pub String);

/// Up to where somebody has followed a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Which stream.
    pub stream: StreamId,
    /// The last entry that was taken in.
    pub sequence: Sequence,
}

/// An entry of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlEntry {
    /// Its position.
    pub sequence: Sequence,
    /// What is told.
    pub event: ControlEvent,
}

/// Why the stream did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Nothing was acknowledged. The event may be in the stream all the same, now or later: appending it again does no
    /// harm.
    #[error("the control stream did not acknowledge: {0}; the order may have no effect, give it again")]
    NotAcknowledged(String),
    /// What was being followed is out of reach. Follow again after the last entry.
    #[error("the control stream is out of reach: {0}")]
    Cut(String),
    /// Entries after the cursor are not kept any more, or the stream is another one. Whoever follows has to forget all
    /// that the entries could have been about, and begin anew with no cursor.
    #[error("the control stream cannot be followed from {from}: {why}")]
    Lost {
        /// From where.
        from: Sequence,
        /// What became of it.
        why: String,
    },
    /// The stream's data does not read back as it was written.
    #[error("the control stream is damaged at {place}: {detail}")]
    Damaged {
        /// Where.
        place: String,
        /// What was found.
        detail: String,
    },
}

/// One order of events for all sites.
///
/// - **Durable.** What [`append`](Self::append) acknowledged is followed by everyone, for as long as the stream keeps
///   it, whatever process or machine dies: it is flushed, or a quorum has it.
/// - **Ordered.** An event appended after another was acknowledged has a greater position. No position is given twice.
/// - **Without gaps.** Whoever follows meets every entry after its cursor, in order, at least once, but for beats: old
///   ones may be left out, never one that was appended after following began. Positions may be skipped.
/// - **Kept by lane.** At least the latest entry of every [lane](ControlEvent::lane) is kept, and of invalidations the
///   latest, as many as bounds on their number and bytes let. When something after the cursor was dropped that is no beat,
///   following is refused with [`ControlError::Lost`].
#[async_trait]
pub trait ControlStream: Send + Sync {
    /// Appends an event. Returns once it cannot be lost.
    ///
    /// # Errors
    /// [`ControlError::NotAcknowledged`] when there is no quorum, or the disk failed.
    async fn append(&self, event: ControlEvent) -> Result<Sequence, ControlError>;

    /// Follows the entries after `after`, from the first that is kept where there is no cursor.
    ///
    /// # Errors
    /// [`ControlError::Lost`] and [`ControlError::Cut`].
    async fn follow(&self, after: Option<&Cursor>) -> Result<Box<dyn ControlEntries>, ControlError>;
}

/// Entries that are being followed.
#[async_trait]
pub trait ControlEntries: Send {
    /// The stream they are of.
    fn stream(&self) -> &StreamId;

    /// The next entry; waits for it. May be dropped while it waits: no entry is lost.
    ///
    /// # Errors
    /// [`ControlError::Cut`] and [`ControlError::Lost`]; the entries end with it.
    async fn next(&mut self) -> Result<ControlEntry, ControlError>;

    /// The next entry where it is here already; does not wait. Why entries end, [`next`](Self::next) says.
    fn next_ready(&mut self) -> Option<ControlEntry>;
}
