//! See `host/transport/src/fuzz.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| portolan_transport::fuzz::frame(bytes));
