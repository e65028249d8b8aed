//! Numbers that a part of the host counts for itself, as the metrics page has them.

/// One number of the metrics page.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric, without the page's prefix and without the suffix of its kind.
    pub name: &'static str,
    /// What it says, with its unit.
    pub help: &'static str,
    /// Labels and their values.
    pub labels: Vec<(&'static str, String)>,
    /// The number.
    pub value: Reading,
}

/// What kind of number it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// Only ever grows.
    Counter(u64),
    /// As it is at this moment.
    Gauge(u64),
    /// How often something took how long, in seconds.
    Times {
        /// Upper bounds, and how many lay between this one and the one before.
        buckets: Vec<(f64, u64)>,
        /// All of them together.
        sum: f64,
    },
}
