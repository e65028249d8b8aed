//! How many lanes a link gets, and how large its chunks are: both follow from bandwidth and round trip.

use portolan_base::{BitsPerSecond, Bytes};
use std::time::Duration;

/// Most lanes of one link: each costs a socket, a task and a buffer at both ends.
const LANES_MAX: u64 = 16;

/// Smallest chunk: below it, heads and system calls cost more than the bytes.
const CHUNK_MIN: u64 = 64 << 10;

/// How long a chunk may occupy the link: what a live transfer waits when a replica's chunk is under way.
const CHUNK_TIME: Duration = Duration::from_millis(10);

/// What one TCP flow can have under way, where the kernel does not say.
const WINDOW_ASSUMED: u64 = 4 << 20;

/// Bytes that one TCP connection of this machine can have under way: the lesser of what the kernel lets it send and,
/// half of the buffer being overhead, receive. The peer is taken to be set up alike.
pub(crate) fn flow_window() -> Bytes {
    let largest = |path: &str| -> Option<u64> {
        let text = std::fs::read_to_string(path).ok()?;
        text.split_ascii_whitespace().nth(2)?.parse().ok()
    };
    let send = largest("/proc/sys/net/ipv4/tcp_wmem").unwrap_or(WINDOW_ASSUMED);
    let receive = largest("/proc/sys/net/ipv4/tcp_rmem").map_or(WINDOW_ASSUMED, |bytes| bytes / 2);
    Bytes(send.min(receive).max(CHUNK_MIN))
}

/// Lanes that fill a link of this capacity and round trip, at least `least`: one flow carries one window a round trip.
pub(crate) fn lanes(capacity: BitsPerSecond, rtt: Duration, window: Bytes, least: u16) -> u16 {
    let under_way = u128::from(capacity.0 / 8) * rtt.as_micros() / 1_000_000;
    // A quarter more, since a flow that lost a segment sends less for a while.
    let flows = (under_way * 5 / 4).div_ceil(u128::from(window.0.max(1)));
    let flows = u64::try_from(flows).unwrap_or(LANES_MAX).min(LANES_MAX);
    u16::try_from(flows).unwrap_or(least).max(least)
}

/// The chunk for a link of this capacity, a power of two and at most `most`.
pub(crate) fn chunk(capacity: BitsPerSecond, most: u32) -> u32 {
    let bytes = u128::from(capacity.0 / 8) * CHUNK_TIME.as_micros() / 1_000_000;
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).clamp(CHUNK_MIN, 1 << 31);
    u32::try_from(bytes.next_power_of_two()).unwrap_or(most).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;

    #[test]
    fn lanes_fill_the_path() {
        let window = Bytes(4 << 20);
        let lanes = |mbps, ms| lanes(BitsPerSecond(mbps * MBIT), Duration::from_millis(ms), window, 2);
        assert_eq!(
            lanes(10_000, 0),
            2,
            "a machine room needs no more than was asked for"
        );
        assert_eq!(lanes(1_000, 50), 2, "6.25 MB under way: two windows");
        assert_eq!(lanes(10_000, 50), 16, "62.5 MB under way would take 19 flows");
        assert_eq!(lanes(5_000, 50), 10, "31.25 MB and a quarter over 4 MiB");
        assert!(flow_window().0 >= CHUNK_MIN);
    }

    #[test]
    fn a_chunk_occupies_the_link_for_about_ten_milliseconds() {
        let chunk = |mbps| chunk(BitsPerSecond(mbps * MBIT), 4 << 20);
        assert_eq!(chunk(10), 64 << 10);
        assert_eq!(chunk(1_000), 2 << 20);
        assert_eq!(chunk(100_000), 4 << 20);
    }
}
