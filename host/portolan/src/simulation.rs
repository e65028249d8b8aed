//! What `portolan simulate` plays, and what it says of it.
//!
//! | file | holds |
//! |---|---|
//! | [`cast`] | policies by name or file, loaded as the running host loads them |
//! | [`prfaas`] | the case study of Prefill-as-a-Service |
//! | [`regions`] | three regions and a recorded trace |
//! | [`scenario`], [`traffic`] | scenario files |
//! | [`curves`] | times by percentile, to be drawn |
//! | [`speed`] | how fast all this is |
//! | [`table`] | lines in columns |

pub mod cast;
pub mod curves;
pub mod prfaas;
pub mod regions;
pub mod scenario;
pub mod speed;
pub mod table;
pub mod traffic;
