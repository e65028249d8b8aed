//! The adapter against the modelled engine, against recorded traffic, and against servers that misbehave.

mod golden;
mod kept;
mod kv;
mod llama;
mod parted;
mod pieces;
mod process;
mod sglang;
mod slots;
mod traffic;
mod watched;
mod world;

use super::*;
use portolan_ports::{AnswerHead, CacheSalt, Cancel, WholeAnswer, WholeJob, WholePath};
use serde_json::{Value, json};
use std::time::Instant;
