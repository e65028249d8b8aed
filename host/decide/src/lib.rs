//! DECIDES: from what is known about a request and the fleet to an ordered plan of routes.
//!
//! `candidates → residency → cost → routing → plan`, each policy call with its fallback, every limit the host keeps
//! applied whatever a policy says. Pure: time, randomness and the state of the fleet are arguments, so the simulator
//! runs this very code.
//!
//! | file | holds |
//! |---|---|
//! | [`fleet`] | what is known about sites, instances and links |
//! | [`request`] | what is known about one request |
//! | [`route`] | the candidate routes and the host's estimates |
//! | [`table`] | which policy answers which question for whom |
//! | [`ask`] | one policy call with its record and its fallback |
//! | [`fetch`] | whether to fetch what another site holds, or to compute it |
//! | [`residency`] | which sites are allowed |
//! | [`deferral`] | how often and how long a policy may hold a request back |
//! | [`offload`] | from which length on a prompt is better computed at another site |
//! | [`order`] | from a router's scores to an order of routes |
//! | [`plan`] | the decision itself |
//! | [`standing`] | whether an instance may be given work, and its way back |
//! | [`breaker`] | when an instance or link is left alone for a while |
//! | [`timeouts`] | how long a stage may take before the next route is tried |
//! | [`retry`] | how much a site may try again |
//! | [`rollout`] | who gets a new version, and when it goes |
//! | [`shadow`] | what a version on trial would have decided |
//! | [`replicate`] | when a second copy of a prefix is worth its bandwidth |
//! | [`patterns`] | which site is asked next, from which were asked in turn |
//! | [`foresee`] | when a prefix goes to that site ahead of its request, and whether that was right |
//! | [`allowance`] | how much a site orders by itself |
//! | [`record`] | the path record: why each request went where it went |

pub mod allowance;
pub mod ask;
pub mod breaker;
pub mod deferral;
pub mod fetch;
pub mod fleet;
pub mod foresee;
pub mod hot;
pub mod offload;
pub mod order;
pub mod patterns;
pub mod plan;
pub mod record;
pub mod replicate;
pub mod request;
pub mod residency;
pub mod retry;
pub mod rollout;
pub mod route;
pub mod shadow;
pub mod standing;
pub mod table;
pub mod timeouts;

pub use allowance::{Allowance, Bounds, OtherTenants};
pub use breaker::{Breaker, BreakerConfig};
pub use deferral::Deferrals;
pub use fetch::{FetchInput, FetchPlan};
pub use fleet::{
    Bandwidth, FleetView, InstanceIndex, InstanceView, LinkFigures, LinkView, Serving, SiteIndex, SiteView,
};
pub use foresee::{
    Foreseen, ForeseenCounts, PrewarmAsk, PrewarmCounts, PrewarmDue, PrewarmEnd, PrewarmRules, Prewarms,
};
pub use hot::{Hot, HotPrompts};
pub use offload::{NO_LENGTH, OffloadControl, OffloadControlConfig};
pub use patterns::{Likely, Patterns};
pub use plan::{DecideInput, Decision, Plan, Refusal, decide};
pub use record::{
    CandidateRecord, DecisionRecord, Fallback, FetchRecord, KvRecord, LeftOut, PathRecord, PolicyRecord,
    RouteRecord, ShadowRecord, StageRecord,
};
pub use replicate::{PrefixAsk, ReplicaCounts, ReplicaDue, ReplicaEnd, ReplicaRules, Replicas};
pub use request::{Manner, PrefillMode, RequestFacts, RequestKind};
pub use residency::Placements;
pub use retry::{RetryBudget, RetryConfig};
pub use rollout::{Budget, BudgetMeter, Draw, Percent, Spent, TrialStage};
pub use route::{Candidates, KvSize, MAX_ROUTES, Route};
pub use standing::{Comeback, Standing};
pub use table::{Answerers, PolicyTable, RequestPolicies, Trial};
pub use timeouts::Timeouts;
