//! Units as types: a bandwidth cannot be added to a number of bytes.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;
use serde::{Deserialize, Serialize};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        impl Sub for $name {
            type Output = Self;
            /// Saturates at zero.
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self::default(), |a, b| a + b)
            }
        }
    };
}

quantity! {
    /// A number of bytes.
    Bytes, u64
}
quantity! {
    /// A number of tokens.
    Tokens, u32
}
quantity! {
    /// Thousandths: 1000 is the whole.
    Permille, u32
}
quantity! {
    /// A data rate in bits a second.
    BitsPerSecond, u64
}

impl Bytes {
    /// KiB, rounded up.
    pub const fn kib_ceil(self) -> u64 {
        self.0.div_ceil(1024)
    }

    /// How long these bytes take at `rate`; [`Duration::MAX`] when the rate is zero.
    pub fn time_at(self, rate: BitsPerSecond) -> Duration {
        if rate.0 == 0 {
            return Duration::MAX;
        }
        let micros = u128::from(self.0) * 8 * 1_000_000 / u128::from(rate.0);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEPS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        for (size, name) in STEPS {
            if self.0 >= size {
                return write!(f, "{:.1} {name}", self.0 as f64 / size as f64);
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_at_a_rate() {
        assert_eq!(
            Bytes(1_250_000).time_at(BitsPerSecond(10_000_000)),
            Duration::from_secs(1)
        );
        assert_eq!(Bytes(1).time_at(BitsPerSecond(0)), Duration::MAX);
    }

    #[test]
    fn bytes_read_well() {
        assert_eq!(Bytes(512).to_string(), "512 B");
        assert_eq!(Bytes(4 << 20).to_string(), "4.0 MiB");
    }
}
