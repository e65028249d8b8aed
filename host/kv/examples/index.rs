//! The figures of `portolan bench index` without the rest of the host: `cargo run --release -p portolan-kv --example
//! index [BLOCKS]`.
#![allow(clippy::print_stdout, unreachable_pub)]

#[path = "../../portolan/src/bench/index.rs"]
mod index;
#[path = "../../portolan/src/bench/summary.rs"]
mod summary;
#[path = "../../portolan/src/bench/together.rs"]
mod together;

fn main() {
    let blocks = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let blocks = blocks.unwrap_or(10_000_000);
    println!("{:#?}\n{:#?}", index::measure(blocks), summary::measure(blocks));
    println!("{:#?}", together::measure(blocks));
}
