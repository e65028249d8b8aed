//! What `portolan plan` works on: the files that describe a fleet and its workload, and what is said of them.
//!
//! | file | holds |
//! |---|---|
//! | [`profile`] | the file that says what the fleet is and how fast |
//! | [`regions`] | the file that says what a set-up of several regions is designed from |
//! | [`workload`] | the file that says what is asked of it |
//! | [`study`] | optimum, baselines, bound and curves of the two |
//! | [`example`] | the case study that ships with the program, and the figures its source prints |

pub mod error;
pub mod example;
pub mod profile;
pub mod regions;
pub mod study;
pub mod workload;

pub use error::PlanError;
