//! What vLLM and SGLang say of their caches: their messages as bytes, turned into the index's events.
//!
//! | part | what it does |
//! |---|---|
//! | [`live`], [`replay`] | the frames of a message |
//! | [`decode`] | the payload: msgpack in either of the two encodings that releases send |
//! | [`EventFeed`] | numbers, gaps, replays and restarts of one rank, and its blocks named by our own hashes |
//!
//! Sockets are not here. Messages hold the prompts' token ids: nothing here is logged or passed on but block hashes.

mod batch;
mod event;
mod feed;
mod frames;
mod pack;
#[cfg(test)]
mod tests;

pub use batch::{DecodedBatch, EventError, Skipped, decode};
pub use feed::{EventFeed, FeedError, Wanted};
pub use frames::{FrameError, Live, Replayed, live, replay};
