//! Policies away from traffic: one call by hand, a table of cases, recorded requests decided again, and what a call
//! costs. Components are loaded exactly as the running host loads them.
//!
//! | file | holds |
//! |---|---|
//! | [`rows`] | rows as people write them: columns by name, sites by name |
//! | [`forms`] | what views and cases accept beyond that |
//! | [`names`] | the name tables behind the indices |
//! | [`situation`] | everything one call is made from |
//! | [`component`] | a component file, loaded for a configuration and name tables |
//! | [`told`] | one call and what came of it |
//! | [`cases`], [`judge`] | a table of cases, and whether an answer is the expected one |
//! | [`records`], [`replay`], [`comparison`] | recorded requests, decided again, compared |
//! | [`fleet`], [`rehearsal`] | a trace, played through the simulator with the policies in force and with another |
//! | [`bench`], [`traffic`], [`spread`] | what calls cost, on made-up requests of the production shape |

pub mod bench;
pub mod cases;
pub mod comparison;
pub mod component;
pub mod error;
pub mod fleet;
pub mod forms;
pub mod judge;
pub mod names;
pub mod records;
pub mod rehearsal;
pub mod replay;
pub mod rows;
pub mod situation;
pub mod spread;
pub mod told;
pub mod traffic;

pub use error::LabError;
