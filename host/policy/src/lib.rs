//! ANSWERS: what a policy is asked, what it may reply, and the policies the host ships.
//!
//! A policy answers one of four [questions](QuestionKind). Rows and matrices of unsigned 32-bit fixed-point numbers
//! go in, an [`Answer`] comes out; there is no clock, no randomness, no I/O, so any decision can be replayed anywhere.
//! The crate compiles to `wasm32-unknown-unknown`: the shipped components wrap the very functions of [`builtin`].

pub mod answer;
pub mod builtin;
pub mod column;
pub mod names;
pub mod policy;
pub mod question;
pub mod scope;

pub use answer::{Answer, Directive, Placement, RoutingDecision};
pub use column::{
    CostColumn, CostMatrix, CostRow, CostView, GroupColumn, GroupRow, GroupView, Matrix, NEVER,
    RequestColumn, RequestRow, RequestView, RouteColumn, RouteMatrix, RouteRow, RouteView,
};
pub use names::{NameTables, SiteEntry};
pub use policy::{Answered, BoundAs, Call, Policy, PolicyDescriptor, PolicyFault, PolicySource};
pub use question::{Dependency, Event, ModelChange, Pressure, Purpose, Question, QuestionKind, Subject};
pub use scope::Scope;
