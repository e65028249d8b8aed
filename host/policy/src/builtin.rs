//! The policies the host ships, as pure functions.
