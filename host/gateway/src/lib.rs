//! ORDERS the stages of a request at one site: `accept → admit → locate → decide → fetch → prefill → transfer →
//! decode → settle`, one file each under [`stage`], and the HTTP doors around them.

pub mod accepted;
mod ahead;
pub mod answer;
mod bring;
mod copy;
pub mod error;
mod evacuate;
pub mod http;
pub mod in_flight;
pub mod live;
mod lookup;
pub mod metrics;
mod out_of_service;
pub mod outputs;
pub mod peer;
mod permission;
pub mod policies;
mod prewarmed;
mod public;
mod reaction;
pub mod receive;
pub mod records;
pub mod recovery;
mod replicate;
mod rollout;
pub mod site;
pub mod stage;
mod turns;

pub use accepted::{Accepted, Original};
pub use answer::{Answer, AnswerEvent, Usage};
pub use error::{ErrorKind, RequestError};
pub use live::Live;
pub use public::PublicPrefixes;
pub use reaction::{PolicyReaction, PressureRules};
pub use site::{Limits, ServedBy, ServedModel, Site, SiteParts};
