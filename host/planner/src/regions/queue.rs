//! Waiting for one of several instances.

use std::time::Duration;

/// The share of requests that wait at all when `load` instances' worth of work comes to `instances`: Erlang's C, for
/// Poisson arrivals and exponential service times. 1 when the instances cannot keep up.
pub(super) fn waiting_share(instances: u32, load: f64) -> f64 {
    let n = f64::from(instances);
    if load >= n {
        return 1.0;
    }
    // Erlang's B by its recursion, which neither overflows nor cancels.
    let blocked = (1..=instances).fold(1.0, |b, i| load * b / (f64::from(i) + load * b));
    blocked / (1.0 - load / n * (1.0 - blocked))
}

/// What a share of requests, `quantile` of 0 to 1, waits at most; none when the instances cannot keep up.
pub(super) fn wait_at(instances: u32, load: f64, service: Duration, quantile: f64) -> Option<Duration> {
    let spare = f64::from(instances) - load;
    if spare <= 0.0 {
        return None;
    }
    // Those who wait, wait an exponential time: P(W > t) = C · exp(−spare · t / service).
    let times = (waiting_share(instances, load) / (1.0 - quantile)).ln().max(0.0);
    Duration::try_from_secs_f64(service.as_secs_f64() * times / spare).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_one_and_for_several() {
        // One instance: everyone waits who comes while it is busy.
        assert!((waiting_share(1, 0.7) - 0.7).abs() < 1e-12);
        // Two at one instance's worth of work: 1/3 (Erlang 1917).
        assert!((waiting_share(2, 1.0) - 1.0 / 3.0).abs() < 1e-12);
        assert!(waiting_share(500, 400.0) < 1e-4);
        assert_eq!(waiting_share(3, 3.0), 1.0);

        let wait = |instances, load| wait_at(instances, load, Duration::from_secs(1), 0.9);
        // M/M/1 at half load: P(W > t) = 0.5 exp(-t/2) = 0.1.
        let expected = 2.0 * 5.0_f64.ln();
        assert!((wait(1, 0.5).unwrap().as_secs_f64() - expected).abs() < 1e-9);
        assert_eq!(wait(10, 1.0), Some(Duration::ZERO));
        assert_eq!(wait(2, 2.0), None);
    }
}
