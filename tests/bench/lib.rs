//! Measures what the three decisions of a request cost, with the shipped components and with the built-in functions on
//! the same inputs, so that ratios come from one run.

mod inputs;
mod measure;
mod reload;
mod subjects;

pub use inputs::Inputs;
pub use measure::{Figures, each, in_a_row};
pub use reload::{Reloads, reloads};
pub use subjects::{Decision, Readiness, Unprepared};
